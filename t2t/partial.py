"""Models that do not convert whole: the largest submodules that do become engines."""

from __future__ import annotations

import functools
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from t2t.dtypes import RTOL
from t2t.errors import ConversionError, ShapeError, ShapeWarning, T2TError
from t2t.io import arguments, tree_leaves
from t2t.isolation import preserved, storage_key
from t2t.module import Part, PartialModule, ReferenceExecutionWarning, TRTModule, with_parts
from t2t.recording import Recording
from t2t.torch_internals import (
    DispatchMode,
    HigherOrderOperator,
    no_modes,
    writes_counted,
)
from t2t.verification import OutputReport
from t2t.verification.metrics import measure

_log = logging.getLogger(__name__)

Inputs = tuple[tuple[Any, ...], dict[str, Any]]

_NEVER_CALLED = "it was not called as a module in the example runs"
_WRITES_INPUT = "it writes to its input in place, or returns a view of it"


def convert_parts(
    model: torch.nn.Module,
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    convert: Callable[..., tuple[TRTModule, Sequence[str]]],
    *,
    shape_examples: Any = None,
    modules: Sequence[str] | None = None,
    torch_executed_modules: Sequence[str] = (),
    reason: str = "",
) -> PartialModule:
    """Convert what can be converted of a model, submodule by submodule from the top.

    The model runs on the examples. What each submodule is called with is recorded; one that
    converts for these inputs, and agrees with the original in a second run, is replaced; of one
    that does not, the children are tried.

    Args:
        model: the model, in eval mode.
        inputs: example inputs, as `t2t.convert` takes them.
        kwargs: more keyword inputs.
        convert: converts one submodule; returns it and the names of what it keeps between calls.
        shape_examples: further inputs; the sizes that occur make the ranges of the parts.
        modules: only submodules of these names (shell patterns), which have to convert.
        torch_executed_modules: submodules that stay in PyTorch (shell patterns).
        reason: why the whole model does not convert.

    Raises:
        ConversionError: nothing of the model converts; or one of ``modules`` does not.
    """
    calls = [arguments(inputs, kwargs), *(arguments(more) for more in shape_examples or ())]
    search = _Search(model, calls, convert, torch_executed_modules)
    if modules is None:
        search.run([name for name, _ in model.named_children()])
    else:
        search.run(_matching(model, modules), required=True)
    if not search.engines:
        reasons = "".join(f"\n  {name}: {why}" for name, why in search.reasons.items())
        raise ConversionError(f"no part of the model converts: {reason}{reasons}")
    search.try_out()
    return PartialModule(with_parts(model, search.engines), search.table(reason))


def check_example(
    converted: TRTModule, module: Callable[..., Any], inputs: Any, kwargs: Mapping[str, Any] | None
) -> None:
    """Raise ConversionError where a converted module differs from the original on the example."""
    args, named = arguments(inputs, kwargs)
    with torch.no_grad(), preserved(module):
        torch.manual_seed(0)
        try:
            output = module(*args, **named)
        except (RuntimeError, ValueError, IndexError, TypeError):  # as torch._check raises them
            return
        torch.manual_seed(0)
        problem = _difference(converted, args, named, output)
    if problem:
        raise ConversionError(problem)


def _matching(model: torch.nn.Module, patterns: Sequence[str]) -> list[str]:
    names = [name for name, _ in model.named_modules() if name]
    found = []
    for pattern in patterns:
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            raise ConversionError(f"the model has no submodule {pattern!r}")
        found += matching
    # Of nested ones, the outer.
    return [name for name in dict.fromkeys(found) if not _has_parent(name, found)]


