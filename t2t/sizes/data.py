"""Sizes that depend on the data: each is an unknown number within a range that is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from t2t.sizes.terms import bounds, value_of
from t2t.torch_internals import OpOverload, schema_of, writes_counted

if TYPE_CHECKING:
    from t2t.sizes.fakes import SizedFakeMode

aten = torch.ops.aten


def data_sized(
    mode: SizedFakeMode, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the fake result of an operator whose sizes depend on the data.

    NotImplemented for other operators, and where nothing bounds the size.
    """
    if not isinstance(operator, OpOverload):
        return NotImplemented
    rule = _RULES.get(schema_of(operator).name)
    return NotImplemented if rule is None else rule(mode, operator, *args, **kwargs)


def _size(mode: SizedFakeMode, operator: OpOverload, numbers: Sequence[Any], low: int = 0) -> Any:
    """Return a new size of at most a product of others; NotImplemented without such a bound."""
    most = [bounds(value_of(number)) for number in numbers]
    high = math.prod(high for _, high in most)
    if not math.isfinite(high):
        return NotImplemented
    filled = all(low > 0 for low, _ in most)
    assert mode.new_size is not None
    return mode.new_size(schema_of(operator).name, low if filled else 0, int(high))


def _count(mode: SizedFakeMode, operator: OpOverload, mask: Any) -> Any:
    """Return how many elements of a tensor are true: the same size for each use of it."""
    known = mode.counts.get(id(mask))
    if known is None or known[1] != writes_counted(mask):
        count = _size(mode, operator, mask.shape)
        if count is NotImplemented:
            return count
        # The tensor is kept, so that its id stays its own.
        known = mode.counts[id(mask)] = (mask, writes_counted(mask), count)
    return known[2]


def _nonzero(mode: SizedFakeMode, operator: OpOverload, self: Any) -> Any:
    if operator is not aten.nonzero.default:
        return NotImplemented
    count = _count(mode, operator, self)
    return count if count is NotImplemented else self.new_empty((count, self.ndim), dtype=_LONG)


def _masked_select(mode: SizedFakeMode, operator: OpOverload, self: Any, mask: Any) -> Any:
    both = torch.broadcast_tensors(self, mask)  # type: ignore[no-untyped-call]
    same = [*map(value_of, mask.shape)] == [*map(value_of, both[0].shape)]
    count = _count(mode, operator, mask) if same else _size(mode, operator, both[0].shape)
    return count if count is NotImplemented else self.new_empty((count,))


def _index(mode: SizedFakeMode, operator: OpOverload, self: Any, indices: Sequence[Any]) -> Any:
    """Take the places of a mask instead of the mask."""
    masks = [x for x in indices if x is not None and x.dtype in (torch.bool, torch.uint8)]
    if operator is not aten.index.Tensor or not masks:
        return NotImplemented
    places: list[Any] = []
    for x in indices:
        if not any(x is mask for mask in masks):
            places.append(x)
            continue
        count = _count(mode, operator, x)
        if count is NotImplemented:
            return count
        places += [self.new_empty((count,), dtype=_LONG) for _ in range(x.ndim)]
    return aten.index.Tensor(self, places)


def _unique(
    mode: SizedFakeMode,
    operator: OpOverload,
    self: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    del sorted
    return _distinct(mode, operator, self, self.shape, return_inverse, return_counts)


def _unique_consecutive(
    mode: SizedFakeMode,
    operator: OpOverload,
    self: Any,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    if dim is not None:
        return _unique_dim(mode, operator, self, dim, True, return_inverse, return_counts)
    return _distinct(mode, operator, self, self.shape, return_inverse, return_counts)


def _unique_dim(
    mode: SizedFakeMode,
    operator: OpOverload,
    self: Any,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    del sorted, return_inverse, return_counts
    places = self.shape[dim]
    count = _size(mode, operator, [places], low=1)
    if count is NotImplemented:
        return count
    shape = [*self.shape]
    shape[dim] = count
    # PyTorch gives all three, whatever is asked for.
    return (
        self.new_empty(shape),
        self.new_empty((places,), dtype=_LONG),
        self.new_empty((count,), dtype=_LONG),
    )


def _distinct(
    mode: SizedFakeMode,
    operator: OpOverload,
    self: Any,
    sizes: Sequence[Any],
    return_inverse: bool,
    return_counts: bool,
) -> Any:
    """Return values, for each element the place of its value, and how often each occurs."""
    count = _size(mode, operator, sizes, low=1)
    if count is NotImplemented:
        return count
    return (
        self.new_empty((count,)),
        self.new_empty(self.shape if return_inverse else (0,), dtype=_LONG),
        self.new_empty((count,) if return_counts else (0,), dtype=_LONG),
    )


def _nms(
    mode: SizedFakeMode, operator: OpOverload, dets: Any, scores: Any, iou_threshold: float
) -> Any:
    del scores, iou_threshold
    count = _size(mode, operator, dets.shape[:1], low=1)
    return count if count is NotImplemented else dets.new_empty((count,), dtype=_LONG)


def _bincount(
    mode: SizedFakeMode, operator: OpOverload, self: Any, weights: Any = None, minlength: Any = 0
) -> Any:
    """Return as many as the largest number asks for, of which the data alone tells."""
    assert mode.new_size is not None
    least = bounds(value_of(minlength))[0]
    dtype = _LONG
    if weights is not None:
        dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    count = mode.new_size(schema_of(operator).name, int(least), _MOST)
    return self.new_empty((count,), dtype=dtype)


def _repeat_interleave(
    mode: SizedFakeMode, operator: OpOverload, repeats: Any, *, output_size: Any = None
) -> Any:
    if operator is not aten.repeat_interleave.Tensor or output_size is not None:
        return NotImplemented
    assert mode.new_size is not None
    return repeats.new_empty((mode.new_size(schema_of(operator).name, 0, _MOST),))


def _ctc_loss(
    mode: SizedFakeMode,
    operator: OpOverload,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    *options: Any,
    **more: Any,
) -> Any:
    """Return the losses, and what they are computed by: two places for each target and one."""
    del input_lengths, options, more
    steps, batch, _ = log_probs.shape
    if isinstance(target_lengths, torch.Tensor):
        longest = _size(mode, operator, targets.shape[-1:])
    else:
        longest = max(target_lengths, default=0)
    if longest is NotImplemented:
        return longest
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * longest + 1))


_LONG = torch.int64
_MOST = 1 << 40
"""No memory holds a tensor of more elements."""

_RULES: dict[str, Callable[..., Any]] = {
    "aten::_ctc_loss": _ctc_loss,
    "aten::_unique2": _unique,
    "aten::bincount": _bincount,
    "aten::index": _index,
    "aten::masked_select": _masked_select,
    "aten::nonzero": _nonzero,
    "aten::repeat_interleave": _repeat_interleave,
    "aten::unique_dim": _unique_dim,
    "aten::unique_consecutive": _unique_consecutive,
    "torchvision::nms": _nms,
}
