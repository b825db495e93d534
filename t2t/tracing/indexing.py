"""Indexing with numbers that are not known: 0-d integer tensors, and dynamic sizes.

torch reads the value of a 0-d tensor and takes a view at that number. A network has no numbers to
read: here the view is recorded as a gather, and a write to it as a scatter. What such a tensor
would decide about a size, as a bound of a slice, stays unknown and is refused. An index that is
computed from sizes is a slice of one element; torch would take it as it is in the example.

All this must be seen before torch takes calls apart into operators. PyTorch tells a mode of every
call of its functions and methods, also those of C. That takes a third of a trace's time, so the
mode is on only where a first trace was asked for a value. (Replacing ``torch.Tensor.__getitem__``
would show it too, but Python fills the type's slots anew with that, and tensors would count as
sequences ever after.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from t2t.errors import UnsupportedOperatorError
from t2t.sizes import is_true
from t2t.tracing.recorder import Recorder

_MASKS = (torch.bool, torch.uint8)

_PLAIN = (int, torch.SymInt, slice, type(...), type(None))

_BOUND = (
    "a bound of a slice is a tensor that depends on the input, so how much it takes is not known "
    "when the engine is built; where the length is fixed, write x.narrow(dim, start, length) or "
    "x.index_select(dim, start + torch.arange(length))"
)
_LIST = (
    "a list of indices holds a tensor that depends on the input, which PyTorch versions take as a "
    "tuple or as one tensor; write x[i, j] or x[torch.stack([i, j])]"
)
_MASK = (
    "the index is a mask that depends on the input, so how much it selects is not known when the "
    "engine is built; use torch.where"
)


class IndexingMode(TorchFunctionMode):
    """Takes the calls that would ask for the value of an index.

    Args:
        recorder: where their views are recorded.
        originals: the functions that stand behind patched ones.
    """

    def __init__(self, recorder: Recorder, originals: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._originals = originals
        self._handlers = _TensorIndices(recorder).handlers

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        handler = self._handlers.get(func)
        if handler is not None:
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        # A function of torch's in Python looks itself up by name, and finds what is patched there.
        return self._originals.get(func, func)(*args, **kwargs)


class _TensorIndices:
    """Takes the calls that would ask for the value of an index.

    Args:
        recorder: where their views are recorded.

    Attributes:
        handlers: what takes the calls of which function; it returns ``NotImplemented`` for those
            that go on as they are.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.handlers: dict[Any, Callable[..., Any]] = {
            torch.Tensor.__getitem__: self._getitem,
            torch.Tensor.__setitem__: self._setitem,
            torch.Tensor.select: self._select,
            torch.select: self._select,
            torch.Tensor.narrow: self._narrow,
            torch.narrow: self._narrow,
            torch.Tensor.select_scatter: self._select_scatter,
            torch.select_scatter: self._select_scatter,
            torch.nn.functional.one_hot: self._one_hot,
        }

    def _one_hot(self, x: torch.Tensor, num_classes: int = -1) -> Any:
        """Read how many classes there are, where sizes may depend on the data."""
        if num_classes != -1 or not self._recorder.is_active() or not self._recorder.is_traced(x):
            return NotImplemented
        torch._check(x.min().item() >= 0, lambda: "Class values must be non-negative.")
        count: Any = x.max().item() + 1
        zeros = torch.zeros(*x.shape, count, dtype=torch.int64, device=x.device)
        return zeros.scatter(-1, x.unsqueeze(-1), 1)

    def _getitem(self, x: torch.Tensor, index: Any) -> Any:
        if not self._recorder.is_active():
            return NotImplemented
        if self._holds_number(index):
            x, rest = self._split(x, index)
            return x[rest]
        items = index if isinstance(index, tuple) else (index,)
        if any(isinstance(item, torch.SymInt) for item in items) and all(
            type(item) in _PLAIN for item in items
        ):
            return _at_sizes(x, items)
        return NotImplemented

    def _setitem(self, x: torch.Tensor, index: Any, value: Any) -> Any:
        if not self._holds_number(index):
            return NotImplemented
        if isinstance(index, torch.Tensor) and index.dtype in _MASKS:
            # One truth value for the whole tensor: the only mask whose choice has a known size.
            new = torch.as_tensor(value).to(x.dtype)
            new = new[(0,) * max(0, new.ndim - x.ndim)]
            x.copy_(torch.where(index.bool(), new, x))
            return None
        if not self._recorder.is_traced(x):
            self._recorder.promote(x, "aten::index_put_")
        x, rest = self._split(x, index)
        x[rest] = value
        return None

    def _select(self, input: torch.Tensor, dim: int, index: Any) -> Any:
        if not self._is_number(index):
            return NotImplemented
        return self._recorder.view_at(input, _axis(input, dim), self._position(index))

    def _narrow(self, input: torch.Tensor, dim: int, start: Any, length: Any) -> Any:
        if not self._is_number(start):
            return NotImplemented
        places = self._position(start) + torch.arange(length, device=start.device)
        return self._recorder.view_at(input, _axis(input, dim), places)

    def _select_scatter(self, input: torch.Tensor, src: torch.Tensor, dim: int, index: Any) -> Any:
        if not self._is_number(index):
            return NotImplemented
        result = input.clone()
        self._select(result, dim, index).copy_(src)
        return result

    def _is_number(self, x: Any) -> bool:
        """Return whether an index is a 0-d tensor whose value torch would ask for."""
        return (
            isinstance(x, torch.Tensor)
            and x.ndim == 0
            and not x.is_floating_point()
            and self._recorder.is_active()
            and self._recorder.is_traced(x)
        )

    def _holds_number(self, index: Any) -> bool:
        """Return whether an index has a part whose value torch would ask for."""
        if isinstance(index, tuple | list):
            return any(self._holds_number(x) for x in index)
        if isinstance(index, slice):
            return any(self._is_number(x) for x in (index.start, index.stop, index.step))
        return self._is_number(index)

    def _split(self, x: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
        """Take the views at 0-d tensors; return them, and what is left of the index.

        torch, too, takes all views that an index asks for before it looks at its other tensors.
        """
        if isinstance(index, list):
            raise self._refusal(_LIST)
        given = index if isinstance(index, tuple) else (index,)
        parts = [self._without_lists(part) for part in given]
        ellipsis = next((n for n, part in enumerate(parts) if part is Ellipsis), len(parts))
        behind = sum(_dimensions(part) for part in parts[ellipsis:])
        axis, rest = 0, []
        for number, part in enumerate(parts):
            if number == ellipsis:
                axis = x.ndim - behind
            if not self._is_number(part):
                rest.append(part)
                axis += _dimensions(part)
                continue
            if axis >= x.ndim:
                raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
            x = self._recorder.view_at(x, axis, self._position(part))
        return x, tuple(rest)

    def _without_lists(self, part: Any) -> Any:
        """Return one part of an index, as a tensor where it is a list with traced numbers."""
        if isinstance(part, slice) and self._holds_number(part):
            raise self._refusal(_BOUND)
        if isinstance(part, list | tuple) and self._holds_number(part):
            return _stacked(part)
        return part

    def _position(self, index: torch.Tensor) -> torch.Tensor:
        if index.dtype in _MASKS:
            raise self._refusal(_MASK)
        return index.long()

    def _refusal(self, reason: str) -> Exception:
        return self._recorder.located(UnsupportedOperatorError(reason))


def _at_sizes(x: torch.Tensor, items: Sequence[Any]) -> torch.Tensor:
    """Index with slices and numbers, some of which are symbolic."""
    taken = len([item for item in items if item is not None and item is not ...])
    # The dimension of the tensor and of the result that an item stands for.
    source = place = 0
    sliced, places = list(items), []
    for position, item in enumerate(items):
        if isinstance(item, torch.SymInt):
            start: Any = item
            if not is_true(item >= 0):
                end = item + x.shape[source]
                # Older PyTorch chooses between numbers of one type only.
                start = end if is_true(item < 0) else torch.sym_ite(item >= 0, item, end)
            sliced[position] = slice(start, start + 1)
            places.append(place)
        dims = x.ndim - taken if item is ... else 1
        source += 0 if item is None else dims
        place += 0 if type(item) is int else dims
    result = x[tuple(sliced)]
    for place in reversed(places):
        result = result.select(place, 0)
    return result


def _axis(x: torch.Tensor, dim: int) -> int:
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(f"dimension {dim} is out of range for a tensor of dimension {x.ndim}")
    return dim % x.ndim


def _stacked(numbers: Sequence[Any]) -> torch.Tensor:
    parts = [_stacked(x) if isinstance(x, list | tuple) else torch.as_tensor(x) for x in numbers]
    return torch.stack([part.long() for part in parts])


def _dimensions(part: Any) -> int:
    """Return how many dimensions of a tensor one part of an index stands for."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    if isinstance(part, torch.Tensor) and part.dtype in _MASKS:
        return part.ndim
    return 1
