"""Real tensors during a trace: they are constants, unless a traced value is written into one."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from t2t.errors import StateError, UnsupportedOperatorError
from t2t.isolation import Change, SavedMemory, storage_key
from t2t.precision import Cast, Kind, Operand, after_cast, promoted
from t2t.rounding import Steps
from t2t.torch_internals import (
    DisabledDispatch,
    FakeTensor,
    OpOverload,
    has_storage,
    references_from_cpp,
    writes_counted,
)
from t2t.tracing.graph import Location, Value, tree_leaves
from t2t.tracing.memory import CHANGED, View
from t2t.tracing.observers import plain_weight, steps_of

# Operators that write a batch norm's running statistics.
STATISTICS = ("aten::_native_batch_norm_legit", "aten::_batch_norm_with_update")

# Buffers that weigh activations as parameters do: those of batch norms, also of frozen ones.
WEIGHTS = ("weight", "bias", "running_mean", "running_var")

NOT_UPDATED = (
    "a batch norm is in training mode: the network normalizes by the statistics of each batch, as "
    "the module does, but does not update the running ones; call .eval() on the module to use those"
)

MakeView = Callable[[torch.Tensor], View]
"""Returns how a tensor comes from its parent."""


class Constants:
    """Keeps the values of real tensors as they were when an operator read them.

    Args:
        state: the module's parameters and buffers, by name; a trace leaves them as they are.
    """

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self.promoted: set[int] = set()
        # Memory of tensors for which the network's own state stands, by the path of each.
        self._replaced: dict[int, str] = {}
        self._state: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in state.items():
            self._state.setdefault(storage_key(tensor), []).append((name, tensor))
        self._saved = SavedMemory()
        self._values: dict[int, tuple[Value, object]] = {}
        self._kept: list[torch.Tensor] = []
        self._readers: dict[int, list[tuple[int, Value]]] = {}
        self._views: dict[int, list[tuple[torch.Tensor, torch.Tensor, MakeView]]] = {}
        # Memory that the forward pass made; all other outlives it, as a cache or a counter does.
        self._made: set[int] = set()
        # Of that, what each function of a loop or a branch has made that runs now, innermost last.
        self._made_inside: list[set[int]] = []
        self._foreign: set[int] = set()
        self._unknown: set[int] = set()
        # Running statistics that were written with what depends on the inputs.
        self._updated: list[torch.Tensor] = []
        # Constants whose data no operator has made, each with the line that read it first.
        self._unseen: list[tuple[torch.Tensor, Location | None]] = []
        self._weights = {
            storage_key(tensor)
            for name, tensor in state.items()
            if isinstance(tensor, torch.nn.Parameter) or name.rpartition(".")[2] in WEIGHTS
        }
        # Of tensors made of weights or by casts; what others are, `kind` sees.
        self._kinds: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._casts: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._steps: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._plain: dict[int, torch.Tensor] = {}

    def replace(self, path: str, tensor: torch.Tensor) -> None:
        """Note that state of the network stands for what the module keeps in a tensor."""
        self._replaced[storage_key(tensor)] = path

    def check_read(self, tensors: Iterable[torch.Tensor]) -> None:
        """Raise where a tensor shares memory with one for which the network's state stands.

        Its data are those before the first call, and the state goes on without it.

        Raises:
            UnsupportedOperatorError: the text names what the module keeps there.
        """
        for tensor in tensors if self._replaced else ():
            path = self._replaced.get(storage_key(tensor))
            if path is not None:
                raise UnsupportedOperatorError(
                    f"the module keeps state in {path!r}, and reads its memory through another "
                    f"tensor that was made before; take views of {path!r} in forward() instead"
                )

    def is_promoted(self, tensor: torch.Tensor) -> bool:
        """Return whether a traced value was written into the tensor's memory."""
        return bool(self.promoted) and storage_key(tensor) in self.promoted

    def value(
        self, tensor: torch.Tensor, locate: Callable[[], Location | None] = lambda: None
    ) -> Value:
        """Return the constant value of a real tensor; ``locate`` tells the user's line."""
        self.check_read([tensor])
        key = storage_key(tensor)
        layout = _layout(tensor)
        known = self._values.get(id(tensor))
        if known is None or known[1] != layout:
            with DisabledDispatch():
                value = Value(
                    tensor.detach(), version=writes_counted(tensor), kind=self.kind(tensor)
                )
                value.steps = self._steps_of(tensor)
            known = self._values[id(tensor)] = (value, layout)
            # The tensor is kept, so that its id stays its own.
            self._kept.append(tensor)
            if key not in self._made and key not in self._state:
                self._unseen.append((tensor, locate()))
            self._readers.setdefault(key, []).append((id(tensor), value))
        return known[0]

    def stand_in(self, value: Value) -> torch.Tensor:
        """Return a new tensor that stands for a constant value."""
        with DisabledDispatch():
            tensor = value.tensor.detach()
        key = storage_key(tensor)
        if key not in self._state and key not in self._readers:
            # A copy of t2t's own: no tensor of this memory was read.
            self._made.add(key)
        self._values[id(tensor)] = (value, _layout(tensor))
        self._kept.append(tensor)
        self._kinds[tensor] = value.kind
        return tensor

    def before_write(self, target: torch.Tensor) -> None:
        """Keep what a real tensor holds, as it is about to be written in place.

        Recorded calls must go on reading the old data, and the module's own tensors get theirs
        back after the trace.
        """
        self.check_read([target])
        key = storage_key(target)
        self._detach_readers(key)
        if key not in self._made and not has_storage(target):
            raise UnsupportedOperatorError(
                "the model writes in place into a sparse tensor that was made before the forward "
                "pass, and that t2t cannot put back; write into a copy"
            )
        if key not in self._made or key in self._foreign:
            self._saved.save(target)

    def _detach_readers(self, key: int) -> None:
        for number, value in self._readers.pop(key, []):
            self._values.pop(number, None)
            value.tensor = value.tensor.clone()

    def restore(self) -> None:
        """Return the module's tensors, and all others that outlive the trace, the data they had."""
        for key in self._saved:
            self._detach_readers(key)
        self._saved.restore()

    def changes(self, name_of: Callable[[int], str]) -> list[Change]:
        """Return which tensors that outlive the trace hold other data now.

        Args:
            name_of: gives the name of a tensor by its `storage_key`.
        """
        updated = [(x, x) for x in self._updated]
        return [
            Change(name_of(storage_key(memory)), data, memory)
            for memory, data in [*updated, *self._saved.changed()]
        ]

    def unseen(self, is_old: Callable[[torch.Tensor], bool]) -> list[Location | None]:
        """Return where constants were read that code made which the trace has not seen.

        Compiled code, C extensions and other threads may have computed them from the inputs.
        Expects that the garbage collector was paused when its youngest generation was empty.

        Args:
            is_old: says of a tensor whether it was there before the trace.
        """
        suspects = [(x, place) for x, place in self._unseen if not is_old(x)]
        if not suspects:
            return []
        young = {id(x) for x in gc.get_objects(generation=0)}
        # What C++ holds besides, as TorchScript its constants, is older than its Python object.
        return [
            place
            for x, place in suspects
            if id(x) in young
            and references_from_cpp(x) == 1
            # A new view of a tensor that is old.
            and all(id(y) in young for _, y, _ in self._views.get(storage_key(x), ()))
        ]

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

    def _steps_of(self, tensor: torch.Tensor) -> Steps | None:
        return self._steps[tensor] if tensor in self._steps else None  # noqa: SIM401  untyped

    def note_steps(
        self, outputs: object, operator: OpOverload | str, args: Any, kwargs: Any
    ) -> None:
        """Remember by what a call has rounded a constant, as a quantized model's weights."""
        known = self._steps_of(args[0]) if args and isinstance(args[0], torch.Tensor) else None
        first = next(iter(tree_leaves(outputs)), None)
        if isinstance(first, torch.Tensor):
            steps = steps_of(operator, args, kwargs, known, first)
            if steps is not None:
                self._steps[first] = steps

    def plain_weight(
        self,
        weight: torch.Tensor,
        linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Return the numbers of a weight that is made of other tensors, or the weight itself."""
        if id(weight) not in self._plain:
            found = plain_weight(weight, linear)
            if found is None:
                return weight
            plain, steps = found
            self._kept.append(weight)
            self._plain[id(weight)] = plain
            self._made.add(storage_key(plain))
            self._kinds[plain] = Kind.WEIGHT
            if steps is not None:
                self._steps[plain] = steps
        return self._plain[id(weight)]

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
        made = {storage_key(x) for x in tensors} - given
        self._made |= made
        for inside in self._made_inside:
            inside |= made

    @contextmanager
    def body(self) -> Iterator[None]:
        """Let a function of a loop or a branch run, which writes to nothing from outside."""
        self._made_inside.append(set())
        try:
            yield
        finally:
            self._made_inside.pop()

    def is_resizable(self, tensor: torch.Tensor) -> bool:
        """Return whether ``out=`` may resize a constant: it is empty, and of this pass alone."""
        key = storage_key(tensor)
        made = key in self._made and key not in self._state and key not in self._foreign
        return tensor.numel() == 0 and made and not self._views.get(key)

    def check_written(self, target: torch.Tensor) -> None:
        """Raise where the function of a loop or a branch writes to a constant from outside."""
        if self._made_inside and storage_key(target) not in self._made_inside[-1]:
            raise UnsupportedOperatorError(CHANGED)

    def note_foreign(self, tensor: torch.Tensor) -> None:
        """Remember a tensor that shows a buffer of Python's or numpy's."""
        key = storage_key(tensor)
        self._made.add(key)
        self._foreign.add(key)

    def note_changed_metadata(self, tensor: torch.Tensor) -> None:
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
        self, target: torch.Tensor, operator: str, *, may_be_kept: bool = False
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor | None, View | None]]:
        """Let the memory of a real tensor hold traced values from now on.

        Yields the root, then all its views, each with its parent and how it comes from it. The
        running statistics of a batch norm may be written, as its results do not depend on them.

        Args:
            target: the tensor that is about to be written.
            operator: by what.
            may_be_kept: let it also be a tensor that outlives the forward pass.

        Raises:
            UnsupportedOperatorError: the tensor outlives the forward pass, as a parameter or buffer
                does; an engine keeps no state.
        """
        key = storage_key(target)
        if key in self._state and operator in STATISTICS:
            warnings.warn(NOT_UPDATED, stacklevel=2)
            self._updated.append(target)
        elif key in self._state and not may_be_kept:
            names = [name for name, _ in self._state[key]]
            raise StateError(
                f"the model writes what depends on its input into {names[0]!r}, a parameter or a "
                "tensor that other names share; an engine keeps no such state between calls: "
                "return it as an output instead",
                names=names if len(names) == 1 else (),
            )
        elif key not in self._made and not may_be_kept:
            raise StateError(
                "the model writes what depends on its input into a tensor that was made before the "
                "forward pass; an engine keeps no such state between calls: return it as an "
                "output instead",
                key=key,
            )
        views = self._views.get(key, [])
        made = {id(tensor) for tensor, _, _ in views}
        roots = [parent for _, parent, _ in views if id(parent) not in made] or [target]
        several = len({id(root) for root in roots}) > 1 or key in self._unknown
        if several or id(target) not in {*made, id(roots[0])}:
            raise UnsupportedOperatorError(
                "the model writes what depends on its input into memory that several tensors "
                "share; write to the tensor that was created first"
            )
        self._views.pop(key, None)
        self.before_write(roots[0])
        self.promoted.add(key)
        yield roots[0], None, None
        for tensor, parent, view in views:
            yield tensor, parent, view(tensor)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what may change without an operator on the elements: x.data = y, x.t_()."""
    return storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
