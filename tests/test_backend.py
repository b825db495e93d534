"""Which TensorRT is used, and what works where there is none."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import t2t
from t2t import backend
from t2t.backend import trt
from t2t.errors import BackendError


@pytest.fixture(autouse=True)
def _choose_anew() -> Iterator[None]:
    backend._default.cache_clear()
    yield
    backend._default.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, installed: set[str], cuda: bool) -> None:
    monkeypatch.setattr(backend, "is_installed", lambda name: name in installed)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.delenv("T2T_BACKEND", raising=False)


@pytest.mark.parametrize(
    ("installed", "cuda", "wanted"),
    [
        ({"tensorrt", "tensorrt_rtx"}, True, "tensorrt"),
        ({"tensorrt", "tensorrt_rtx"}, False, "tensorrt_rtx"),
        ({"tensorrt_rtx"}, True, "tensorrt_rtx"),
        ({"tensorrt"}, False, "tensorrt"),
    ],
)
def test_the_default(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], cuda: bool, wanted: str
) -> None:
    pretend(monkeypatch, installed, cuda)
    assert backend.name() == wanted


def test_the_environment_and_the_argument_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"tensorrt", "tensorrt_rtx"}, cuda=True)
    monkeypatch.setenv("T2T_BACKEND", "tensorrt_rtx")
    assert backend.name() == "tensorrt_rtx"
    with backend.use("tensorrt"):
        assert backend.name() == "tensorrt"
    assert backend.name() == "tensorrt_rtx"


def test_wrong_names_and_missing_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"tensorrt_rtx"}, cuda=False)
    with (
        pytest.raises(BackendError, match=r"'onnx': the backends are tensorrt"),
        backend.use("onnx"),
    ):
        pass
    with pytest.raises(ImportError, match=r"not installed.*pip install"):
        t2t.convert(torch.relu, [torch.zeros(2)], backend="tensorrt")
    monkeypatch.setenv("T2T_BACKEND", "tensorrt")
    with pytest.raises(BackendError, match=r"T2T_BACKEND='tensorrt'"):
        backend.name()


def test_converting_without_any_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, set(), cuda=False)
    with pytest.raises(ImportError, match=r"pip install tensorrt-rtx-cu13.*pip install tensorrt"):
        t2t.convert(torch.relu, [torch.zeros(2)])


def test_without_tensorrt_checkpoints_load_and_programs_run(tmp_path: Path) -> None:
    module = t2t.convert(torch.relu, [torch.zeros(2, 3)], progress=False)
    torch.save(module.state_dict(), tmp_path / "relu.pth")
    script = f"""
        import sys, warnings
        sys.modules["tensorrt"] = sys.modules["tensorrt_rtx"] = None
        import torch, t2t
        module = t2t.TRTModule()
        module.load_state_dict(torch.load({str(tmp_path / "relu.pth")!r}, weights_only=True))
        x = torch.tensor([[-1.0, 2.0, -3.0], [4.0, -5.0, 6.0]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", t2t.ReferenceExecutionWarning)
            assert torch.equal(module(x), x.relu())
        try:
            t2t.convert(torch.relu, [x])
        except ImportError as error:
            assert "pip install" in str(error), error
        else:
            raise AssertionError("it converted without TensorRT")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_importing_t2t_imports_no_tensorrt() -> None:
    script = "import sys, t2t; sys.exit(bool({'tensorrt', 'tensorrt_rtx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_each_thread_hears_its_own_errors() -> None:
    texts: dict[str, str] = {}
    network = backend.create_network(trt.Builder(backend.logger()))
    network.add_input("x", trt.float32, (2,))

    def fail() -> None:
        assert network.add_input("x", trt.float32, (2,)) is None
        texts["other"] = backend.error_text()

    backend.forget_errors()
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert "addInput" in texts["other"]
    assert backend.error_text() == "TensorRT gave no reason"


def test_features_are_asked_for_by_name() -> None:
    assert backend.has_layer("add_convolution_nd")
    assert not backend.has_layer("add_flux_compensator")
    assert backend.is_rtx() == (backend.name() == "tensorrt_rtx")
