"""Runs a module's forward pass once, over fake inputs, with torch patched."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import MappingProxyType
from typing import Any

import torch
from torch.backends import opt_einsum  # up to torch 2.8, nothing else imports it
from torch.utils import dlpack

from t2t import registry
from t2t.errors import GuardError, StateError, T2TError, UnsupportedOperatorError, add_note
from t2t.io import Dimension
from t2t.isolation import Interrupts, Snapshot, eager, preserved_torch_state, uninterrupted
from t2t.sizes.dynamic import DynamicSizes, Known
from t2t.sizes.fakes import StaticFakeMode
from t2t.sizes.proofs import Range
from t2t.torch_internals import (
    UnsupportedOperatorException,
    enable_python_dispatcher,
    failures_unlogged,
    sizes_of_one_are_ordinary,
)
from t2t.tracing.casts import patch_casts
from t2t.tracing.graph import Graph, map_tree, tree_leaves
from t2t.tracing.indexing import IndexingMode
from t2t.tracing.kinds import LIMITS
from t2t.tracing.locations import raised_location
from t2t.tracing.observers import observer_problem
from t2t.tracing.padding import patch_encoder
from t2t.tracing.patches import TRACE_LOCK, patch
from t2t.tracing.recorder import Recorder
from t2t.tracing.state import Places
from t2t.tracing.symbolic import patch_numbers
from t2t.tracing.tracer import NUMBERS, Tracer, ValueNeeded

UNHASHABLE = (
    "a dynamic size is the key of a dict, a set or functools.lru_cache, which take plain numbers; "
    "compute what is kept there in forward, or declare the size static"
)

ONE = (
    "{error}. That is for all declared sizes; in the example, where {assumed}, it may fit: declare "
    "the dimension static, or as the Dim of the one that it is broadcast to"
)

READ = (
    "the model reads a number from a tensor (.item()), and does with it what only plain ones can: "
    "{error}; compute with the tensor"
)

_GRADIENT = (
    "the model computes a gradient in its forward pass (torch.autograd.grad, backward), which a "
    "network cannot contain; with partial=True the module that does stays in PyTorch"
)

# What torch's own code says where it looks for what only real tensors have and no mode sees it.
_LIMITS = {
    "its data is not allocated yet": NUMBERS,
    "unsupported device typemeta": (
        "the model lets a tensor of its own have the data of one that depends on its input "
        "(x.data = y, x.set_(y)); use x.copy_(y), or assign another tensor"
    ),
    **LIMITS,
    "does not require grad": _GRADIENT,
    "There was no rule registered for HOP": (
        "an operator that takes functions, which PyTorch 2.8 does not show to a trace that began "
        "before it was defined; import what defines it before, or use a newer PyTorch"
    ),
    "with symbolic sizes/strides": (
        "PyTorch's own code needs plain numbers for the sizes here, which are dynamic; declare "
        "them static, or use other functions"
    ),
}

MEMORY = (
    "the model gives the memory of a tensor that depends on its input to numpy or other code, "
    "which a network cannot contain; use torch functions"
)

_SEED = 0x5EED_1234_5678

_MOST_TRACES = 8
"""So often the model may say more of its sizes, in the light of what it has said before."""

UNSEEN_CONSTANT = (
    "the model reads a tensor that was made, during its forward pass, where t2t does not see it "
    "(compiled code, a C extension, another thread), so it may depend on the input; make it with "
    "torch functions in the thread that calls the model, or before, as a buffer"
)


def trace(
    module: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    names: Sequence[str] = (),
    dimensions: Sequence[Dimension] = (),
    boxes: Sequence[Mapping[str, Range]] = (),
    narrow_shapes: bool = False,
    automatic: Collection[str] = (),
    state: Mapping[str, torch.Tensor] = MappingProxyType({}),
    data_sizes: bool = False,
    finish: Callable[[Any, Recorder], Any] | None = None,
) -> Graph:
    """Record the calls of one forward pass.

    Args:
        module: the module (or a function).
        args: example inputs; tensors may stand in nested tuples, lists and dicts.
        kwargs: keyword inputs, likewise.
        names: names of the input tensors, for messages.
        dimensions: the dynamic dimensions.
        boxes: the declared sizes: for each profile a range of every dimension, by name.
        narrow_shapes: shrink the ranges to where the trace is valid, instead of raising.
        automatic: names of dimensions whose range is shrunk in any case.
        state: tensors that the module keeps between calls, by their paths in it; they become the
            last inputs, and the graph's ``state``.
        data_sizes: let results have sizes that depend on the data, for what no network contains;
            these are dimensions without a place.
        finish: called with the raw output and the recorder while values can still be read; its
            result becomes the graph's ``output``.

    Raises:
        ConversionError: the forward pass does what a network cannot.
        GuardError: it took a decision that does not hold for all declared sizes.
    """
    record = functools.partial(
        _trace,
        module,
        args,
        kwargs,
        names,
        dimensions,
        boxes,
        narrow_shapes,
        automatic,
        state,
        finish,
    )
    with TRACE_LOCK, uninterrupted() as interrupts:
        # Outside of `except`: errors of the second trace have nothing to do with the first.
        with suppress(ValueNeeded):
            return _repeated(record, interrupts, data_sizes, sees_functions=False)
        return _repeated(record, interrupts, data_sizes, sees_functions=True)


def _repeated(
    record: Callable[..., Graph], interrupts: Interrupts, data_sizes: bool, *, sees_functions: bool
) -> Graph:
    """Record again while the model says more of the sizes that depend on the data."""
    known: dict[int, Known] = {}
    for last in range(_MOST_TRACES):
        before = dict(known)
        try:
            given = known if data_sizes else None
            graph = record(given, interrupts, sees_functions=sees_functions)
        except Exception:
            if known == before or last == _MOST_TRACES - 1:
                raise
        else:
            if known == before:
                break
    return graph


def _trace(
    module: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: Sequence[str],
    dimensions: Sequence[Dimension],
    boxes: Sequence[Mapping[str, Range]],
    narrow_shapes: bool,
    automatic: Collection[str],
    state: Mapping[str, torch.Tensor],
    finish: Callable[[Any, Recorder], Any] | None,
    known: dict[int, Known] | None,
    interrupts: Interrupts,
    *,
    sees_functions: bool,
) -> Graph:
    with ExitStack() as stack:
        stack.enter_context(_paused_collection())
        # Undone from the last to the first: torch's functions, the data, then all else.
        stack.enter_context(preserved_torch_state())
        sizes = None
        if dimensions or known is not None:
            sizes = DynamicSizes(
                dimensions, boxes, names, lambda: recorder.deciding_location(), known
            )
        mode = sizes.mode if sizes is not None else StaticFakeMode()
        tracer = Tracer(mode, _state(module), _forward.__code__)
        recorder = tracer.recorder
        recorder.interrupts = interrupts
        tracer.sees_functions = sees_functions
        if sees_functions:
            tracer.function_mode = IndexingMode(recorder, tracer.originals)
        if sizes is not None:
            env = sizes.mode.shape_env
            stack.callback(setattr, env, "before_number", env.before_number)
            env.before_number = tracer.need_functions
        snapshot = Snapshot(module)
        places = Places(module, snapshot, state)
        stack.callback(lambda: recorder.graph.kept.extend(places.others(snapshot.restore())))
        # What is young from here on was made by the model.
        gc.collect(0)
        leaves = [_fake(recorder, sizes, x) for x in tree_leaves((args, kwargs))]
        kept = {path: _fake(recorder, None, x) for path, x in state.items()}
        _prepare_torch(stack, tracer, sizes, module)
        # A seed that no model sets.
        seeded = torch.default_generator.manual_seed(_SEED).get_state()
        try:
            with interrupts.allowed():
                for path, x in kept.items():
                    recorder.constants.replace(path, places.put(path, x))
                output = _forward(tracer, module, (args, kwargs), leaves)
        except Exception as error:
            if tracer.needs_value:
                # Compiled code drops it where it asks for an index, and tells of something else.
                raise ValueNeeded from None
            explained = _explained(error, recorder, sizes, snapshot)
            if explained is error:
                raise
            raise explained from (None if isinstance(explained, StateError) else error)
        _check_passed(tracer, snapshot)
        graph = recorder.graph
        graph.reseeded |= not torch.equal(seeded, torch.default_generator.get_state())
        graph.state = [recorder.value(places.after_call(path)) for path in kept]
        if finish is not None:
            graph.output = finish(output, recorder)
        if sizes is not None:
            proved = sizes.prove(narrow_shapes, automatic)
            graph.dimensions, graph.boxes = proved.dimensions, proved.boxes
            graph.notes, graph.checks = proved.notes, sizes.checks
        return graph


def _check_passed(tracer: Tracer, snapshot: Snapshot) -> None:
    """Raise what a forward pass has shown that went on to its end; note what it kept."""
    recorder = tracer.recorder
    if tracer.needs_value:
        # The model went on without it, as after `except:`.
        raise ValueNeeded
    if recorder.state_errors:
        raise _all_state(recorder.state_errors, snapshot)
    if recorder.refusal is not None:
        # The model has caught it, and went another way than without t2t.
        raise recorder.refusal
    recorder.graph.kept += recorder.constants.changes(snapshot.name_of)
    for place in recorder.constants.unseen(snapshot.knows):
        at = f" (read at {place})" if place else ""
        raise UnsupportedOperatorError(UNSEEN_CONSTANT + at)


def _explained(
    error: Exception, recorder: Recorder, sizes: DynamicSizes | None, snapshot: Snapshot
) -> Exception:
    """Return what to raise for what the forward pass raised: that itself, or what it means."""
    if recorder.state_errors or isinstance(error, StateError):
        return _all_state([*recorder.state_errors, error], snapshot)
    if isinstance(error, T2TError):
        return error
    where = _where(recorder, error)
    if "unhashable type: non-nested SymInt" in str(error):
        return GuardError(f"{UNHASHABLE}{where}")
    if sizes is not None and sizes.assumed:
        return GuardError(ONE.format(error=error, assumed=sizes.assumed) + where)
    reason = _limit(error)
    if reason:
        return UnsupportedOperatorError(f"{reason}{where}")
    if recorder.graph.numbers:
        # Where the model itself is at fault, it raises again when its submodules are looked for.
        return UnsupportedOperatorError(f"{READ.format(error=error)}{where}")
    add_note(error, f"raised by the model itself, while t2t ran its forward pass{where}")
    return error


def _all_state(errors: Sequence[Exception], snapshot: Snapshot) -> StateError:
    """Return the first of these errors, with the names of all state that is missing."""
    found = [error for error in errors if isinstance(error, StateError)]
    names = [
        [*error.names] if error.key is None else [snapshot.name_of(error.key)] for error in found
    ]
    found[0].names = tuple(dict.fromkeys(itertools.chain(*names)))
    return found[0]


def _forward(tracer: Tracer, module: Callable[..., Any], inputs: Any, leaves: Sequence[Any]) -> Any:
    """Run the forward pass; lines of whoever called this are not the user's model."""
    given = iter(leaves)
    with tracer.dispatch_mode, tracer.function_mode:
        # A class of the user's may compute when it is made of its tensors.
        args, kwargs = map_tree(lambda _: next(given), inputs)
        return module(*args, **kwargs)


