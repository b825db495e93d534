"""TensorRT's progress during a build: shown on the terminal, and the way to cancel it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from t2t.backend import trt


class Phases:
    """The phases of one build, each a bar while it runs; TensorRT may report from any thread.

    Args:
        bars: where to show them; None shows nothing.
    """

    def __init__(self, bars: Progress | None = None) -> None:
        self.cancelled = False
        self._bars = bars
        self._tasks: dict[str, Any] = {}
        self._depths: dict[str, int] = {}
        self._steps: dict[str, int] = {}

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """Show a phase of this many steps, indented under its parent."""
        depth = self._depths.get(parent, -1) + 1 if parent else 0
        self._depths[name], self._steps[name] = depth, steps
        if self._bars is not None:
            self._tasks[name] = self._bars.add_task("  " * depth + name, total=steps)

    def step(self, name: str, index: int) -> bool:
        """Show that a step is complete; False cancels the build."""
        if self._bars is not None and name in self._tasks:
            self._bars.update(self._tasks[name], completed=index + 1)
        return not self.cancelled

    def finish(self, name: str) -> None:
        """Take a finished phase away; the outermost stays, with its time."""
        if self._bars is None or name not in self._tasks:
            return
        task = self._tasks.pop(name)
        if self._depths[name] > 0:
            self._bars.remove_task(task)
        else:
            self._bars.update(task, completed=self._steps[name])


def monitor(phases: Phases) -> Any:
    """Make a TensorRT progress monitor that reports to these phases."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return phases.step(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)

    return Monitor()


@contextmanager
def interruptible(phases: Phases) -> Iterator[None]:
    """Turn Ctrl-C into a cancelled build, then into KeyboardInterrupt.

    TensorRT swallows an exception that is raised inside its callbacks, so an interrupt that arrives
    there would end the build without a word. Only the main thread receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def cancel(*_: Any) -> None:
        phases.cancelled = True

    previous = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)
    if phases.cancelled:
        raise KeyboardInterrupt("the build was cancelled")


@contextmanager
def shown(progress: bool | None) -> Iterator[Phases]:
    """Return the phases of a build, with a bar for each if asked for.

    Args:
        progress: whether to show bars; None shows them only on a terminal.
    """
    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress
    if not show:
        yield Phases()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        yield Phases(bars)
