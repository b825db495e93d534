"""Times, peak memory and tables: what every benchmark needs."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from t2t import backend

REPEATS = 5
Task = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One figure: what is compared, both values, their ratio and what the ratio should be."""

    what: str
    ours: str
    theirs: str
    ratio: float
    wanted: str
    good: bool

    @staticmethod
    def faster(what: str, ours: float, theirs: float, least: float) -> Row:
        """Compare seconds: theirs / ours should be ``least`` or more."""
        ratio = theirs / ours
        return Row(what, seconds(ours), seconds(theirs), ratio, f">= {least:g}", ratio >= least)

    @staticmethod
    def within(what: str, ours: float, theirs: float, most: float, unit: str = "s") -> Row:
        """Compare seconds, bytes or counts: ours / theirs should be ``most`` or less."""
        ratio = ours / theirs
        show = {"s": seconds, "B": megabytes}.get(unit, lambda value: f"{value:g}")
        return Row(what, show(ours), show(theirs), ratio, f"<= {most:g}", ratio <= most)

    @staticmethod
    def shown(what: str, ours: float, theirs: float) -> Row:
        """Show two counts without a limit."""
        return Row(what, f"{ours:g}", f"{theirs:g}", ours / theirs, "-", True)

    @staticmethod
    def timed(what: str, ours: float, theirs: float) -> Row:
        """Show two times without a limit."""
        return Row(what, seconds(ours), seconds(theirs), ours / theirs, "-", True)


@dataclass
class Figures:
    """The figures of one benchmark."""

    title: str
    about: str
    ours: str
    theirs: str
    rows: list[Row] = field(default_factory=list)


def seconds(value: float) -> str:
    """Show seconds with three digits."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def megabytes(value: float) -> str:
    """Show bytes in MiB."""
    return f"{value / 2**20:.0f} MiB"


def medians(*tasks: Task, repeats: int = REPEATS) -> list[float]:
    """Time several tasks in turn, so that each meets the same machine; medians in seconds.

    The seconds are of the processor, in all threads of this process: other programs on the machine
    change them little. Each task runs once more before, untimed.
    """
    times: list[list[float]] = [[] for _ in tasks]
    for task in tasks:
        task()
    for _ in range(repeats):
        for task, taken in zip(tasks, times, strict=True):
            started = time.process_time()
            task()
            taken.append(time.process_time() - started)
    return [statistics.median(taken) for taken in times]


def peak_growth(task: Task) -> int:
    """Run a task and give the bytes by which the process's peak passed its present memory (Linux).

    "5" in clear_refs resets the peak (VmHWM) that the kernel keeps, see proc(5). What glibc holds
    back of freed memory is given to the kernel before, or the task could use it unseen.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    task()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {name}")


def in_new_process(module: str, *arguments: str, repeats: int = REPEATS) -> float:
    """Return the median of what ``python -m module arguments`` prints as JSON in its last line."""
    values = []
    for _ in range(repeats):
        command = [sys.executable, "-m", module, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr}")
        values.append(float(json.loads(result.stdout.splitlines()[-1])))
    return statistics.median(values)


def machine() -> dict[str, Any]:
    """Return where the figures come from."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line for line in lines if line.startswith("model name")]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": date.today().isoformat(),
        "processor": names[0].split(":")[1].strip() if names else platform.machine(),
        "cores": os.cpu_count(),
        "GPU": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        backend.name(): backend.version(),
    }
