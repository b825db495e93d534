"""Running the original and the converted module on the same inputs."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from t2t.dtypes import RTOL
from t2t.errors import EngineError, T2TError, VerificationError
from t2t.examples import random_like
from t2t.float32 import float32_precision
from t2t.io import arguments, map_tree
from t2t.isolation import preserved
from t2t.module import PartialModule, TRTModule, engine_required
from t2t.quantization.simulation import FakeQuantized, fake_quantized
from t2t.verification.metrics import measure
from t2t.verification.report import OutputReport, Report

# Where sums are made in another order, some numbers tip over to the next step, one in 127 of int8's
# range and up to one in 8 of a number itself in float8, and what follows multiplies them: PyTorch's
# own all-MiniLM-L6-v2 with rounded operands moves by 1.2e-2 (int8) and 1.3e-2 (float8) where a part
# in a million is added to its embeddings. What is half before it is rounded tips over everywhere,
# so that all of rounding's error shows.
_RTOL_ROUNDED = {"fp32": 2e-2, "fp16": 1e-1, "bf16": 1e-1}


def verify(
    module: Callable[..., Any],
    module_trt: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    random_inputs: int = 1,
    rtol: float | None = None,
    quantization_rtol: float = 0.5,
    seed: int = 0,
    raise_on_error: bool = False,
    require_engine: bool = False,
    metric: Callable[[Any, Any], Any] | None = None,
    data: Iterable[tuple[Any, Any]] | None = None,
    metric_drop: float | None = None,
) -> Report:
    """Compare a converted module with the original, on the given and on random inputs.

    Random inputs are like the given ones: floats of their mean, deviation and range, integers of
    their range, booleans as often true. A module whose outputs got stuck passes one input; so
    there are two. A module converted with int8 or fp8 is compared with the original as it computes
    with rounded operands in PyTorch (`t2t.fake_quantized`), so that an error of the conversion is
    not taken for one of rounding; how far it is from the original itself, the report says as
    ``quantization_error``. The original computes float32 without TF32, which PyTorch lets
    convolutions on GPUs round to. Neither the module, its buffers, its training flags nor the
    inputs change.

    Args:
        module: the original.
        module_trt: the converted one.
        inputs: positional arguments in a list or tuple, keyword arguments in a mapping, or one
            tensor.
        kwargs: more keyword arguments.
        random_inputs: how many random inputs to try besides the given ones.
        rtol: largest allowed norm of a difference over the norm of the original's output; None
            takes 1e-4 for fp32, 2e-2 for fp16 and tf32=True, and 5e-2 for bf16, by the converted
            module's precision and the output's dtype; where activations are rounded to 8 bits, 2e-2
            for fp32 and 1e-1 for half precision.
        quantization_rtol: largest allowed ``quantization_error``. What is lost without harm is for
            the task's own measure to say; half of the output is lost by wrong scales only.
        seed: of the random inputs.
        raise_on_error: raise if the outputs differ, instead of only reporting it.
        require_engine: raise if the engine does not run here, instead of comparing with what the
            reference executor gives; the environment variable T2T_REQUIRE_ENGINE=1 does the same.
        metric: the task's own measure, ``metric(outputs, targets)``: a number that is the larger
            the better, such as the share of right classes. The report has its mean for both
            modules; outputs in half precision arrive as float32 where the original gives that.
        data: for the metric, pairs of inputs (as given for one call) and targets; None takes the
            given inputs, with the original's outputs as targets.
        metric_drop: how much less than the original's the converted module's metric may be; None
            allows everything.

    Returns:
        The report; it says where the converted module ran.

    Raises:
        VerificationError: if asked for; the message is the report.
        EngineError: if asked for, and the engine does not run.
    """
    given = arguments(inputs, kwargs)
    pair = _Pair(module, module_trt)
    generator = torch.Generator().manual_seed(seed)
    drawn = functools.partial(_on_tensors, functools.partial(random_like, generator), given)
    calls = (given if run == 0 else drawn() for run in range(1 + random_inputs))
    found = _compared(pair, calls, rtol, require_engine)
    tasks = None
    if metric is not None and not found.problem:
        pairs = [(given, None)] if data is None else [(arguments(x), y) for x, y in data]
        tasks = _scores(pair, metric, pairs)
    lost = max((output.max_rel_error for output in found.apart.values()), default=None)
    ok = (
        not found.problem
        and all(output.ok for output in found.worst.values())
        and (lost is None or lost <= quantization_rtol)
        and (tasks is None or metric_drop is None or tasks[0] - tasks[1] <= metric_drop)
    )
    outputs, allowed = tuple(found.worst.values()), pair.tolerance() if rtol is None else rtol
    report = Report(ok, outputs, found.runs, allowed, found.problem, found.ran_on, lost, tasks)
    if raise_on_error and not ok:
        raise VerificationError(str(report))
    return report


@dataclass
class _Comparison:
    """What comparing some calls has shown.

    Attributes:
        worst: by the output's place, how it differs from what is expected.
        apart: likewise from the original, where that does not round.
        problem: what ended the comparison.
        runs: how many calls were compared.
        ran_on: where the converted modules ran.
    """

    worst: dict[str, OutputReport] = field(default_factory=dict)
    apart: dict[str, OutputReport] = field(default_factory=dict)
    problem: str = ""
    runs: int = 0
    ran_on: tuple[Any, ...] = ()


def _compared(
    pair: _Pair, calls: Iterable[Any], rtol: float | None, require_engine: bool
) -> _Comparison:
    """Compare the outputs for some inputs, up to the first that makes no comparison possible."""
    found = _Comparison()
    default, required = pair.tolerance(), require_engine or engine_required()
    earlier = [part.last_run for part in pair.parts]
    for call in calls:
        found.runs += 1
        call = pair.representable(call)
        original = pair.original(call)
        expected = pair.expected(call, original)
        try:
            with _requiring(pair.parts, require_engine), _at_first(pair.parts):
                got = pair.converted(call)
        except T2TError as error:
            if isinstance(error, EngineError) and required:
                raise
            found.problem = f"the converted module fails: {type(error).__name__}: {error}"
            break
        found.problem = measure(expected, got, rtol, default, found.worst)
        if found.problem:
            break
        if expected is not original:
            measure(original, got, math.inf, math.inf, found.apart)
    found.ran_on = tuple(
        part.ran_on
        for part, before in zip(pair.parts, earlier, strict=True)
        if part.ran_on is not None and part.last_run is not before
    )
    return found


class _Pair:
    """The original and the converted module, both called as the original is.

    Attributes:
        parts: the converted modules that the converted one consists of.
    """

    def __init__(self, module: Callable[..., Any], module_trt: Callable[..., Any]) -> None:
        self._module, self._module_trt = module, module_trt
        quantization = module_trt.quantization if _is_whole(module_trt) else None
        plain = not isinstance(module, FakeQuantized)
        self._rounded = fake_quantized(module, quantization) if quantization and plain else None
        # What the converted module takes for float32.
        self._edges = at_edges(module_trt, torch.zeros((), dtype=torch.float32)).dtype
        found = module_trt.modules() if isinstance(module_trt, torch.nn.Module) else ()
        self.parts = [part for part in found if _is_whole(part)]

    def tolerance(self) -> float:
        """Return how far outputs may be apart, by the precision in which they were computed."""
        precision = getattr(self._module_trt, "precision", "fp32")
        default = RTOL.get(precision, RTOL["fp32"])
        if any(part.details.get("tf32") for part in self.parts):
            default = max(default, RTOL["fp16"])  # both have 10 bits of mantissa
        if _rounds(self._module_trt):
            default = _RTOL_ROUNDED.get(precision, default)
        if self._edges == torch.float32:
            return default
        return max(default, RTOL["bf16" if self._edges == torch.bfloat16 else "fp16"])

    def representable(self, call: Any) -> Any:
        """Return inputs whose numbers both modules take: what is half for one is so for both."""
        if self._edges == torch.float32:
            return call
        return _floats(at_edges(self._module_trt, call))

    def original(self, call: Any) -> Any:
        """Return the original's outputs."""
        with preserved(self._module), float32_precision.held():
            return _call(self._module, call)

    def expected(self, call: Any, original: Any) -> Any:
        """Return what to expect: the original's outputs, or what it gives with rounded operands."""
        if self._rounded is None:
            return original
        with preserved(self._module), float32_precision.held():
            return _call(self._rounded, call)

    def converted(self, call: Any) -> Any:
        """Return the converted module's outputs."""
        outputs = _call(self._module_trt, at_edges(self._module_trt, call))
        return outputs if self._edges == torch.float32 else _floats(outputs)


