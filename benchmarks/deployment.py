"""What a service pays on the host: one call, and loading a checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

import t2t
from benchmarks.execution import one_thread
from benchmarks.measure import Figures, Row, medians
from t2t.dtypes import from_trt
from t2t.io import Signature, TensorSpec
from t2t.module import Converted, EngineStep, OperatorStep, Partition, TRTModule
from t2t.runtime import idle_engine

# Few microseconds are compared in short turns, as a processor's speed changes within seconds.
CALLS, TURNS = 200, 101
ENGINES = 8
MOST_SECONDS = 30e-6
TIMES_READING = 1.2


class Bare(nn.Module):
    """The loop that torch2trt's documents describe: look up, allocate, bind, enqueue."""

    def __init__(self, engine: Any, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.engine, self.context = engine, engine.create_execution_context()
        self.input_names, self.output_names = inputs, outputs
        self.on_gpu = torch.cuda.is_available()

    def forward(self, *inputs: torch.Tensor) -> Any:
        for name, x in zip(self.input_names, inputs, strict=True):
            self.context.set_tensor_address(name, x.contiguous().data_ptr())
            self.context.set_input_shape(name, tuple(x.shape))
        outputs = []
        for name in self.output_names:
            dtype = from_trt(self.engine.get_tensor_dtype(name))
            shape = tuple(self.context.get_tensor_shape(name))
            outputs.append(torch.empty(size=shape, dtype=dtype, device=inputs[0].device))
            self.context.set_tensor_address(name, outputs[-1].data_ptr())
        stream = torch.cuda.current_stream().cuda_stream if self.on_gpu else 0
        self.context.execute_async_v3(stream)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _many(module: Callable[..., Any], x: torch.Tensor, calls: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(calls):
            module(x)

    return run


def _calls() -> Figures:
    x = torch.rand(1, 3, 8, 8)
    converted = t2t.convert(nn.Conv2d(3, 4, 3).eval(), [x])
    signature = converted.signature
    engine = idle_engine(signature.inputs, signature.outputs, [(1, 4, 6, 6)], x.device)
    idle = TRTModule(torch.zeros(1, dtype=torch.uint8), signature)
    idle.engine.set_execution(x.device, engine.load(x.device))
    nothing = engine.load(x.device)._engine
    bare = Bare(nothing, converted.input_names, converted.output_names)
    with torch.no_grad(), one_thread():
        ours, theirs = (
            one / CALLS
            for one in medians(_many(idle, x, CALLS), _many(bare, x, CALLS), repeats=TURNS)
        )
    return Figures(
        "One call on the host",
        "One input and one output, with an engine that does nothing: what a converted module does "
        "in each call, against a limit, and beside the loop that torch2trt's documents describe, "
        "which checks nothing and serves one thread.",
        "t2t",
        "other",
        [
            Row.within("the limit", ours, MOST_SECONDS, 1),
            Row.within("the loop", ours, theirs, 1),
        ],
    )


def _boundaries() -> Figures:
    """Time a module of engines that do nothing, with an operator in PyTorch behind each."""
    spec = TensorSpec("x", torch.float32, (1, 4, 6, 6))
    signature = Signature.flat([spec], [replace(spec, name="y")])
    x = torch.rand(spec.shape)

    def engine() -> Any:
        return idle_engine(signature.inputs, signature.outputs, [spec.shape], x.device)

    steps = [
        step
        for i in range(0, 2 * ENGINES, 2)
        for step in (
            EngineStep(i // 2, [i], [i + 1]),
            OperatorStep("aten::relu", [{"tensor": i + 1}], {}, [i + 2]),
        )
    ]
    parts = [Converted(signature, engine(), None, {}) for _ in range(ENGINES)]
    ours = TRTModule(signature=signature, partition=Partition(1, steps, [2 * ENGINES], parts, {}))
    bare = [Bare(engine().load(x.device)._engine, ["x"], ["y"]) for _ in range(ENGINES)]
    theirs = nn.Sequential(*(layer for one in bare for layer in (one, nn.ReLU())))
    calls = CALLS // ENGINES
    with torch.no_grad(), one_thread():
        times = medians(_many(ours, x, calls), _many(theirs, x, calls), repeats=TURNS)
    mine, others = (one / calls / (2 * ENGINES) for one in times)
    return Figures(
        "From an engine to PyTorch and back",
        f"A partial module of {ENGINES} engines that do nothing, each with a relu of a small "
        "tensor behind it that stays in PyTorch: the time of a call, with the relus' own, for each "
        f"of the {2 * ENGINES} boundaries; against a limit, and beside an nn.Sequential of the "
        "loops above and nn.ReLU.",
        "t2t",
        "other",
        [
            Row.within("the limit", mine, MOST_SECONDS, 1),
            Row.timed("nn.Sequential", mine, others),
        ],
    )


def _loading() -> Figures:
    model = torchvision.models.vit_b_16().eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vit.pt"
        t2t.convert(model, [torch.rand(1, 3, 224, 224)]).save(path)
        ours, theirs = medians(lambda: t2t.load(path), path.read_bytes)
        size = path.stat().st_size / 1e6
    return Figures(
        "Loading a checkpoint",
        "`t2t.load`, which checks everything, against reading the file.",
        "load",
        "read",
        [Row.within(f"ViT-B/16, {size:.0f} MB", ours, theirs, TIMES_READING)],
    )


def figures() -> list[Figures]:
    return [_calls(), _boundaries(), _loading()]
