"""Running a module without leaving a trace of it: data, torch's modes, random numbers, Ctrl-C."""

from __future__ import annotations

import functools
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from t2t.float32 import default_dtype, float32_precision
from t2t.isolation.snapshot import Snapshot, storage_key, without_modes
from t2t.torch_internals import DispatchMode, HigherOrderOperator, schema_of


class SavedMemory:
    """The data of tensors that are written in place, as they were before the first write."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def save(self, tensor: torch.Tensor) -> None:
        """Keep a copy of all memory behind a tensor, once."""
        key = storage_key(tensor)
        if key in self._saved or not tensor.untyped_storage().nbytes():
            return
        with without_modes():
            # All of it: the next write may go through another view.
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            whole = tensor.detach().as_strided((size,), (1,), 0)
            self._saved[key] = (whole, whole.clone())

    def __iter__(self) -> Iterator[int]:
        """Iterate over the `storage_key` of all memory that was saved."""
        return iter(self._saved)

    def changed(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return all memory whose data is not what it was, and that data, as flat tensors."""
        with without_modes():
            return [pair for pair in self._saved.values() if not _equal_bits(*pair)]

    def restore(self) -> None:
        """Write the data back."""
        # Tensors that were made in inference mode may only be written there.
        with without_modes(), torch.inference_mode():
            # Backwards: several tensors may show one numpy array, whose first copy is the oldest.
            for memory, data in reversed(self._saved.values()):
                memory.copy_(data)


def _equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


class _WriteGuard(DispatchMode):
    """Saves the data of what an operator is about to write in place, unless it is of this pass."""

    def __init__(self, memory: SavedMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        # Where operators have put their results. No memory that was there before lies there.
        self._new: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            # The functions that these take write to nothing.
            return func(*args, **kwargs)
        for index, name in _written(func):
            given = args[index] if index < len(args) else kwargs.get(name)
            for x in given if isinstance(given, list | tuple) else [given]:
                if isinstance(x, torch.Tensor) and _data(x) not in self._new:
                    self._memory.save(x)
        output = func(*args, **kwargs)
        if _makes_memory(func):
            # Some return their input as it is; tensors that wrap others may return those.
            read = _tensors(*args, *kwargs.values())
            if all(type(x) in _PLAIN for x in read):
                self._new |= {_data(x) for x in _tensors(output)} - {_data(x) for x in read} - {0}
        return output


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _data(x: torch.Tensor) -> int:
    """Return where the memory of a plain tensor begins; 0 of others."""
    plain = type(x) in _PLAIN and x.layout == torch.strided
    return x.untyped_storage().data_ptr() if plain else 0


def _tensors(*values: Any) -> list[torch.Tensor]:
    """Return the tensors among values and lists of them."""
    lists = (x if isinstance(x, list | tuple) else (x,) for x in values)
    return [x for some in lists for x in some if isinstance(x, torch.Tensor)]


@functools.cache
def _makes_memory(operator: Any) -> bool:
    """Return whether the results of an operator of PyTorch's are views of nothing."""
    schema = schema_of(operator)
    return schema.name.startswith("aten::") and not any(x.alias_info for x in schema.returns)


@functools.cache
def _written(operator: Any) -> list[tuple[int, str]]:
    """Return place and name of the arguments that an operator writes to."""
    return [
        (index, argument.name)
        for index, argument in enumerate(schema_of(operator).arguments)
        # aten::native_batch_norm and its like do not declare that they write these.
        if argument.name in ("running_mean", "running_var")
        or (argument.alias_info is not None and argument.alias_info.is_write)
    ]


# -- torch and Python ----------------------------------------------------------------------------


@contextmanager
def preserved_torch_state() -> Iterator[None]:
    """Restore random number generators and the modes of torch that a forward pass may set."""
    from torch.backends import cudnn

    python, numpy_state, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    switches: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (default_dtype.get, default_dtype.put),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        (float32_precision.get, float32_precision.put),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (lambda: cudnn.benchmark, functools.partial(setattr, cudnn, "benchmark")),
        (lambda: cudnn.enabled, functools.partial(setattr, cudnn, "enabled")),
    ]
    for device in ("cpu", "cuda"):
        switches.append(
            (
                functools.partial(torch.is_autocast_enabled, device),
                functools.partial(torch.set_autocast_enabled, device),
            )
        )
    before = [read() for read, _ in switches]
    # What autocast has cast already may belong to an autograd graph of the user's.
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        for (read, write), value in zip(switches, before, strict=True):
            if read() != value:
                write(value)
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        # A model may switch the cache on; what was cast during the pass may be fake.
        torch.clear_autocast_cache()


@contextmanager
def eager() -> Iterator[None]:
    """Let compiled modules and functions run as they were written, in this thread."""
    if "torch._dynamo" not in sys.modules:
        yield  # nothing can be compiled yet
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def preserved(module: Any) -> Iterator[Snapshot]:
    """Leave everything as it was, though a module runs for real inside the ``with`` block.

    Parameters, buffers, attributes, hooks, caches, random number generators and torch's modes are
    put back, also after an exception or Ctrl-C.
    """
    with uninterrupted() as interrupts, ExitStack() as stack:
        memory = SavedMemory()
        stack.enter_context(preserved_torch_state())
        snapshot = Snapshot(module)
        for tensor in snapshot.tensors():
            # Buffers may be written by numpy, which no operator tells; they are small.
            if not isinstance(tensor, torch.nn.Parameter):
                memory.save(tensor)
        stack.callback(memory.restore)
        stack.callback(snapshot.restore)
        # A compiled module would compile the guard's Python too.
        stack.enter_context(eager())
        stack.enter_context(_WriteGuard(memory))
        with interrupts.allowed():
            yield snapshot


# -- Ctrl-C --------------------------------------------------------------------------------------


class Interrupts:
    """Whether Ctrl-C may interrupt now; see `uninterrupted`."""

    def __init__(self) -> None:
        self.previous: Any = None
        self._open = False
        self._pending: tuple[Any, ...] | None = None
        self._raised: tuple[Any, ...] | None = None

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let Ctrl-C interrupt inside the ``with`` block, also one that came before."""
        self._open = True
        try:
            self.raise_pending()
            yield
            # Python ignores an error while it frees an object, such as a generator that waits.
            self._pending = self._pending or self._raised
        finally:
            self._open = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold Ctrl-C back inside the ``with`` block, where a half-done step cannot be undone."""
        before, self._open = self._open, False
        try:
            yield
        finally:
            self._open = before
            if before:
                self.raise_pending()

    def handle(self, *args: Any) -> None:
        """Take the signal: raise now, or later."""
        self._pending = args
        if self._open:
            self.raise_pending()

    def raise_pending(self) -> None:
        """Do what the signal would have done."""
        if self._pending is not None:
            args = self._raised = self._pending
            self._pending = None
            # Once: the restoration that follows must not be interrupted in turn.
            self._open = False
            self.previous(*args)


@contextmanager
def uninterrupted() -> Iterator[Interrupts]:
    """Hold Ctrl-C back, so that what was changed is put back whole; it is raised afterwards.

    Only the main thread receives signals; elsewhere, and where SIGINT is not handled in Python,
    nothing happens.
    """
    interrupts = Interrupts()
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or not callable(signal.getsignal(signal.SIGINT)):
        yield interrupts
        return
    interrupts.previous = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, interrupts.previous)
        interrupts.raise_pending()
