"""The shapes that the user declares: which dimensions are dynamic, and between which bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from t2t.errors import ShapeError

__all__ = ["DynamicDimension", "InputShape", "declared_shapes"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class DynamicDimension:
    """A dynamic dimension: dimensions of one name have one size at run time."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class InputShape:
    """Smallest, usual and largest shape of one input, and its dynamic dimensions."""

    min: Shape
    opt: Shape
    max: Shape
    dynamic: Mapping[int, DynamicDimension]


def declared_shapes(
    names: Sequence[str],
    examples: Sequence[torch.Tensor],
    *,
    min_shapes: Any = None,
    opt_shapes: Any = None,
    max_shapes: Any = None,
    dynamic_shapes: Any = None,
) -> list[InputShape]:
    """Bring the ways of declaring shapes to one form.

    Args:
        names: names of the input tensors.
        examples: the example inputs.
        min_shapes: smallest shapes: one for each input in order, or by input name (others are
            static).
        opt_shapes: the shapes to optimize for, likewise; by default the examples'.
        max_shapes: largest shapes, likewise.
        dynamic_shapes: for each input, in order or by name, ``{dim: torch.export.Dim(...)}`` or
            ``{dim: (low, high)}``; None for a static input. One Dim in several places is one size.

    Raises:
        ShapeError: the declarations do not fit the examples or each other.
    """
    if dynamic_shapes is not None:
        if min_shapes is not None or max_shapes is not None:
            raise ShapeError("give dynamic_shapes, or min_shapes and max_shapes, not both")
        per_input = _by_input(names, dynamic_shapes, "dynamic_shapes")
        best = _by_input(names, opt_shapes, "opt_shapes")
        return [
            _from_dims(name, x, per_input.get(name), best.get(name))
            for name, x in zip(names, examples, strict=True)
        ]
    if (min_shapes is None) != (max_shapes is None):
        raise ShapeError("min_shapes and max_shapes are given together, or not at all")
    if opt_shapes is not None and min_shapes is None:
        raise ShapeError("opt_shapes needs min_shapes and max_shapes, or dynamic_shapes")
    low, best, high = (
        _by_input(names, shapes, what)
        for shapes, what in (
            (min_shapes, "min_shapes"), (opt_shapes, "opt_shapes"), (max_shapes, "max_shapes"),
        )
    )  # fmt: skip
    result = []
    for name, x in zip(names, examples, strict=True):
        example = tuple(x.shape)
        least, most = tuple(low.get(name, example)), tuple(high.get(name, example))
        result.append(_checked(name, example, least, tuple(best.get(name, example)), most, {}))
    return result


def _by_input(names: Sequence[str], shapes: Any, what: str) -> dict[str, Any]:
    if shapes is None:
        return {}
    if isinstance(shapes, Mapping):
        unknown = set(shapes) - set(names)
        if unknown:
            raise ShapeError(f"{what}: there is no input {sorted(unknown)[0]!r}; inputs: {names}")
        return dict(shapes)
    if len(names) == 1 and shapes and all(isinstance(size, int) for size in shapes):
        return {names[0]: shapes}
    if len(shapes) != len(names):
        raise ShapeError(f"{what} has {len(shapes)} entries, the module has inputs {list(names)}")
    return {name: shape for name, shape in zip(names, shapes, strict=True) if shape is not None}


def _from_dims(name: str, x: torch.Tensor, dims: Any, best: Any) -> InputShape:
    example = tuple(x.shape)
    low, high, labels = list(example), list(example), {}
    items = dims.items() if isinstance(dims, Mapping) else enumerate(dims or ())
    for dim, declared in items:
        if declared is None:
            continue
        if not isinstance(dim, int) or not 0 <= dim < len(example):
            raise ShapeError(f"dynamic_shapes: input {name!r} has no dimension {dim!r}")
        if isinstance(declared, tuple | list) and len(declared) == 2:
            low[dim], high[dim] = declared
            continue
        try:
            low[dim], high[dim] = int(declared.min), int(declared.max)
            labels[dim] = str(declared.__name__)
        except (AttributeError, TypeError) as error:
            raise ShapeError(
                f"dynamic_shapes: dimension {dim} of input {name!r} is {declared!r}; give "
                "torch.export.Dim(name, min=..., max=...) or (low, high)"
            ) from error
    return _checked(name, example, tuple(low), tuple(best or example), tuple(high), labels)


def _checked(
    name: str, example: Shape, low: Shape, best: Shape, high: Shape, labels: Mapping[int, str]
) -> InputShape:
    if not len(low) == len(best) == len(high) == len(example):
        raise ShapeError(f"input {name!r} has {len(example)} dimensions: {low}, {best}, {high}")
    dynamic = {}
    for dim, (least, usual, most, size) in enumerate(zip(low, best, high, example, strict=True)):
        if not 0 <= least <= most:
            raise ShapeError(f"dimension {dim} of input {name!r}: min {least}, max {most}")
        if not least <= usual <= most or not least <= size <= most:
            raise ShapeError(
                f"dimension {dim} of input {name!r}: the example's {size} and the optimum {usual} "
                f"must lie between min {least} and max {most}"
            )
        if least != most:
            dynamic[dim] = DynamicDimension(labels.get(dim, f"{name}.{dim}"), least, most)
    return InputShape(low, best, high, dynamic)