@contextmanager
def _paused_collection() -> Iterator[None]:
    """Keep the garbage collector from running: it takes time, and makes what is new old."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _limit(error: Exception) -> str:
    """Return what PyTorch cannot trace, where that is why it raised; else nothing."""
    reason = next((reason for words, reason in _LIMITS.items() if words in str(error)), "")
    if not reason and isinstance(error, UnsupportedOperatorException):
        return f"{error.func}: PyTorch itself does not know the shape of its result"
    return reason


def _fake(recorder: Recorder, sizes: DynamicSizes | None, x: Any) -> Any:
    """Make the fake tensor that stands for an input."""
    if not isinstance(x, torch.Tensor):
        return x
    shape = x.shape if sizes is None else sizes.shape(len(recorder.graph.inputs), x.shape)
    with recorder.mode:
        tensor = torch.empty(shape, dtype=x.dtype, device=x.device)
    recorder.add_input(tensor)
    return tensor


def _state(module: Any) -> dict[str, torch.Tensor]:
    if not isinstance(module, torch.nn.Module):
        return {}
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _where(recorder: Recorder, error: BaseException) -> str:
    location = raised_location(error, _forward.__code__)
    at = f" at {location}" if location else ""
    failed, scope = recorder.failure
    return f"{at} in module {scope!r}" if failed is error and scope else at


def _prepare_torch(
    stack: ExitStack, tracer: Tracer, sizes: DynamicSizes | None, module: Any
) -> None:
    """Set torch up for the forward pass: how it computes, and what is patched."""
    recorder = tracer.recorder
    # PyTorch notes once for all which functions take a default device: not those of the trace.
    with torch.device("cpu"):
        torch.empty(0)
    if sizes is not None:
        # A size of 1 in the example must not be treated as special.
        stack.enter_context(sizes_of_one_are_ordinary())
        stack.enter_context(enable_python_dispatcher())
    stack.enter_context(failures_unlogged())
    stack.enter_context(torch.no_grad())
    stack.enter_context(eager())
    if opt_einsum.is_available():
        # It looks for the best order of products by plain numbers.
        stack.enter_context(opt_einsum.flags(enabled=False))
    stack.callback(recorder.constants.restore)
    _patch_torch(stack, tracer, module)
    if sizes is not None:
        patch_numbers(stack, recorder)
    patch_casts(stack, recorder)
    patch_encoder(stack, recorder)


def _patch_torch(stack: ExitStack, tracer: Tracer, module: Any) -> None:
    for name, converter in registry.function_converters().items():
        owner, attribute = registry.resolve(name)
        patch(
            stack,
            owner,
            attribute,
            functools.partial(_wrap, tracer, name, converter),
        )
    paths = (
        {id(m): path for path, m in module.named_modules()}
        if isinstance(module, torch.nn.Module)
        else {}
    )
    patch(stack, torch.nn.Module, "__call__", functools.partial(_scoped, tracer.recorder, paths))
    for name in ("numpy", "__array__", "__dlpack__", "data_ptr"):
        patch(stack, torch.Tensor, name, functools.partial(_refuse_memory, tracer.recorder))
    for owner, name in ((torch, "frombuffer"), (torch, "from_dlpack"), (dlpack, "from_dlpack")):
        patch(stack, owner, name, functools.partial(_note_made, tracer.recorder))
    for name in ("manual_seed", "seed", "set_rng_state"):
        for module_of_it in (torch, torch.random):
            patch(stack, module_of_it, name, functools.partial(_note_seed, tracer.recorder))
    patch(stack, torch, "compile", functools.partial(_not_compiled, tracer.recorder))
    # On a GPU it moves weights into memory of cudnn's, where they would not be known again.
    patch(stack, torch.nn.RNNBase, "flatten_parameters", _unmoved)


def _unmoved(original: Any) -> Any:
    @functools.wraps(original)
    def flatten_parameters(module: torch.nn.RNNBase) -> None:
        del module

    return flatten_parameters


def _wrap(tracer: Tracer, name: str, converter: registry.Converter, original: Any) -> Any:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return tracer.call_function(name, converter, original, args, kwargs)
        except T2TError as error:
            tracer.recorder.refused(error)
            raise

    tracer.originals[wrapper] = original
    return wrapper


def _scoped(recorder: Recorder, paths: dict[int, str], original: Any) -> Any:
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  it takes that place
        if not recorder.is_active():
            return original(self, *args, **kwargs)
        recorder.scopes.append(paths.get(id(self)) or recorder.scopes[-1])
        try:
            if problem := observer_problem(self):
                raise recorder.refused(recorder.located(UnsupportedOperatorError(problem)))
            return original(self, *args, **kwargs)
        except Exception as error:
            if recorder.failure[0] is not error:
                recorder.failure = (error, recorder.scopes[-1])
            raise
        finally:
            recorder.scopes.pop()

    return __call__


def _note_made(recorder: Recorder, original: Any) -> Any:
    """These make a tensor of a buffer, without an operator."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        if recorder.is_active():
            recorder.constants.note_foreign(tensor)
        return tensor

    return make


def _note_seed(recorder: Recorder, original: Any) -> Any:
    """These set the seed, perhaps only for a part of the forward pass."""

    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        recorder.graph.reseeded = True
        return original(*args, **kwargs)

    return seed


def _not_compiled(recorder: Recorder, original: Any) -> Any:
    """Return what a model would compile as it is; torch.cond and the like compile themselves."""

    @functools.wraps(original)
    def compile(model: Any = None, **options: Any) -> Any:
        if not recorder.is_active():
            return original(model, **options)
        return (lambda function: function) if model is None else model

    return compile


def _refuse_memory(recorder: Recorder, original: Any) -> Any:
    """These hand a tensor's memory to code that a trace does not see."""

    @functools.wraps(original)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if recorder.is_active() and recorder.is_traced(self):
            raise recorder.refused(recorder.located(UnsupportedOperatorError(MEMORY)))
        if recorder.is_active():
            # Whoever has the memory may write to it.
            recorder.constants.before_write(self)
        return original(self, *args, **kwargs)

    return method
