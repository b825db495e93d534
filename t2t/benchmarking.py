"""How long a converted module takes here, beside the original."""

from __future__ import annotations

import functools
import json
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from t2t.errors import EngineError
from t2t.io import arguments, tree_leaves
from t2t.module import PartialModule, RanOn, TRTModule, engine_required
from t2t.runtime import idle_engine
from t2t.verification.tables import WIDTH, html_table, text_table

_OVERHEAD = "host overhead"
_EAGER = "eager"
_GRAPH = "engine, CUDA graph"
_HEAD = ("", "p50", "p90", "p99", "calls/s", "memory")


@dataclass(frozen=True)
class Timing:
    """The runs of one module.

    Attributes:
        name: "engine", "engine, CUDA graph", "host overhead", "eager" or "torch.compile".
        seconds: time of each run; on a GPU between two CUDA events around the call, on a CPU until
            the call returns.
        total: seconds from the first call until the results of all are there.
        memory: bytes on the GPU that the runs needed beyond what was there before: the peak of
            torch's memory, and an engine's scratch memory; None on a CPU.
    """

    name: str
    seconds: tuple[float, ...]
    total: float
    memory: int | None = None

    def percentile(self, percent: float) -> float:
        """Return the seconds that this share of the runs took at most."""
        return float(np.percentile(self.seconds, percent))

    @property
    def throughput(self) -> float:
        """Calls in a second, one behind the other."""
        return len(self.seconds) / self.total

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        percents = {f"p{n}_seconds": self.percentile(n) for n in (50, 90, 99)}
        return {
            "name": self.name,
            **percents,
            "min_seconds": min(self.seconds),
            "calls_per_second": self.throughput,
            "memory_bytes": self.memory,
        }


