"""Kinds of tensors that a network does not have: sparse, nested, quantized ones."""

from __future__ import annotations

import torch

from t2t.torch_internals import (
    FakeTensor,
    is_functorch_wrapped,
    is_traceable_wrapper_subclass,
    no_torch_function,
)

COMPLEX = (
    "complex numbers, for which this operator has no formula: compute with real and imaginary part "
    "as two real tensors (x.real and x.imag, torch.view_as_real)"
)

_COMPLEX_INPUT = (
    "complex numbers, which TensorRT does not have: pass their parts as a real tensor "
    "(torch.view_as_real), and let the model make complex numbers of it (torch.view_as_complex)"
)

QUANTIZED = (
    "a quantized tensor of PyTorch's own integer kernels: convert the float model with int8=True, "
    "or the model as torch.ao.quantization prepared it, before its convert()"
)

_WRAPPER = (
    "a {name}, a tensor that is made of others and has no data of its own, such as torchao's: "
    "convert the model as it was before (for quantized weights with int8=True, fp8=True or "
    "weight_only), or make it plain first (weight.dequantize())"
)

_NESTED = "a nested tensor, which TensorRT does not have; pad it (.to_padded_tensor()) outside"
_DENSE = "which TensorRT does not have; make it dense first (.to_dense())"


def unsupported_kind(x: torch.Tensor) -> str:
    """Return what is not plain about a tensor, and what to do; "" for a dense tensor of numbers."""
    if isinstance(x, FakeTensor) and x.layout is torch.strided:
        return QUANTIZED if x.is_quantized else ""
    if x.is_nested:
        return _NESTED
    if x.layout is not torch.strided:
        layout = str(x.layout).removeprefix("torch.").lstrip("_")
        name = "an mkldnn" if layout == "mkldnn" else f"a sparse ({layout})"
        return f"{name} tensor, {_DENSE}"
    if x.is_quantized:
        return QUANTIZED
    if is_traceable_wrapper_subclass(x):
        return _WRAPPER.format(name=f"{type(x).__module__}.{type(x).__qualname__}")
    if x.is_meta and not isinstance(x, FakeTensor):
        return "a tensor on the meta device, which has no data: load the weights first"
    return ""


def unsupported_input(x: torch.Tensor) -> str:
    """Return why a tensor cannot be an input of a network; "" for dense real numbers."""
    kind = unsupported_kind(x)
    if not kind and x.is_complex():
        return _COMPLEX_INPUT
    function = type(x).__torch_function__
    if not kind and function not in (_PLAIN, _DISABLED):
        return (
            f"a {type(x).__module__}.{type(x).__qualname__}, a tensor with functions of its own, "
            "which a network cannot keep; pass x.as_subclass(torch.Tensor)"
        )
    return kind


_PLAIN = torch.Tensor.__torch_function__
_DISABLED = no_torch_function

_SUBCLASS = (
    "a tensor of a class of its own meets one that depends on the input; make it a plain tensor "
    "first (.as_subclass(torch.Tensor))"
)

LIMITS = {
    "Cannot access storage of OpaqueTensorImpl": (
        "an mkldnn tensor, which a network cannot keep; use the tensor as it is"
    ),
    "quantized nyi": QUANTIZED,
    "Quantized": QUANTIZED,
    "NestedTensor": _NESTED,
    "nested_tensor": _NESTED,
    "and 'FakeTensor'": _SUBCLASS,
    "Multiple dispatch failed": _SUBCLASS,
}
"""What PyTorch's own messages about such tensors mean for a conversion."""


def is_wrapped(x: torch.Tensor) -> bool:
    """Return whether one of torch.func's transforms wraps the tensor, as vmap does."""
    return is_functorch_wrapped(x)
