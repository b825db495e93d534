"""Real tensors during a trace: they are constants, unless a traced value is written into one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from t2t.errors import UnsupportedOperatorError
from t2t.precision import Cast, Kind, Operand, after_cast, promoted
from t2t.tracing.aliasing import View, storage_key, version_of
from t2t.tracing.graph import Value, tree_leaves

__all__ = ["Constants"]

# Operators that write a batch norm's running statistics.
STATISTICS = ("aten::_native_batch_norm_legit", "aten::_batch_norm_with_update")

# Buffers that weigh activations as parameters do: those of batch norms, also of frozen ones.
WEIGHTS = ("weight", "bias", "running_mean", "running_var")

NOT_UPDATED = (
    "a batch norm is in training mode: the network normalizes by the statistics of each batch, as "
    "the module does, but does not update the running ones; call .eval() on the module to use those"
)

MakeView = Callable[[torch.Tensor], View]
"""Tells how a tensor comes from its parent."""


class Constants:
    """Keeps the values of real tensors as they were when an operator read them.

    Args:
        state: the module's parameters and buffers, by name; a trace leaves them as they are.
    """

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self.promoted: set[int] = set()
        self._state: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in state.items():
            self._state.setdefault(storage_key(tensor), []).append((name, tensor))
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._values: dict[int, tuple[Value, object]] = {}
        self._kept: list[torch.Tensor] = []
        self._readers: dict[int, list[tuple[int, Value]]] = {}
        self._views: dict[int, list[tuple[torch.Tensor, torch.Tensor, MakeView]]] = {}
        # Memory that the forward pass made; all other outlives it, as a cache or a counter does.
        self._made: set[int] = set()
        self._unknown: set[int] = set()
        self._weights = {
            storage_key(tensor)
            for name, tensor in state.items()
            if isinstance(tensor, torch.nn.Parameter) or name.rpartition(".")[2] in WEIGHTS
        }
        # Of tensors made of weights or by casts; what others are, `kind` sees.
        self._kinds: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._casts: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def is_promoted(self, tensor: torch.Tensor) -> bool:
        """Say whether a traced value was written into the tensor's memory."""
        return bool(self.promoted) and storage_key(tensor) in self.promoted

    def value(self, tensor: torch.Tensor) -> Value:
        """Give the constant value of a real tensor."""
        key = storage_key(tensor)
        layout = _layout(tensor)
        known = self._values.get(id(tensor))
        if known is None or known[1] != layout:
            with torch._C._DisableTorchDispatch():
                value = Value(tensor.detach(), version=version_of(tensor), kind=self.kind(tensor))
            known = self._values[id(tensor)] = (value, layout)
            # The tensor is kept, so that its id stays its own.
            self._kept.append(tensor)
            self._readers.setdefault(key, []).append((id(tensor), value))
        return known[0]

    def before_write(self, target: torch.Tensor) -> None:
        """Keep what a real tensor holds, as it is about to be written in place.

        Recorded calls must go on reading the old data, and the module's own tensors get theirs
        back after the trace.
        """
        key = storage_key(target)
        self._detach_readers(key)
        if key not in self._made and key not in self._saved:
            # All of the memory: the next write may go through another view.
            size = target.untyped_storage().nbytes() // target.element_size()
            whole = target.detach().as_strided((size,), (1,), 0)
            self._saved[key] = (whole, whole.clone())

    def _detach_readers(self, key: int) -> None:
        for number, value in self._readers.pop(key, []):
            self._values.pop(number, None)
            value.tensor = value.tensor.clone()

    def restore(self) -> None:
        """Give the module's tensors, and all others that outlive the trace, the data they had."""
        with torch.no_grad():
            for key, (memory, data) in self._saved.items():
                self._detach_readers(key)
                memory.copy_(data)

    def kind(self, tensor: torch.Tensor) -> Kind:
        """Return what a real tensor counts as under ``fp16=True``."""
        if tensor in self._kinds:
            return self._kinds[tensor]  # type: ignore[no-any-return]
        own = isinstance(tensor, torch.nn.Parameter) or storage_key(tensor) in self._weights
        return Kind.WEIGHT if own else Kind.FLOAT

    def note_kinds(self, outputs: object, inputs: Iterable[torch.Tensor]) -> None:
        """Remember what an operator has made of weights, or of tensors that the model cast."""
        kind = promoted(Operand(self.kind(x), x.dim()) for x in inputs if x.is_floating_point())
        for x in tree_leaves(outputs):
            if isinstance(x, torch.Tensor) and x.is_floating_point() and kind is not self.kind(x):
                self._kinds[x] = kind

    def cast(self, tensor: torch.Tensor, cast: Cast) -> torch.Tensor:
        """Return an alias of a real tensor that stands for it after a cast to float32."""
        known = cast.like is not None and not isinstance(cast.like, FakeTensor)
        like = self.kind(cast.like) if known else None
        kind = after_cast(self.kind(tensor), cast, like)
        if kind is self.kind(tensor):
            return tensor
        # One for all, so that a weight that is cast in each of many calls is one constant.
        if tensor not in self._casts:
            self._casts[tensor] = {}
        aliases: dict[object, torch.Tensor] = self._casts[tensor]
        key = (kind, *_layout(tensor))
        if key not in aliases:
            aliases[key] = torch.ops.aten.alias.default(tensor)
            self._kinds[aliases[key]] = kind
        return aliases[key]

    def note_made(self, outputs: object, inputs: Iterable[torch.Tensor]) -> None:
        """Remember that an operator has made tensors, in memory of their own."""
        given = {storage_key(x) for x in inputs}
        tensors = (x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor))
        self._made |= {storage_key(x) for x in tensors} - given

    def note_turned(self, tensor: torch.Tensor) -> None:
        """Remember that a real tensor has changed its shape in place: its views no longer tell."""
        key = storage_key(tensor)
        if self._views.get(key):
            self._unknown.add(key)

    def note_view(self, outputs: object, parent: torch.Tensor, view: MakeView) -> None:
        """Remember that real tensors are views of another one; what views, is asked when needed."""
        chain = self._views.setdefault(storage_key(parent), [])
        tensors = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)]
        chain += [(x, parent, view) for x in tensors]

    def promote(
        self, target: torch.Tensor, operator: str
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor | None, View | None]]:
        """Let the memory of a real tensor hold traced values from now on.

        Gives the root, then all its views, each with its parent and how it comes from it. The
        running statistics of a batch norm may be written, as its results do not depend on them.

        Raises:
            UnsupportedOperatorError: the tensor outlives the forward pass, as a parameter or buffer
                does; an engine keeps no state.
        """
        key = storage_key(target)
        if key in self._state and operator in STATISTICS:
            warnings.warn(NOT_UPDATED, stacklevel=2)
        elif key in self._state:
            raise UnsupportedOperatorError(
                f"the model writes what depends on its input into {self._state[key][0][0]!r}, a "
                "parameter or buffer; an engine keeps no state between calls: return it as an "
                "output instead"
            )
        elif key not in self._made:
            raise UnsupportedOperatorError(
                "the model writes what depends on its input into a tensor that was made before the "
                "forward pass; an engine keeps no state between calls: return it as an output "
                "instead"
            )
        views = self._views.pop(key, [])
        made = {id(tensor) for tensor, _, _ in views}
        roots = [parent for _, parent, _ in views if id(parent) not in made] or [target]
        several = len({id(root) for root in roots}) > 1 or key in self._unknown
        if several or id(target) not in {*made, id(roots[0])}:
            raise UnsupportedOperatorError(
                "the model writes what depends on its input into memory that several tensors "
                "share; write to the tensor that was created first"
            )
        self.before_write(roots[0])
        self.promoted.add(key)
        yield roots[0], None, None
        for tensor, parent, view in views:
            yield tensor, parent, view(tensor)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what may change without an operator on the elements: x.data = y, x.t_()."""
    return storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
