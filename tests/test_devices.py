"""Models and inputs that lie elsewhere than on the CPU, as on a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("device", ["second", "cuda"])
def test_rows_run_where_their_inputs_are(device: str) -> None:
    """In a process of its own: torch keeps a device for good."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if device == "second" and not (shutil.which("g++") and shutil.which("ninja")):
        pytest.skip("needs g++ and ninja")
    # Every row, where there is time: python -m tests.on_device second
    command = [sys.executable, "-m", "tests.on_device", device, "--every", "12"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
