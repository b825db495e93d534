"""Converted modules in programs of torch.export and torch.compile."""

from __future__ import annotations

import copy
import gc
import io
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import t2t
from t2t.errors import CheckpointError, EngineError, ShapeError
from t2t.module import run_engine
from t2t.module.engine_operator import _loaded

pytestmark = [
    pytest.mark.filterwarnings("ignore::t2t.ReferenceExecutionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # torch.export.load of PyTorch 2.11
    pytest.mark.filterwarnings("ignore:The given buffer is not writable"),
]


class Several(nn.Module):
    """Returns a dict; sizes of its results are those of its input and half of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 5)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Any:
        y = self.conv(x).relu()
        y = y if scale is None else y * scale
        return {"head": self.head(y.mean((2, 3))), "map": torch.cat([y, y], 3)}


class Larger(nn.Module):
    """A model with a converted part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.last = part, nn.Linear(5, 2)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.part(x)["head"]).sin()


MODEL = Several().eval()
X, Y = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
SIZES = ({0: Dim("n", min=1, max=8), 2: Dim("h", min=8, max=32)},)


@pytest.fixture(scope="module")
def converted() -> t2t.TRTModule:
    return t2t.convert(MODEL, [X])


@pytest.fixture(scope="module")
def dynamic() -> t2t.TRTModule:
    return t2t.convert(MODEL, [X], dynamic_shapes=SIZES)


