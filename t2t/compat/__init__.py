"""For those who come from torch2trt: its call, converters, data sets and checkpoints as they are.

    from t2t.compat import TRTModule, tensorrt_converter, torch2trt

    model_trt = torch2trt(model, [x], fp16_mode=True, max_batch_size=8)

A converter of torch2trt's reads ``ctx.method_args``, adds layers to ``ctx.network``, and puts what
it made into ``ctx.method_return._trt``. It runs here over the traced graph, and its results are
checked like those of any converter: shape and type must be what PyTorch gives.
"""

from t2t.compat.conversion import torch2trt
from t2t.compat.converters import (
    ConversionContext,
    add_missing_trt_tensors,
    broadcast_trt_tensors,
    get_arg,
    tensorrt_converter,
    trt_,
)
from t2t.compat.datasets import (
    Dataset,
    DatasetRecorder,
    FolderDataset,
    ListDataset,
    TensorBatchDataset,
)
from t2t.compat.trt_module import TRTModule, load

__all__ = [
    "ConversionContext",
    "Dataset",
    "DatasetRecorder",
    "FolderDataset",
    "ListDataset",
    "TRTModule",
    "TensorBatchDataset",
    "add_missing_trt_tensors",
    "broadcast_trt_tensors",
    "get_arg",
    "load",
    "tensorrt_converter",
    "torch2trt",
    "trt_",
]
