"""Which value a tensor holds now: views share memory, and a write to one is seen by all.

A traced tensor is either a root, which owns its memory, or a view: an operator applied to its
parent. A write to a view makes a new value of the root, by the inverse of the view operators on
the way; a read of a tensor whose memory has been written since applies its view operators again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from t2t.errors import ConversionError, UnsupportedOperatorError
from t2t.isolation import storage_key
from t2t.registry import Converter
from t2t.tracing.graph import Value, map_tree

__all__ = ["Entry", "Memory", "Storage", "View", "version_of"]

MAYBE_SHARED = (
    "it reads a tensor that shares memory, at some sizes and not at others, with one that was "
    "written in place (after .reshape() or .contiguous() on a dynamic shape); call .clone() before "
    "the write"
)

Refresh = Callable[["View", Value], Value]
Invert = Callable[["Entry", Value, Value], Value]


@dataclass(eq=False)
class Storage:
    """Memory that several tensors share.

    Attributes:
        writes: how many writes the trace has recorded.
        counts: how many torch may have counted for them; changes of shape are counted too.
        unwritable: why it must not be written; empty where it may.
        ties: other memory that may be this one, and its writes when that was noted: whether
            ``x.reshape()`` copies may depend on a dynamic size.
    """

    writes: int = 0
    counts: int = 0
    unwritable: str = ""
    ties: list[tuple[Storage, int]] = field(default_factory=list)

    def tie(self, other: Storage) -> None:
        """Note that another memory may be this one, or not."""
        self.ties.append((other, other.writes))
        other.ties.append((self, self.writes))


@dataclass(eq=False)
class View:
    """How a view comes from its parent: output ``index`` of a call that reads ``source``.

    ``source`` stands in the arguments for the parent: `on` puts another one in its place.
    """

    name: str
    function: Callable[..., Any]
    converter: Converter | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: Any
    index: int = 0

    def on(self, parent: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the arguments of the call for another parent."""
        args, kwargs = map_tree(
            lambda x: parent if x is self.source else x, (self.args, self.kwargs)
        )
        return args, kwargs


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
            once its operator has returned to the model; those made inside a formula never do.
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
        inherited = _versions(self.value) if parent is None else [version_of(parent.tensor)]
        self.versions = (version_of(self.tensor), *inherited)
        self.counts = self.storage.counts
        self.memory = storage_key(self.tensor)

    def has_known_place(self) -> bool:
        """Return whether it lies where torch says: not in a view at a traced index."""
        entry: Entry | None = self
        while entry is not None and entry.view is not None:
            if entry.view.name.startswith("aten::index."):
                return False
            entry = entry.parent
        return True

    def explained(self) -> bool:
        """Say whether torch's count has moved by recorded writes only."""
        version = version_of(self.tensor)
        recorded = self.storage.counts - self.counts
        known = any(before <= version <= before + recorded for before in self.versions)
        self.versions, self.counts = (version,), self.storage.counts
        return known and self.memory == storage_key(self.tensor)


def _versions(value: Value) -> list[int]:
    """Count the writes to the constants that a value may be a view of, as ``buffer[:, :n]`` is."""
    inputs = () if value.call is None else value.call.inputs()
    return [x.version for x in inputs if not isinstance(x.tensor, FakeTensor)]


class Memory:
    """The map from tensors to values.

    Args:
        refresh: applies a view's operator to a new value of its parent.
        invert: gives the parent's value after a view of it was overwritten.
    """

    def __init__(self, refresh: Refresh, invert: Invert) -> None:
        self._entries: dict[int, Entry] = {}
        self._refresh = refresh
        self._invert = invert

    def find(self, tensor: torch.Tensor) -> Entry | None:
        """Give what is known of a tensor."""
        return self._entries.get(id(tensor))

    def add_root(
        self, tensor: torch.Tensor, value: Value, fake: torch.Tensor | None = None
    ) -> None:
        """Note a tensor that owns its memory."""
        self._put(Entry(tensor, tensor if fake is None else fake, Storage(), value, 0))

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
        """Give the tensor's value now.

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
            entry.value = self._refresh(entry.view, self.read(entry.parent))
            entry.writes = entry.storage.writes
        return entry.value

    def write(self, entry: Entry, value: Value) -> None:
        """Let a tensor, and with it all tensors that share its memory, have a new value."""
        if entry.parent is None:
            entry.storage.writes += 1
            entry.storage.counts += 1
        else:
            base = self.read(entry.parent)
            self.write(entry.parent, self._invert(entry, base, value))
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
        # The entry stays what it was, for the views that were made of it, under another name; its
        # tensor still tells torch's count of writes, which an alias made inside the trace does not.
        entry.fake = old
        self._entries[id(old)] = entry
        tensor = entry.tensor
        self._put(Entry(tensor, fake, entry.storage, value, entry.writes, entry, view))
        # In-place changes of shape count as writes for torch, though no element changes.
        entry.storage.counts += 1


def version_of(tensor: torch.Tensor) -> int:
    """Give torch's count of in-place writes to the tensor's memory."""
    return 0 if tensor.is_inference() else tensor._version