def again(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def called(program: torch.export.ExportedProgram) -> list[str]:
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [str(node.target) for node in nodes if "getitem" not in str(node.target)]


def check(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_calls_one_operator(converted: t2t.TRTModule, strict: bool) -> None:
    program = torch.export.export(converted, (X,), strict=strict)
    assert called(program) == ["t2t.run_engine.default"]
    loaded = again(program).module()
    for x in (X, Y):
        check(program.module()(x), MODEL(x))
        check(loaded(x), MODEL(x))


def test_keyword_arguments_and_constants(converted: t2t.TRTModule) -> None:
    program = torch.export.export(converted, (), {"x": X, "scale": None})
    check(again(program).module()(x=Y, scale=None), MODEL(Y))
    scaled = t2t.convert(MODEL, [X], {"scale": torch.tensor(2.0)})
    program = torch.export.export(scaled, (X,), {"scale": torch.tensor(3.0)})
    check(again(program).module()(Y, scale=torch.tensor(4.0)), MODEL(Y, torch.tensor(4.0)))


def test_dynamic_sizes_stay_expressions(dynamic: t2t.TRTModule) -> None:
    program = torch.export.export(dynamic, (X,), dynamic_shapes=(SIZES,))
    ends = sorted((int(r.lower), int(r.upper)) for r in program.range_constraints.values())
    assert ends == [(1, 8), (8, 32)]
    loaded = again(program).module()
    for shape in ((1, 3, 8, 16), (5, 3, 25, 16), (8, 3, 32, 16)):
        x = torch.randn(shape)
        check(loaded(x), MODEL(x))
    with pytest.raises((AssertionError, RuntimeError), match="8"):
        loaded(torch.randn(9, 3, 16, 16))


def test_sizes_without_a_name_are_known_too() -> None:
    model = nn.Upsample(scale_factor=1.5)
    module = t2t.convert(model, [X], dynamic_shapes=[{0: (1, 8), 2: (4, 20)}])
    dims = ({0: Dim("n", min=1, max=8), 2: Dim("h", min=4, max=20)},)
    program = torch.export.export(module, (X,), dynamic_shapes=(dims,))
    assert len(program.range_constraints) == 2
    for x in (X, torch.randn(1, 3, 9, 16)):
        check(again(program).module()(x), model(x))
    assert "[" not in str(module.signature.outputs[0])


def test_an_export_adopts_the_sizes_of_the_conversion(
    converted: t2t.TRTModule, dynamic: t2t.TRTModule
) -> None:
    program = torch.export.export(dynamic, (X,), dynamic_shapes=(({0: Dim.AUTO, 3: Dim.AUTO},),))
    assert [int(r.upper) for r in program.range_constraints.values()] == [8]
    with pytest.raises(torch._dynamo.exc.UserError, match="n = 2"):
        torch.export.export(converted, (X,), dynamic_shapes=(({0: SIZES[0][0]},),))
    with pytest.raises(RuntimeError, match=r"x: float32 \(2, 3, 16, 16\)"):
        torch.export.export(converted, (X[:1],))
    with pytest.raises(ShapeError, match=r"'x' is torch.float16 of 4 dim"):
        torch.export.export(converted, (X.half(),))


def test_a_converted_part_of_a_larger_model(converted: t2t.TRTModule) -> None:
    model = Larger(converted).eval()
    program = torch.export.export(model, (X,))
    assert called(program)[0] == "t2t.run_engine.default"
    for x in (X, Y):
        check(again(program).module()(x), Larger(MODEL).forward.__func__(model, x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_needs_no_break(dynamic: t2t.TRTModule, backend: str) -> None:
    fresh = t2t.TRTModule()
    fresh.load_state_dict(dynamic.state_dict())
    model = Larger(fresh).eval()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for x in (X, Y, torch.randn(5, 3, 24, 16), torch.randn(3, 3, 9, 16)):
        check(compiled(x), model(x))


def test_a_model_compiled_by_t2t(converted: t2t.TRTModule) -> None:
    model = nn.Sequential(Larger(converted), nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 9)).eval()
    compiled = torch.compile(model, backend="t2t")
    with torch.no_grad():
        for x in (X, Y):
            check(compiled(x), model(x))


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 4))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.body(x)
        return torch.linalg.pinv(y), y


def test_partial_conversions() -> None:
    model = Tail().eval()
    cut = t2t.convert(model, [X], partial=True)
    program = torch.export.export(cut, (X,))
    assert called(program) == ["t2t.run_engine.default"]
    parts = t2t.convert_submodules(model, [X], modules=["body"])
    other = torch.export.export(parts, (X,))
    assert "torch.ops.t2t.run_engine.default" in str(other)
    assert "torch.ops.aten.linalg_pinv" in str(other)
    for x in (X, Y):
        for each in (program, other):
            check(again(each).module()(x), model(x))


def test_in_another_process(converted: t2t.TRTModule, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(converted, (X,)), tmp_path / "model.pt2")
    torch.save((X, MODEL(X)), tmp_path / "sample.pt")
    code = (
        "import sys, warnings, torch; warnings.simplefilter('ignore'); import t2t\n"
        "module = torch.export.load(sys.argv[1] + '/model.pt2').module()\n"
        "x, wanted = torch.load(sys.argv[1] + '/sample.pt')\n"
        "torch.testing.assert_close(module(x), wanted, rtol=1e-4, atol=1e-5)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_what_is_loaded_is_checked(converted: t2t.TRTModule) -> None:
    entries, text = converted._filled().to_tensors(), converted._filled().signature_text
    check(run_engine([X], entries, text)[0], MODEL(X)["head"])
    fresh = [x.clone() for x in entries]
    fresh[1].view(-1)[7] += 1
    with pytest.raises(CheckpointError, match="checksum"):
        run_engine([X], fresh, text)
    for broken in ([], [torch.zeros(4, dtype=torch.uint8)], [entries[0].clone()]):
        with pytest.raises(CheckpointError, match=r"damaged|no engine"):
            run_engine([X], broken, text)
    with pytest.raises(CheckpointError, match=r"not that of the signature.*export it again"):
        run_engine([X], entries, text.replace("16", "17"))
    with pytest.raises(ShapeError, match="'x' is float32"):
        run_engine([X[:1]], entries, text)


def test_the_operator_is_one_as_pytorch_wants_it(dynamic: t2t.TRTModule) -> None:
    entries, text = dynamic._filled().to_tensors(), dynamic._filled().signature_text
    result = torch.library.opcheck(run_engine, ([X], entries, text))
    assert set(result.values()) == {"SUCCESS"}


def test_results_are_no_views_of_inputs() -> None:
    module = t2t.convert(lambda x: (x, x.t()), [torch.rand(3, 3)])
    entries, text = module._filled().to_tensors(), module._filled().signature_text
    x = torch.rand(3, 3)
    first, second = run_engine([x], entries, text)
    check(second, x.t())
    assert len({y.untyped_storage().data_ptr() for y in (x, first, second)}) == 3


def test_an_engine_lives_as_long_as_its_program(converted: t2t.TRTModule) -> None:
    before = len(_loaded)
    entries = [x.clone() for x in converted._filled().to_tensors()]
    run_engine([X], entries, converted._filled().signature_text)
    assert len(_loaded) == before + 1
    del entries
    assert len(_loaded) == before


def test_a_module_and_its_program_share_an_engine(converted: t2t.TRTModule) -> None:
    fresh = copy.deepcopy(converted)
    program = torch.export.export(fresh, (X,)).module()
    fresh.last_run = None
    check(program(X), MODEL(X))
    assert fresh.last_run is not None
    fresh.require_engine = True
    with pytest.raises(EngineError, match="forbidden by require_engine"):
        program(X)
    # The program goes on as it was, with another checkpoint in the module and without it.
    other = t2t.convert(Several().eval(), [X])
    fresh.load_state_dict(other.state_dict())
    check(program(Y), MODEL(Y))
    alive = weakref.ref(fresh)
    del fresh
    gc.collect()
    assert alive() is None
    check(program(Y), MODEL(Y))


def test_state_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total * 2

    module = t2t.convert(Counter().eval(), [torch.ones(3)])
    with pytest.raises(EngineError, match=r"keeps state between calls \(total\)"):
        torch.export.export(copy.copy(module), (torch.ones(3),))