def _has_parent(name: str, names: Sequence[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in names)


class _Search:
    """Finds the largest submodules that convert.

    Attributes:
        engines: what was converted, by path.
        reasons: why others were not.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        calls: Sequence[Inputs],
        convert: Callable[..., tuple[TRTModule, Sequence[str]]],
        excluded: Sequence[str],
    ) -> None:
        self._model = model
        self._calls = calls
        self._convert = convert
        self._excluded = excluded
        self._called: set[str] = set()
        self.engines: dict[str, TRTModule] = {}
        self.reasons: dict[str, str] = {}

    def run(self, names: Sequence[str], *, required: bool = False) -> None:
        """Convert these submodules, or what they consist of."""
        pending = list(names)
        while pending:
            pending = self._without_containers(pending)
            watched = self._watch(pending)
            converted = {}
            for name in pending:
                try:
                    converted[name] = self._convert_one(name, watched[name])
                except T2TError as error:
                    if required:
                        raise
                    self.reasons[name] = str(error)
            for name, problem in self._check(converted).items():
                if problem and required:
                    raise ConversionError(f"{name}: {problem}")
                if problem:
                    self.reasons[name] = problem
                else:
                    self.engines[name] = converted[name]
            pending = [child for name in pending for child in self._children(name)]

    def _children(self, name: str) -> list[str]:
        if name in self.engines or self.reasons.get(name) == "":
            return []
        module = self._model.get_submodule(name)
        children = [f"{name}.{child}" for child, _ in module.named_children()]
        if self.reasons.get(name) != _NEVER_CALLED:
            return children
        # The model may call its parts, as of a Sequential.
        return [child for child in children if self._is_called(child)]

    def _is_called(self, name: str) -> bool:
        """Return whether the model calls a module or something inside of it."""
        return any(called == name or called.startswith(f"{name}.") for called in self._called)

    def _without_containers(self, names: Sequence[str]) -> list[str]:
        """Return what can be converted: parts with parameters, of lists their elements."""
        found: list[str] = []
        for name in names:
            module = self._model.get_submodule(name)
            if self._is_excluded(name):
                self.reasons[name] = "torch_executed_modules names it"
            elif isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict):
                children = [f"{name}.{child}" for child, _ in module.named_children()]
                found += self._without_containers(children)
            elif next(module.parameters(), None) is not None:
                # A module without parameters computes too little for an engine of its own.
                found.append(name)
        return found

    def _is_excluded(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._excluded)

    def _watch(self, names: Sequence[str]) -> dict[str, _Watch]:
        """Run the model, and return what each submodule was called with."""
        watched = {name: _Watch(self._model.get_submodule(name)) for name in names}
        with ExitStack() as stack:
            stack.enter_context(preserved(self._model))
            for watch in watched.values():
                stack.enter_context(watch.hooked())
            for name, module in self._model.named_modules():
                handle = module.register_forward_pre_hook(functools.partial(self._note, name))
                stack.callback(handle.remove)
            self._run_model()
        return watched

    def _note(self, name: str, *_: Any) -> None:
        self._called.add(name)

    def _run_model(self) -> None:
        with torch.no_grad():
            for args, kwargs in self._calls:
                self._model(*args, **kwargs)

    def _convert_one(self, name: str, watch: _Watch) -> TRTModule:
        inside = [other for other, _ in self._model.get_submodule(name).named_modules()]
        excluded = [other for other in inside if other and self._is_excluded(f"{name}.{other}")]
        if excluded:
            raise ConversionError(f"its part {excluded[0]!r} is to stay in PyTorch")
        if watch.problem:
            raise ConversionError(watch.problem)
        recording = watch.recording
        part = self._model.get_submodule(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShapeWarning)
            converted, kept = _in_ranges(self._convert, part, recording, self._calls)
        if kept:
            raise ConversionError(f"it keeps {kept[0]!r} between calls, which others may read")
        _log.info("%s is an engine", name)
        return converted

    def _check(self, converted: Mapping[str, TRTModule]) -> dict[str, str]:
        """Run the model again; compare each converted part with the original, call by call."""
        problems = dict.fromkeys(converted, "")
        if not converted:
            return problems

        def compare(name: str, module: Any, args: Any, kwargs: Any, output: Any) -> None:
            del module
            if any(isinstance(x, torch.Tensor) and x.grad_fn for x in tree_leaves(output)):
                problems[name] = "the model computes gradients through it, which no engine has"
            if not problems[name]:
                problems[name] = _difference(converted[name], args, kwargs, output)

        with ExitStack() as stack:
            stack.enter_context(preserved(self._model))
            for name in converted:
                handle = self._model.get_submodule(name).register_forward_hook(
                    functools.partial(compare, name), with_kwargs=True
                )
                stack.callback(handle.remove)
            self._run_model()
        return problems

    def try_out(self) -> None:
        """Run the model with its engines; take out those of which more than calls is asked."""
        while self.engines:
            probes = {
                name: _Probe(name, self._model.get_submodule(name), engine)
                for name, engine in self.engines.items()
            }
            copy = with_parts(self._model, probes)
            try:
                with torch.no_grad(), preserved(copy), _no_remarks():
                    for args, kwargs in self._calls:
                        copy(*args, **kwargs)
            except _AskedError as asked:
                del self.engines[asked.name]
                self.reasons[asked.name] = f"the model reads {asked.what}"
                self.run(self._children(asked.name))
            else:
                return
        raise ConversionError("no part of the model can be replaced by an engine")

    def table(self, reason: str) -> list[Part]:
        """Return what runs where."""
        shares = self._shares()
        listed = [
            name
            for name, _ in self._model.named_modules()
            if name in self.engines or name in self.reasons
        ]
        # What is listed inside of it is none of a row's own work.
        work = {name: shares.get(name, 0.0) for name in ["", *listed]}
        for name in listed:
            parent = name.rpartition(".")[0]
            while parent and parent not in work:
                parent = parent.rpartition(".")[0]
            work[parent] -= shares.get(name, 0.0)
        rows = [Part("(the model)", False, work[""], reason)] if reason else []
        return rows + [
            Part(name, name in self.engines, work[name], self.reasons.get(name, ""))
            for name in listed
        ]

    def _shares(self) -> dict[str, float]:
        """Return the share of all multiplications that each submodule makes, by PyTorch's count."""
        counter: Any = FlopCounterMode(display=False)
        counter.mod_tracker = _Running(self._model)
        with preserved(self._model), counter, _Uncounted():  # type: ignore[no-untyped-call]
            self._run_model()
        counts = {
            name: sum(operators.values()) for name, operators in counter.get_flop_counts().items()
        }
        total = counts.get("Global", 0)
        return {name: count / total for name, count in counts.items() if total}


class _Running:
    """Tells PyTorch's counter which submodules run now.

    Its own tracker refuses a model that computes gradients in its forward pass.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.parents = {"Global"}
        self._model = model
        self._hooks = ExitStack()

    def __enter__(self) -> None:
        for name, module in self._model.named_modules():
            for handle in (
                module.register_forward_pre_hook(functools.partial(self._begin, name)),
                module.register_forward_hook(functools.partial(self._end, name), always_call=True),
            ):
                self._hooks.callback(handle.remove)

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _begin(self, name: str, *_: Any) -> None:
        self.parents.add(name)

    def _end(self, name: str, *_: Any) -> None:
        self.parents.discard(name)


class _Uncounted(DispatchMode):  # type: ignore[no-untyped-call]
    """Hides loops from PyTorch's counter of multiplications, which refuses them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        with no_modes() if isinstance(func, HigherOrderOperator) else nullcontext():
            return func(*args, **(kwargs or {}))


def _in_ranges(
    convert: Callable[..., tuple[TRTModule, Sequence[str]]],
    part: torch.nn.Module,
    recording: Recording,
    calls: Sequence[Inputs],
) -> tuple[TRTModule, Sequence[str]]:
    """Convert for more sizes than were seen, where some vary: numbers of boxes do, by image.

    Args:
        convert: converts the part.
        part: the part.
        recording: what it was called with.
        calls: what the model was called with.
    """
    shapes = recording.shapes
    given = shapes.get("dynamic_shapes") or [{} for _ in recording.max_shapes]
    sizes = {size.__name__: size for dims in given for size in dims.values()}
    rows, most = _rows(recording, calls)
    counted = {dims[0].__name__ for dims in given if 0 in dims}
    wider = {
        name: torch.export.Dim(name, min=1, max=max(2 * size.max, most if name in counted else 0))
        for name, size in sizes.items()
    }
    wide = [{dim: wider[size.__name__] for dim, size in dims.items()} for dims in given]
    if rows:
        size = torch.export.Dim("rows", min=1, max=max(2 * recording.max_shapes[rows[0]][0], most))
        wide = [{**dims, 0: size} if n in rows else dims for n, dims in enumerate(wide)]
    if any(wide):
        with suppress(T2TError):
            options = {"dynamic_shapes": wide, "opt_shapes": recording.opt_shapes}
            return convert(part, recording.inputs, **options, narrow_shapes=True)
    return convert(part, recording.inputs, **shapes)


def _rows(recording: Recording, calls: Sequence[Inputs]) -> tuple[list[int], int]:
    """Return which tensors have as many rows as the data says, and the most rows of an input.

    That a part was called with one number of rows only may be chance, unless it is that of the
    model's own inputs in all examples, as the batch is.
    """
    of_inputs = {
        tuple(x.shape[0] for x in tree_leaves(call) if isinstance(x, torch.Tensor) and x.ndim)
        for call in calls
    }
    most = max(itertools.chain(*of_inputs), default=0)
    fixed: set[int] = set(*of_inputs) if len(of_inputs) == 1 else set()
    pairs = [*zip(recording.min_shapes, recording.max_shapes, strict=True)]
    # One image is a batch; one row may be the only one that was chosen.
    low, first = pairs[0] if pairs else ((), ())
    varies = bool(first) and low[0] != first[0]
    if not first or varies or first[0] in fixed or (first[0] == 1 and len(first) > 2):
        return [], most
    rows = [n for n, (low, high) in enumerate(pairs) if high and low[0] == high[0] == first[0]]
    return rows, most


class _Watch:
    """What a submodule is called with, and what it does to it.

    Attributes:
        recording: its calls.
        problem: why no engine can take its place.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before: list[tuple[torch.Tensor, int]] = []
        self.recording = Recording(module)
        self.problem = _NEVER_CALLED

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch the calls inside the ``with`` block."""
        handles = [
            self._module.register_forward_pre_hook(self._note, prepend=True, with_kwargs=True),
            self._module.register_forward_hook(self._compare, with_kwargs=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, module: Any, args: Any, kwargs: Any) -> None:
        del module
        if self.problem == _NEVER_CALLED:
            self.problem = ""
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        self._before = [(x, writes_counted(x)) for x in tensors]
        try:
            self.recording.note(args, kwargs)
        except ConversionError as error:
            self.problem = self.problem or str(error)

    def _compare(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        del module, args, kwargs
        results = {storage_key(x) for x in tree_leaves(output) if isinstance(x, torch.Tensor)}
        for x, version in self._before:
            if writes_counted(x) != version or storage_key(x) in results:
                self.problem = self.problem or _WRITES_INPUT
        self._before = []


class _AskedError(BaseException):
    """A part is asked for what an engine does not have.

    No `Exception`: the model's own handlers, and hasattr, are to let it pass.
    """

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what)
        self.name = name
        self.what = what


class _Probe(torch.nn.Module):
    """Stands for an engine in the model, and notices what else than calls is asked of it."""

    def __init__(self, name: str, original: torch.nn.Module, engine: TRTModule) -> None:
        super().__init__()
        # No submodules: those would be the model's.
        self.__dict__.update(_name=name, _original=original, _engine=engine)
        self._parameters["parameter"] = engine._empty_parameter

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_engine"](*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Probe:
        return self

    def __getattr__(self, name: str) -> Any:
        if hasattr(self.__dict__["_engine"], name):
            return getattr(self.__dict__["_engine"], name)
        if hasattr(self.__dict__["_original"], name):
            raise _AskedError(self.__dict__["_name"], f"its attribute {name!r}")
        return super().__getattr__(name)

    def __getitem__(self, index: Any) -> Any:
        raise _AskedError(self.__dict__["_name"], f"its element {index!r}")

    def __iter__(self) -> Any:
        raise _AskedError(self.__dict__["_name"], "its elements")

    def __len__(self) -> int:
        raise _AskedError(self.__dict__["_name"], "its length")

    def __bool__(self) -> bool:
        return True


@contextmanager
def _no_remarks() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceExecutionWarning)
        yield


def _difference(converted: TRTModule, args: Any, kwargs: Any, output: Any) -> str:
    """Return how a converted part differs from the original's output; "" where it does not."""
    try:
        with _no_remarks():
            found = converted(*args, **kwargs)
    except (ShapeError, ConversionError) as error:
        return str(error)
    outputs: dict[str, OutputReport] = {}
    problem = measure(output, found, None, RTOL[converted.precision or "fp32"], outputs)
    wrong = [report for report in outputs.values() if not report.ok]
    if wrong and not problem:
        problem = f"{wrong[0].name} differs by {wrong[0].max_rel_error:.2g} of its norm"
        problem += f" ({wrong[0].note})" if wrong[0].note else ""
    return f"its engine disagrees: {problem}" if problem else ""
