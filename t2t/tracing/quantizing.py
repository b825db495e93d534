"""Which operands of which calls a network takes as integers times a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from t2t.network import Network
from t2t.precision import Kind
from t2t.rounding import BOUNDS, Rounding, Steps
from t2t.tracing.graph import Call, Value

ADDITION = "aten::add.Tensor"
"""Adds two tensors, as a residual block does."""


class Operands(NamedTuple):
    """A product that TensorRT computes with integers, and where its two factors stand.

    Attributes:
        kind: "conv", "conv_transpose" or "matmul".
        places: position and name of the parameter of each factor.
        summed: the dimension of the second factor that is summed over; of matrices from the end,
            None of additions.
    """

    kind: str
    places: tuple[tuple[int, str], tuple[int, str]]
    summed: int | None


PRODUCTS: Mapping[str, Operands] = {
    **{
        f"{owner}.{kind}{n}d": Operands(kind, ((0, "input"), (1, "weight")), summed)
        for owner in ("torch.nn.functional", "torch")
        for kind, summed in (("conv", 1), ("conv_transpose", 0))
        for n in (1, 2, 3)
    },
    "aten::convolution": Operands("conv", ((0, "input"), (1, "weight")), 1),
    "torch.nn.functional.linear": Operands("matmul", ((0, "input"), (1, "weight")), -1),
    "torch.matmul": Operands("matmul", ((0, "input"), (1, "other")), -2),
    "torch.linalg.matmul": Operands("matmul", ((0, "input"), (1, "other")), -2),
    "torch.Tensor.matmul": Operands("matmul", ((0, "self"), (1, "other")), -2),
    "torch.Tensor.__matmul__": Operands("matmul", ((0, "self"), (1, "other")), -2),
    "aten::mm": Operands("matmul", ((0, "self"), (1, "mat2")), -2),
    "aten::bmm": Operands("matmul", ((0, "self"), (1, "mat2")), -2),
}
"""The products that can be quantized, by the name of the function or operator."""


def operands_of(call: Call) -> tuple[str, list[Any]] | None:
    """Return the kind of a product and its two factors; None of other calls."""
    found = PRODUCTS.get(call.name)
    if found is None:
        return None
    kind = found.kind
    if call.name == "aten::convolution" and _argument(call, 6, "transposed"):
        kind = "conv_transpose"
    factors = [_argument(call, *place) for place in found.places]
    return None if any(x is None for x in factors) else (kind, factors)


def _argument(call: Call, position: int, name: str) -> Any:
    return call.args[position] if position < len(call.args) else call.kwargs.get(name)


def with_rounded(
    call: Call, net: Network, roundings: Mapping[tuple[int, int], Rounding]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call with quantized operands replaced; None where there are none.

    Args:
        call: the call.
        net: the network, to which the layers that quantize are added.
        roundings: how operands are rounded, by the id of the call and the operand's place.
    """
    places = _places(call)
    if not places:
        return None
    args, kwargs = list(call.args), dict(call.kwargs)
    changed = False
    for place, (position, name) in enumerate(places):
        value = _argument(call, position, name)
        rounding = roundings.get((id(call), place))
        replaced = None
        if rounding is not None:
            replaced = _rounded(net, value, rounding)
        elif place == 1 and isinstance(value, Value) and value.steps and takes_layers(call):
            # Weights that the model itself has rounded. Their integers and scales become layers, so
            # that TensorRT sees what it may compute with; the numbers stay as they are.
            multiples = _multiples(value.tensor, value.steps)
            # Blocks run along the inputs of a linear layer.
            fits = not value.steps.has_blocks or call.name.endswith(".linear")
            if multiples is not None and fits:
                stored, scale = value.steps.rounding(), value.steps.scale
                replaced = _bound(net, value.tensor, multiples, scale, stored)
        if replaced is None:
            continue
        changed = True
        if position < len(args):
            args[position] = replaced
        else:
            kwargs[name] = replaced
    return (tuple(args), kwargs) if changed else None


def _places(call: Call) -> Sequence[tuple[int, str]]:
    if call.name == ADDITION:
        return ((0, "self"), (1, "other"))
    found = PRODUCTS.get(call.name)
    return () if found is None else found.places


def _rounded(net: Network, value: Value, rounding: Rounding) -> torch.Tensor:
    """Return a tensor that stands for an operand after its rounding."""
    x = value.tensor
    if rounding.scale is None:
        weight = x.detach().float() * rounding.factors(x) if rounding.shifts else x
        scales = rounding.scales(weight).cpu()
        rounded = rounding.rounded(weight, scales.to(x.device))
        return _bound(net, x, rounded, scales, rounding)
    scales = torch.tensor(rounding.scale, dtype=torch.float32)
    dtype = torch.int8 if rounding.bits == "int8" else torch.float8_e4m3fn
    kind = net.kind(x)
    with net.precision("sensitive"):
        read = net.tensor(x)
        if rounding.shifts:
            key = ("shifted", read.name, rounding.shifts, rounding.along)
            factors = rounding.factors(x)
            read = net.once(key, lambda: net.add_elementwise(x, factors, "PROD", torch.float32))
        y = net.add_dequantize(net.add_quantize(read, scales, dtype), scales)
    stand_in = x.detach()
    net.bind(stand_in, y, Kind.FLOAT if kind is None else kind)
    return stand_in


def takes_layers(call: Call) -> bool:
    """Return whether a product's converter takes weights that are no constants."""
    found = operands_of(call)
    if found is None or found[0] != "conv_transpose":
        return True
    stride, dilation = _argument(call, 3, "stride"), _argument(call, 7, "dilation")
    if call.name == "aten::convolution":
        dilation = _argument(call, 5, "dilation")
    return not (_exceeds_one(stride) and _exceeds_one(dilation))


def _exceeds_one(sizes: Any) -> bool:
    given = sizes if isinstance(sizes, list | tuple) else [1 if sizes is None else sizes]
    return any(size != 1 for size in given)


def _multiples(x: torch.Tensor, steps: Steps) -> torch.Tensor | None:
    """Return the numbers of few bits of which a constant is the multiple by its scale.

    None where they are not those of the constant, but for the last bit: PyTorch multiplies by the
    scale, and other packages divide by its reciprocal.
    """
    data = x.detach().cpu()
    scale = steps.rounding().spread(steps.scale, data)
    if data.dtype != torch.float32 or not bool((scale > 0).all() and data.isfinite().all()):
        return None
    rounded = data / scale
    if steps.dtype == torch.int8:
        rounded = rounded.round()
        low, high = BOUNDS[steps.bits]
        if not bool(((rounded >= low) & (rounded <= high)).all()):
            return None
    result = rounded.to(steps.dtype)
    return result if torch.allclose(result.float() * scale, data, rtol=2**-22, atol=0.0) else None


def _bound(
    net: Network,
    like: torch.Tensor,
    rounded: torch.Tensor,
    scale: torch.Tensor,
    rounding: Rounding,
) -> torch.Tensor:
    """Return a tensor that stands for constants of few bits times their scale in the network."""
    # Weights that several calls share are one constant.
    key = ("rounded", id(like), scale.numpy().tobytes(), rounding)
    constant = net.once(key, lambda: net.quantized_constant(rounded, rounding.bits == "int4"))
    along = None if rounding.axis is None else rounding.axis % rounded.dim()
    if scale.dim() < 2:
        scale = scale.reshape(()) if along is None else scale.reshape(-1)
    stand_in = like.detach()
    net.bind(stand_in, net.add_dequantize(constant, scale, along), Kind.WEIGHT)
    return stand_in