def _is_whole(module: Any) -> TypeGuard[TRTModule]:
    """Return whether a module is converted, and not a model with converted parts."""
    return isinstance(module, TRTModule) and not isinstance(module, PartialModule)


def at_edges(module: Any, call: Any) -> Any:
    """Return inputs of the original as a converted module takes them, which may be in half."""
    name = module.details.get("low_precision_io") if _is_whole(module) else None
    low = getattr(torch, name) if name else torch.float32
    return _on_tensors(lambda x: x.to(low) if x.dtype == torch.float32 else x, call)


def _floats(tree: Any) -> Any:
    return _on_tensors(lambda x: x.float() if x.is_floating_point() else x, tree)


def _scores(
    pair: _Pair, metric: Callable[[Any, Any], Any], calls: Iterable[tuple[Any, Any]]
) -> tuple[float, float]:
    """Return the mean of a metric for the original and for the converted module."""
    scores: list[tuple[float, float]] = []
    for call, targets in calls:
        call = pair.representable(call)
        original = pair.original(call)
        wanted = original if targets is None else targets
        scores.append(
            (float(metric(original, wanted)), float(metric(pair.converted(call), wanted)))
        )
    if not scores:
        raise VerificationError("data: there is no pair of inputs and targets for the metric")
    first, second = zip(*scores, strict=True)
    return statistics.fmean(first), statistics.fmean(second)


def _rounds(module: Any) -> bool:
    """Return whether a converted module rounds activations, by calibration or as the model does."""
    if not _is_whole(module):
        return False
    roundings = [x for call in module.quantization.calls for x in call.roundings]
    layers = module.program.layers if module.program is not None else ()
    planned = any(x is not None and x.scale is not None for x in roundings)
    return planned or any(layer.kind == "QUANTIZE" for layer in layers)


@contextmanager
def _requiring(parts: Sequence[TRTModule], required: bool) -> Iterator[None]:
    before = [part.require_engine for part in parts]
    for part in parts:
        part.require_engine = part.require_engine or required
    try:
        yield
    finally:
        for part, value in zip(parts, before, strict=True):
            part.require_engine = value


@contextmanager
def _at_first(parts: Sequence[TRTModule]) -> Iterator[None]:
    """Let what modules keep be as it was at first, as the original's is; put it back afterwards."""
    before = [part.state for part in parts]
    for part in parts:
        part.reset_state()
    try:
        yield
    finally:
        for part, state in zip(parts, before, strict=True):
            part.set_state(state)


def _on_tensors(function: Callable[[torch.Tensor], torch.Tensor], call: Any) -> Any:
    return map_tree(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, call)


def _call(module: Callable[..., Any], call: Any) -> Any:
    args, kwargs = _on_tensors(lambda leaf: leaf.detach().clone(), call)
    with torch.no_grad():
        return module(*args, **kwargs)
