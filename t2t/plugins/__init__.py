"""Operators that PyTorch computes inside an engine, as plugins of TensorRT (`IPluginV3`).

`registration` has the decorator and adds the layers, `call` writes an operator with its arguments
as data, `sizes` its results' sizes as expressions, and `classes` is what TensorRT sees of it.
Plugins need TensorRT proper: TensorRT-RTX has their classes, but no layer for them.
"""