@dataclass(frozen=True, repr=False)
class Benchmark:
    """What `benchmark` measured; prints as a table.

    Attributes:
        timings: of the converted module, then of the original.
        ran_on: the device, and why no engine ran there, so that the first timing is the host's
            overhead only.
        shapes: the shapes of all tensors of the call, in order.
        warmup: how many runs before did not count.
    """

    timings: tuple[Timing, ...]
    ran_on: RanOn
    shapes: tuple[tuple[int, ...], ...]
    warmup: int

    @property
    def speedup(self) -> float | None:
        """Median of the original over that of the engine; None where either did not run."""
        eager = [timing for timing in self.timings if timing.name == _EAGER]
        if not self.ran_on.is_engine or not eager:
            return None
        return eager[0].percentile(50) / self.timings[0].percentile(50)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "ran_on": self.ran_on.to_dict(),
            "shapes": [list(shape) for shape in self.shapes],
            "runs": len(self.timings[0].seconds),
            "warmup": self.warmup,
            "speedup": self.speedup,
            "timings": [timing.to_dict() for timing in self.timings],
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict())

    def plot(self, axes: Any) -> None:
        """Draw the medians as bars, with lines to what 99 of 100 runs took at most.

        Args:
            axes: matplotlib's Axes to draw into: ``pyplot.gca()``.
        """
        timings = self.timings[::-1]
        p50, p99 = ([1e3 * timing.percentile(n) for timing in timings] for n in (50, 99))
        slower = [most - median for median, most in zip(p50, p99, strict=True)]
        names = [timing.name for timing in timings]
        axes.barh(names, p50, xerr=([0] * len(slower), slower), capsize=4)
        axes.set_xlabel("time of a call, ms: median, and 99th percentile")

    def lines(self) -> list[str]:
        """Return what is to be said above the table."""
        sizes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        text = [f"{self.ran_on.place}; {len(self.timings[0].seconds)} runs on {sizes}"]
        if not self.ran_on.is_engine:
            gpu = f" ({self.ran_on.device_name})" if self.ran_on.device_name else ""
            text = [
                f"No engine ran on {self.ran_on.device}{gpu}: {self.ran_on.reason}",
                "Host overhead is what t2t does in each call, with an engine that does nothing; it "
                "is no time of TensorRT's.",
            ]
        if self.speedup is not None:
            text.append(f"{self.speedup:.2f} times as fast as {_EAGER}")
        return [line for part in text for line in textwrap.wrap(part, WIDTH)]

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table; the first row is the head."""
        return [_HEAD, *map(_row, self.timings)]

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *text_table(self.rows())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.lines(), self.rows())


def _row(timing: Timing) -> tuple[str, ...]:
    memory = "" if timing.memory is None else f"{timing.memory / 1e6:.1f} MB"
    times = (f"{timing.percentile(n) * 1e3:.3f} ms" for n in (50, 90, 99))
    return (timing.name, *times, f"{timing.throughput:.1f}", memory)


def benchmark(
    module_trt: TRTModule,
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    baseline: Callable[..., Any] | None = None,
    torch_compile: bool = False,
    cuda_graph: bool = False,
    runs: int = 100,
    warmup: int = 10,
    require_engine: bool = False,
) -> Benchmark:
    """Measure a converted module, and the original beside it, on the device of the inputs.

    Where the engine cannot run, the report says so, and its first line is the host's overhead: what
    t2t does in each call, with an engine that does nothing. The reference executor is not timed.

        print(t2t.benchmark(model_trt, [x.cuda()], baseline=model.cuda()))

    Args:
        module_trt: the converted module.
        inputs: as `t2t.convert` takes them.
        kwargs: more keyword arguments.
        baseline: the original in eval mode, on the same device.
        torch_compile: measure ``torch.compile(baseline)``, too.
        cuda_graph: measure the engine without and with CUDA graphs; by default as the module's own
            setting says.
        runs: how many runs count.
        warmup: how many runs before do not; compilation and tuning happen in the first ones, so at
            least one does with ``torch_compile`` and ``cuda_graph``.
        require_engine: raise where the engine does not run; the environment variable
            T2T_REQUIRE_ENGINE=1 does the same.

    Returns:
        The report: p50, p90 and p99, calls per second and memory, as a table and as JSON.

    Raises:
        EngineError: the engine does not run, and that was asked for, or the module has several.
        ShapeError: the inputs are not what the module takes.
        ValueError: there are no runs, nothing to compile, or the baseline is in training mode.
    """
    if runs < 1 or warmup < 0:
        raise ValueError(f"runs={runs}, warmup={warmup}: at least one run must count")
    if torch_compile and baseline is None:
        raise ValueError("torch_compile=True measures torch.compile(baseline): give the baseline")
    if getattr(baseline, "training", False):
        raise ValueError("the baseline is in training mode, which computes more: call .eval()")
    args, keywords = arguments(inputs, kwargs)
    tensors = [x for x in tree_leaves((args, keywords)) if isinstance(x, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    name, runner, reason = _runner(module_trt, args, keywords, device)
    required = require_engine or module_trt.require_engine or engine_required()
    if reason and required:
        raise EngineError(f"the engine does not run: {reason}")
    todo: list[tuple[str, Callable[..., Any]]] = [(name, runner)]
    graphs = {} if reason or not cuda_graph else {name: False, _GRAPH: True}
    if graphs:
        todo.append((_GRAPH, runner))
    if baseline is not None:
        todo.append((_EAGER, baseline))
    if baseline is not None and torch_compile:
        todo.append(("torch.compile", torch.compile(baseline)))
    timings = []
    engines = _engines(module_trt)
    own = {part: engine.cuda_graph for part, engine in engines.items()}
    try:
        for label, module in todo:
            for part, engine in engines.items():
                engine.cuda_graph = graphs.get(label, own[part])
            run = functools.partial(module, *args, **keywords)
            before = max(warmup, 1) if label in ("torch.compile", _GRAPH) else warmup
            with torch.no_grad():
                timings.append(_timed(label, run, device, runs, before))
    finally:
        for part, engine in engines.items():
            engine.cuda_graph = own[part]
    if not reason:
        timings[0] = replace(timings[0], memory=_with_scratch(timings[0], module_trt, device))
    details = {} if isinstance(module_trt, PartialModule) else module_trt.details
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    # Of several engines, only the module knows which one has run.
    ran_on = None if reason else module_trt.ran_on
    ran_on = ran_on or RanOn.of(device, reason, details)
    return Benchmark(tuple(timings), ran_on, shapes, warmup)


def _engines(module: TRTModule) -> dict[str, TRTModule]:
    return module.engines if isinstance(module, PartialModule) else {"": module}


def _runner(
    module: TRTModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device
) -> tuple[str, TRTModule, str]:
    """Return what to run, its name, and why it is no engine."""
    for part, converted in _engines(module).items():
        reason: str | None = "it was made without an engine"
        if converted.engine is not None:
            reason = converted.engine.why_not(device)
        if reason and part:
            raise EngineError(
                f"the engine of {part!r} does not run: {reason}; a model of which only parts are "
                "engines is measured where all of them run"
            )
        if reason:
            return _OVERHEAD, _idle(module, args, kwargs, device), reason
    return "engine", module, ""


def _idle(
    module: TRTModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device
) -> TRTModule:
    """Return a copy whose engine does nothing, with outputs of the right shapes."""
    converted = module._filled()
    signature = converted.signature
    tensors = signature.bind(args, kwargs)
    signature.check(tensors)
    largest = [spec.max_shape or spec.shape for spec in signature.outputs]
    shapes = [tuple(1 if size == -1 else size for size in shape) for shape in largest]
    if converted.program is not None:
        results = converted.program.run(tensors)
        shapes = [tuple(results[spec.name].shape) for spec in signature.outputs]
    engine = idle_engine(signature.inputs, signature.outputs, shapes, device)
    idle = TRTModule()
    idle._fill(replace(converted, engine=engine, program=None))
    return idle


def _timed(
    name: str, run: Callable[[], Any], device: torch.device, runs: int, warmup: int
) -> Timing:
    for _ in range(warmup):
        run()
    if device.type != "cuda":
        times = []
        for _ in range(runs):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return Timing(name, tuple(times), sum(times))
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        events = [
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            for _ in range(runs)
        ]
        started = time.perf_counter()
        for first, last in events:
            first.record()
            run()
            last.record()
        torch.cuda.synchronize()
        total = time.perf_counter() - started
        memory = torch.cuda.max_memory_allocated() - before
    milliseconds = (first.elapsed_time(last) for first, last in events)
    return Timing(name, tuple(value / 1e3 for value in milliseconds), total, memory)


def _with_scratch(timing: Timing, module: TRTModule, device: torch.device) -> int | None:
    """Return the memory of the runs with that of TensorRT, which torch does not see."""
    if timing.memory is None:
        return None
    engines = (part.engine for part in _engines(module).values())
    return timing.memory + sum(e.load(device).memory for e in engines if e is not None)
