"""Which operands of which calls a network takes as integers times a scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from t2t.network import Network
from t2t.tracing.graph import Call, Value
from t2t.tracing.observers import Steps

__all__ = ["PRODUCTS", "Operands", "operands_of", "with_rounded_weights"]


class Operands(NamedTuple):
    """A product that TensorRT computes with integers, and where its two factors stand.

    Attributes:
        kind: "conv", "conv_transpose" or "matmul".
        places: position and name of the parameter of each factor.
    """

    kind: str
    places: tuple[tuple[int, str], tuple[int, str]]


PRODUCTS: Mapping[str, Operands] = {
    **{
        f"{owner}.{kind}{n}d": Operands(kind, ((0, "input"), (1, "weight")))
        for owner in ("torch.nn.functional", "torch")
        for kind in ("conv", "conv_transpose")
        for n in (1, 2, 3)
    },
    "aten::convolution": Operands("conv", ((0, "input"), (1, "weight"))),
    "torch.nn.functional.linear": Operands("matmul", ((0, "input"), (1, "weight"))),
    "torch.matmul": Operands("matmul", ((0, "input"), (1, "other"))),
    "torch.linalg.matmul": Operands("matmul", ((0, "input"), (1, "other"))),
    "torch.Tensor.matmul": Operands("matmul", ((0, "self"), (1, "other"))),
    "torch.Tensor.__matmul__": Operands("matmul", ((0, "self"), (1, "other"))),
    "aten::mm": Operands("matmul", ((0, "self"), (1, "mat2"))),
    "aten::bmm": Operands("matmul", ((0, "self"), (1, "mat2"))),
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


def with_rounded_weights(call: Call, net: Network) -> dict[int, torch.Tensor]:
    """Return what takes the place of weights that the model itself has rounded, by the value's id.

    Their integers and scales become layers, so that TensorRT sees what it may compute with. The
    numbers are the same to the bit.
    """
    found = operands_of(call)
    if found is None:
        return {}
    kind, (_, weight) = found
    known = isinstance(weight, Value) and weight.call is None and weight.steps is not None
    if not known or not _takes_layers(call, kind):
        return {}
    integers = _integers(weight.tensor, weight.steps)
    return (
        {} if integers is None else {id(weight): _bound(net, weight.tensor, integers, weight.steps)}
    )


def _takes_layers(call: Call, kind: str) -> bool:
    """Say whether a converter takes a kernel that is no constant."""
    if kind != "conv_transpose":
        return True
    stride, dilation = _argument(call, 3, "stride"), _argument(call, 7, "dilation")
    if call.name == "aten::convolution":
        dilation = _argument(call, 5, "dilation")
    return not (_exceeds_one(stride) and _exceeds_one(dilation))


def _exceeds_one(sizes: Any) -> bool:
    given = sizes if isinstance(sizes, list | tuple) else [1 if sizes is None else sizes]
    return any(size != 1 for size in given)


def spread(scale: torch.Tensor, axis: int | None, rank: int) -> torch.Tensor:
    """Return scales in a shape that broadcasts to a tensor of so many dimensions."""
    if axis is None:
        return scale.reshape(())
    return scale.reshape([-1 if dim == axis % rank else 1 for dim in range(rank)])


def _integers(x: torch.Tensor, steps: Steps) -> torch.Tensor | None:
    """Return the integers of which a constant is a multiple; None where it is not exactly that."""
    data = x.detach().cpu()
    scale = spread(steps.scale, steps.axis, data.dim())
    if data.dtype != torch.float32 or not bool((scale > 0).all() and data.isfinite().all()):
        return None
    integers = (data / scale).round()
    same = torch.equal(integers * scale, data) and bool((integers.abs() <= 128).all())
    if not same or bool((integers == 128).any()):
        return None
    return integers.to(torch.int8)


def _bound(net: Network, like: torch.Tensor, integers: torch.Tensor, steps: Steps) -> torch.Tensor:
    """Return a tensor that stands for integers times their scale in the network."""
    constant = net.quantized_constant(integers)
    axis = None if steps.axis is None else steps.axis % integers.dim()
    scale = steps.scale.reshape(()) if axis is None else steps.scale.reshape(-1)
    stand_in = like.detach()
    net.bind(stand_in, net.add_dequantize(constant, scale, axis))
    return stand_in
