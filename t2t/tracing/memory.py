"""Which value a tensor holds now: views share memory, and a write to one is seen by all.

A traced tensor is either a root, which owns its memory, or a view: an operator applied to its
parent. A write to a view makes a new value of the root, by the inverse of the view operators on
the way; a read of a tensor whose memory has been written since applies its view operators again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from t2t.errors import ConversionError, UnsupportedOperatorError
from t2t.isolation import storage_key
from t2t.sizes import expression, has_symbol, static_size
from t2t.torch_internals import FakeTensor, OpOverload, writes_counted
from t2t.tracing.graph import Value, map_tree
from t2t.tracing.operators import operator_info

aten = torch.ops.aten

MAYBE_SHARED = (
    "it reads a tensor that shares memory, at some sizes and not at others, with one that was "
    "written in place (after .reshape() or .contiguous() on a dynamic shape); call .clone() before "
    "the write"
)
SHARED = "a write to a view whose elements share memory (expand, unfold): call .clone() before it"
CHANGED = (
    "the function of a loop or a branch writes in place into a tensor from outside; let it return "
    "the new tensor"
)
OUTSIDE = (
    "as_strided reads memory outside the tensor that it is called on; call it on the whole tensor"
)

Apply = Callable[..., Any]
"""Records a call of a function, its first argument, on the others, in which `Value`s stand for
tensors; returns the results as `Value`s."""


@dataclass(eq=False)
class Storage:
    """Memory that several tensors share.

    Attributes:
        writes: how many writes the trace has recorded.
        counts: how many torch may have counted for them; changes of shape are counted too.
        unwritable: why it must not be written, as what a write raises.
        ties: other memory that may be this one, and its writes when that was noted: whether
            ``x.reshape()`` copies may depend on a dynamic size.
        depth: in how many functions of loops and branches it was made.
    """

    writes: int = 0
    counts: int = 0
    unwritable: UnsupportedOperatorError | None = None
    ties: list[tuple[Storage, int]] = field(default_factory=list)
    depth: int = 0

    def note_maybe_shared(self, other: Storage) -> None:
        """Note that another memory may be this one, or not."""
        self.ties.append((other, other.writes))
        other.ties.append((self, self.writes))


@dataclass(eq=False)
class View:
    """How a view comes from its parent: output ``index`` of a call that reads ``source``.

    ``source`` stands in the arguments for the parent: `on` puts another one in its place.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: Any
    index: int = 0

    @property
    def name(self) -> str:
        """What is called, as "aten::slice.Tensor"."""
        function = self.function
        if isinstance(function, OpOverload):
            return operator_info(function).name
        return function.__name__

    def on(self, parent: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call for another parent."""
        args, kwargs = map_tree(
            lambda x: parent if x is self.source else x, (self.args, self.kwargs)
        )
        return args, kwargs

    def pick(self, results: Any) -> Any:
        """Return the view among the results of the call."""
        return results[self.index] if isinstance(results, tuple | list) else results


@dataclass(eq=False)
class Entry:
    """What is known of one tensor object.

    Attributes:
        tensor: the tensor; kept, so that its id stays its own.
        fake: a fake tensor of the same shape to compute shapes with.
        value: its value after ``writes`` writes to its memory.
        made: the value that it was made with.
        versions: torch's count of writes to the tensor when it was last looked at. A new view
            starts with a count of its own and shares its parent's (a traced tensor, or a constant)
            once its operator has returned to the model; those made inside a formula never do. It
            may be looked at before: torch 2.8 detaches twice.
        counts: the storage's count at that time.
        memory: torch's number of the tensor's memory; ``x.data = y`` changes it.
    """

    tensor: torch.Tensor
    fake: torch.Tensor
    storage: Storage
    value: Value
    writes: int
    parent: Entry | None = None
    view: View | None = None
    made: Value = field(init=False)
    versions: tuple[int, ...] = field(init=False)
    counts: int = field(init=False)
    memory: int = field(init=False)

    def __post_init__(self) -> None:
        self.made = self.value
        parent = self.parent
        inherited = _versions(self.value)
        if parent is not None:
            inherited = [writes_counted(parent.tensor), *parent.versions[1:]]
        self.versions = tuple(dict.fromkeys((writes_counted(self.tensor), *inherited)))
        self.counts = self.storage.counts
        self.memory = storage_key(self.tensor)

    def has_known_offset(self) -> bool:
        """Return whether it lies where torch says: not in a view at a traced index."""
        entry: Entry | None = self
        while entry is not None and entry.view is not None:
            if entry.view.function is aten.index.Tensor:
                return False
            entry = entry.parent
        return True

    def explained(self) -> bool:
        """Return whether torch's count has moved by recorded writes only."""
        version = writes_counted(self.tensor)
        recorded = self.storage.counts - self.counts
        known = any(before <= version <= before + recorded for before in self.versions)
        if len(self.versions) == 1 or version != self.versions[0]:
            self.versions, self.counts = (version,), self.storage.counts
        return known and self.memory == storage_key(self.tensor)


def _versions(value: Value) -> list[int]:
    """Count the writes to the constants that a value may be a view of, as ``buffer[:, :n]`` is."""
    inputs = () if value.call is None else value.call.inputs()
    return [x.version for x in inputs if not isinstance(x.tensor, FakeTensor)]


class Memory:
    """The map from tensors to values.

    Args:
        apply: records a call on values.
    """

    def __init__(self, apply: Apply) -> None:
        self._entries: dict[int, Entry] = {}
        self._apply = apply
        self._depth = 0

    @contextmanager
    def body(self) -> Iterator[None]:
        """Let a function of a loop or a branch run, which others know nothing of afterwards.

        What it makes is forgotten, and so are values that it has taken of views from outside, for
        the calls that give them run in the loop or the branch only.
        """
        entries = dict(self._entries)
        values = [(entry, entry.value, entry.writes) for entry in entries.values()]
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._entries = entries
            for entry, value, writes in values:
                entry.value, entry.writes = value, writes

    def find(self, tensor: torch.Tensor) -> Entry | None:
        """Return what is known of a tensor."""
        return self._entries.get(id(tensor))

    def __getitem__(self, tensor: torch.Tensor) -> Entry:
        return self._entries[id(tensor)]

    def add_root(
        self, tensor: torch.Tensor, value: Value, fake: torch.Tensor | None = None
    ) -> None:
        """Note a tensor that owns its memory."""
        storage = Storage(depth=self._depth)
        self._put(Entry(tensor, tensor if fake is None else fake, storage, value, 0))

    def add_view(
        self,
        tensor: torch.Tensor,
        value: Value,
        parent: Entry,
        view: View,
        fake: torch.Tensor | None = None,
    ) -> None:
        """Note a tensor that shares its parent's memory."""
        storage = parent.storage
        fake = tensor if fake is None else fake
        self._put(Entry(tensor, fake, storage, value, storage.writes, parent, view))

    def _put(self, entry: Entry) -> None:
        self._entries[id(entry.tensor)] = entry
        self._entries[id(entry.fake)] = entry

    def read(self, entry: Entry) -> Value:
        """Return the tensor's value now.

        Raises:
            ConversionError: its memory was written by something that the trace did not see, or
                nobody knows whether it was.
        """
        if not entry.explained():
            if entry.value.call is not None and entry.value.call.problem is not None:
                # It has no value that could have changed; its use says why.
                return entry.value
            raise ConversionError(
                "a traced tensor was changed in place by code that t2t cannot follow; "
                "use an operation that returns a new tensor there"
            )
        if any(other.writes != writes for other, writes in entry.storage.ties):
            raise UnsupportedOperatorError(MAYBE_SHARED)
        if entry.writes != entry.storage.writes:
            assert entry.parent is not None
            assert entry.view is not None
            entry.value = self.view(entry.view, self.read(entry.parent))
            entry.writes = entry.storage.writes
        return entry.value

    def view(self, view: View, parent: Value) -> Value:
        """Return the value of a view of a value."""
        args, kwargs = view.on(parent)
        function = view.function
        if function in GROUPING:
            # A value that was written may have other strides than the tensor had.
            function, args = aten.reshape.default, args[:2]
        if function is aten.view_as_complex.default:
            args = (_contiguous(self._apply, *args),)
        value: Value = view.pick(self._apply(function, *args, **kwargs))
        return value

    def write(self, entry: Entry, value: Value) -> None:
        """Let a tensor, and with it all tensors that share its memory, have a new value.

        Raises:
            UnsupportedOperatorError: the memory cannot be written.
        """
        if entry.storage.depth < self._depth:
            raise UnsupportedOperatorError(CHANGED)
        if entry.storage.unwritable is not None:
            raise entry.storage.unwritable
        if entry.parent is None:
            entry.storage.writes += 1
            entry.storage.counts += 1
        else:
            base = self.read(entry.parent)
            self.write(entry.parent, _overwritten(self._apply, entry, base, value))
        entry.value = value
        entry.writes = entry.storage.writes

    def change_metadata(
        self, entry: Entry, old: torch.Tensor, fake: torch.Tensor, value: Value, view: View
    ) -> None:
        """Let a tensor become a view of what it was, after ``transpose_`` or ``squeeze_``.

        Args:
            entry: the tensor's entry.
            old: a fake tensor as it was before the change.
            fake: a fake tensor as it is now; the tensor itself if it is one.
            value: its value after the change.
            view: the change, as a view of ``old``.
        """
        if entry.storage.depth < self._depth:
            raise UnsupportedOperatorError(CHANGED)
        # The entry stays what it was, for the views that were made of it, under another name; its
        # tensor still tells torch's count of writes, which an alias made inside the trace does not.
        entry.fake = old
        self._entries[id(old)] = entry
        tensor = entry.tensor
        self._put(Entry(tensor, fake, entry.storage, value, entry.writes, entry, view))
        # In-place changes of shape count as writes for torch, though no element changes.
        entry.storage.counts += 1


# -- writing through a view ------------------------------------------------------------------------


def _overwritten(apply: Apply, entry: Entry, base: Value, new: Value) -> Value:
    """Return the parent's value after the view ``entry`` was overwritten with ``new``.

    Args:
        apply: records a call on values.
        entry: the view.
        base: its parent's value before.
        new: the view's value after.
    """
    view = entry.view
    assert view is not None
    if view.function is aten.view_as_complex.default:
        parts: Value = apply(aten.view_as_real.default, new)
        return parts
    if view.function is aten.view_as_real.default:
        paired: Value = apply(aten.view_as_complex.default, _contiguous(apply, new))
        return paired
    if new.tensor.dtype != base.tensor.dtype:
        raise UnsupportedOperatorError(f"a write through {view.name}, a view of another dtype")
    name = view.name.partition(".")[0]
    if name in _SAME_ELEMENTS:
        value: Value = apply(aten.reshape.default, new, list(base.tensor.shape))
        return value
    if name in _INVERSES:
        inverse = _INVERSES[name]
        result: Value = inverse(apply, base, new, view.index, *view.args[1:], **view.kwargs)
        return result
    return _overwritten_by_number(apply, entry, base, new)


def _contiguous(apply: Apply, value: Value) -> Value:
    """Return a value with strides of which complex numbers can be made."""
    copy: Value = apply(aten.clone.default, value, memory_format=torch.contiguous_format)
    return copy


GROUPING = (aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
"""Views that ask for strides which fit, and show the same elements as a reshape."""

# Views that only group the same elements, in the same order, into other dimensions.
_SAME_ELEMENTS = frozenset(
    f"aten::{name}"
    for name in ("view", "_unsafe_view", "reshape", "alias", "detach", "squeeze", "unsqueeze",
                 "flatten", "_reshape_alias", "view_as", "unflatten")
)  # fmt: skip


def _slice(
    apply: Apply, base: Value, new: Value, _index: int, dim: int = 0, start: Any = None,
    end: Any = None, step: int = 1,
) -> Any:  # fmt: skip
    return apply(aten.slice_scatter.default, base, new, dim, start, end, step)


def _select(apply: Apply, base: Value, new: Value, _index: int, dim: int, index: int) -> Any:
    return apply(aten.select_scatter.default, base, new, dim, index)


def _transpose(apply: Apply, _base: Value, new: Value, _index: int, dim0: int, dim1: int) -> Any:
    return apply(aten.transpose.int, new, dim0, dim1)


def _t(apply: Apply, _base: Value, new: Value, _index: int) -> Any:
    return apply(aten.t.default, new)


def _permute(apply: Apply, _base: Value, new: Value, _index: int, dims: list[int]) -> Any:
    rank = len(dims)
    inverse = sorted(range(rank), key=lambda axis: dims[axis] % rank)
    return apply(aten.permute.default, new, inverse)


def _split(apply: Apply, base: Value, new: Value, index: int, sizes: Any, dim: int = 0) -> Any:
    start = sum(sizes[:index]) if isinstance(sizes, list | tuple) else sizes * index
    return apply(aten.slice_scatter.default, base, new, dim, start, start + new.tensor.shape[dim])


def _unbind(apply: Apply, base: Value, new: Value, index: int, dim: int = 0) -> Any:
    return apply(aten.select_scatter.default, base, new, dim, index)


def _expand(
    apply: Apply, base: Value, new: Value, _index: int, size: Any, *, implicit: bool = False
) -> Any:
    del size, implicit
    if new.tensor.numel() != base.tensor.numel():
        raise UnsupportedOperatorError(SHARED)
    return apply(aten.reshape.default, new, list(base.tensor.shape))


def _index(apply: Apply, base: Value, new: Value, _index: int, indices: list[Value | None]) -> Any:
    return apply(aten.index_put.default, base, indices, new)


_INVERSES: dict[str, Callable[..., Any]] = {
    "aten::index": _index,
    "aten::slice": _slice,
    "aten::select": _select,
    "aten::transpose": _transpose,
    "aten::t": _t,
    "aten::permute": _permute,
    "aten::split": _split,
    "aten::split_with_sizes": _split,
    "aten::unbind": _unbind,
    "aten::expand": _expand,
}


def _overwritten_by_number(apply: Apply, entry: Entry, base: Value, new: Value) -> Value:
    """Overwrite elements whose numbers the view's operator tells, applied to a tensor of them."""
    view, parent = entry.view, entry.parent
    assert view is not None
    assert parent is not None
    shape = parent.fake.shape
    if has_symbol(tuple(shape)) or has_symbol(tuple(entry.fake.shape)):
        raise UnsupportedOperatorError(
            f"a write through {view.name} into a tensor of dynamic shape"
        )
    args, kwargs = map_tree(
        lambda x: x.tensor if isinstance(x, Value) else x, view.on(_numbered(parent.fake))
    )
    numbers = view.pick(view.function(*args, **kwargs))
    if numbers.numel() != numbers.unique().numel():
        raise UnsupportedOperatorError(SHARED)
    flat = apply(aten.reshape.default, base, [-1])
    index = Value(numbers.reshape(-1).clone())
    source = apply(aten.reshape.default, new, [-1])
    written = apply(aten.scatter.src, flat, 0, index, source)
    value: Value = apply(aten.reshape.default, written, list(shape))
    return value


def _numbered(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor that lies in memory as ``x`` does and holds its elements' numbers."""
    shape = x.shape
    if any(size > 1 and not step for size, step in zip(shape, x.stride(), strict=True)):
        raise UnsupportedOperatorError(SHARED)
    laid = torch.empty_strided(shape, x.stride(), dtype=torch.int64)
    return laid.copy_(torch.arange(math.prod(shape)).reshape(shape))


# -- views of memory (as_strided) ------------------------------------------------------------------
#
# A network's tensors have no strides, and a tensor that was written has other strides in the trace
# than it had in the model; element numbers mean the same for all of them.


def view_of_elements(source: torch.Tensor, x: torch.Tensor) -> View:
    """Return a view of memory as one that takes elements of its source.

    Raises:
        UnsupportedOperatorError: the view reaches beyond ``source``, or a size is dynamic.
    """
    if _same_layout(source, x):
        return View(aten.view.default, (source, list(x.shape)), {}, source)
    if _is_windows(source, x):
        windows = (source, source.ndim - 1, x.shape[-1], x.stride(-2))
        return View(aten.unfold.default, windows, {}, source)
    numbers = _element_numbers(source, x)
    if numbers.numel() == source.numel() and bool((numbers.reshape(-1).diff() == 1).all()):
        return View(aten.reshape.default, (source, list(x.shape)), {}, source)
    return View(aten.take.default, (source, numbers), {}, source)


def may_be_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two shapes have no plain sizes that differ."""
    return len(a) == len(b) and all(
        static_size(x) is None or static_size(y) is None or static_size(x) == static_size(y)
        for x, y in zip(a, b, strict=True)
    )


def _same_layout(x: torch.Tensor, view: torch.Tensor) -> bool:
    """Return whether a view is its tensor as it is; sizes and strides may be dynamic."""
    strides = zip(x.stride(), view.stride(), x.shape, strict=False)
    return all(
        expression(a) == expression(b)
        for a, b in (
            (x.ndim, view.ndim),
            *zip(x.shape, view.shape, strict=False),
            # There is no step along one element.
            *((step, other) for step, other, size in strides if static_size(size) != 1),
            (x.storage_offset(), view.storage_offset()),
        )
    )


def _is_windows(x: torch.Tensor, view: torch.Tensor) -> bool:
    """Return whether a view shows all windows of one size along the last dimension, as STFT does.

    Sizes and strides may be dynamic; the size of the windows and their distance may not.
    """
    if view.ndim != x.ndim + 1 or x.ndim == 0 or static_size(view.shape[-2]) == 0:
        return False
    size, step = static_size(view.shape[-1]), static_size(view.stride(-2))
    if not size or not step:
        return False
    pairs = (
        *zip(x.shape[:-1], view.shape[:-2], strict=True),
        *zip(x.stride()[:-1], view.stride()[:-2], strict=True),
        (x.stride(-1), 1),
        (view.stride(-1), 1),
        (x.storage_offset(), view.storage_offset()),
        ((x.shape[-1] - size) // step + 1, view.shape[-2]),
    )
    return all(expression(a) == expression(b) for a, b in pairs)


def _element_numbers(x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Return which elements of ``x`` a view of its memory shows.

    Args:
        x: a tensor.
        view: another tensor of the same memory.

    Returns:
        int64 numbers in the row-major order of ``x``, in the shape of ``view``.
    """
    if has_symbol((tuple(x.shape), tuple(view.shape), view.stride(), view.storage_offset())):
        raise UnsupportedOperatorError("as_strided with sizes that are dynamic")
    if not view.numel():
        return torch.zeros(view.shape, dtype=torch.int64)
    if not x.numel():
        raise UnsupportedOperatorError(OUTSIDE)
    offsets, wanted = _offsets(x), _offsets(view)
    numbers = torch.full((max(int(offsets.max()), int(wanted.max())) + 1,), -1)
    numbers[offsets.reshape(-1)] = torch.arange(offsets.numel())
    found = numbers[wanted]
    if bool((found < 0).any()):
        raise UnsupportedOperatorError(OUTSIDE)
    return found


def _offsets(x: torch.Tensor) -> torch.Tensor:
    """Return each element's offset in the memory, in elements."""
    offset = torch.full((), int(x.storage_offset()))
    for size, stride in zip(x.shape, x.stride(), strict=True):
        offset = offset.unsqueeze(-1) + torch.arange(size) * stride
    return offset
