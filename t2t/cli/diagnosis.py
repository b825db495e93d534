"""``t2t doctor``: what is installed here, and what t2t can do with it."""

from __future__ import annotations

import fnmatch
import os
import platform
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from t2t.cli.running import DISAGREES, NO_ENGINE, Refusal, Result, reporting, stage, table
from t2t.version import __version__

# What they are for.
_OPTIONAL = {
    "torchvision": "torchvision:NAME",
    "timm": "timm:NAME",
    "transformers": "transformers:NAME",
    "safetensors": "--weights file.safetensors",
    "onnx": "the reference executor's own checks",
}


_TESTS = Path(__file__).resolve().parents[2] / "tests"


@click.command()
@click.option("--run", "runs", is_flag=True, help="Run engines, and compare them with PyTorch.")
@click.option(
    "--rows",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --run: the folder tests of a checkout of t2t, whose operators are run, too.",
)
@click.option("--only", default="*", help="With --run: a shell pattern of what is run.")
@reporting
def doctor(*, runs: bool, rows: Path | None, only: str) -> Result:
    """Show what is installed here, what t2t chooses, and whether engines can run."""
    if not runs and (rows is not None or only != "*"):
        raise Refusal("--rows and --only say what --run runs")
    data = _found()
    shown, code = [_shown(data)], DISAGREES if data["problems"] else 0
    if runs:
        data["checks"] = checks = _checks(data, rows, only)
        shown += _checks_shown(data, checks)
        code = _checks_code(checks) or code
    return Result(data, shown, code)


def _checks(data: dict[str, Any], rows: Path | None, only: str) -> list[dict[str, Any]] | None:
    """Run engines on the first GPU that does; None where there is none."""
    import torch

    from t2t.cli.engines import run_trials, trials_of_models, trials_of_rows

    engine = next((engine for engine in data["engines"] if engine["runs"]), None)
    if engine is None:
        return None
    trials = [trial for trial in trials_of_models() if fnmatch.fnmatchcase(trial.name, only)]
    if rows is None and (_TESTS / "cases.py").is_file():
        rows = _TESTS  # this is a checkout
    if rows is not None:
        trials += trials_of_rows(rows, only)
    if not trials:
        raise Refusal(f"--only {only!r} is none of what --run runs")
    stage(f"Running {len(trials)} networks on {engine['gpu']}")
    device = torch.device(engine["gpu"].split()[0])
    return [asdict(check) for check in run_trials(trials, device, engine["backend"])]


def _checks_shown(data: dict[str, Any], checks: list[dict[str, Any]] | None) -> list[Any]:
    if checks is None:
        reasons = [engine["problem"] for engine in data["engines"]]
        return [f"No engine can run here{': ' if reasons else ''}{'; '.join(reasons)}"]
    wrong = [check for check in checks if not check["ok"]]
    lines: list[Any] = [f"{len(checks) - len(wrong)} of {len(checks)} networks are right"]
    errors = sorted((check for check in checks if check["ok"]), key=lambda c: -(c["error"] or 0))
    if errors:
        rows = [(check["name"], f"{check['error']:.1e}") for check in errors[:5]]
        lines.append(table(["farthest from PyTorch, but right", "relative error"], rows))
    if wrong:
        lines.append(table(["WRONG", ""], [(c["name"], c["problem"]) for c in wrong]))
    return lines


def _checks_code(checks: list[dict[str, Any]] | None) -> int:
    if checks is None:
        return NO_ENGINE
    return 0 if all(check["ok"] for check in checks) else DISAGREES


def _found() -> dict[str, Any]:
    """Return what is installed here, and whether engines run."""
    import torch

    gpus = _gpus()
    backends, chosen, problems = _backends()
    optional = {name: _version(name) for name in _OPTIONAL}
    variables = ("T2T_BACKEND", "T2T_REQUIRE_ENGINE", "CUDA_VISIBLE_DEVICES")
    return {
        "t2t": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "driver": _driver(),
        "gpus": gpus,
        "backends": backends,
        "backend": chosen,
        "engines": _engines(backends, gpus),
        "optional": optional,
        "environment": {name: os.environ[name] for name in variables if name in os.environ},
        "problems": problems,
    }


def _gpus() -> list[dict[str, Any]]:
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
            }
        )
    return found


def _backends() -> tuple[dict[str, Any], dict[str, str] | None, list[str]]:
    """Look for both TensorRTs; return them, the one that is chosen with the reason, problems."""
    from t2t import backend
    from t2t.errors import BackendError

    found: dict[str, Any] = {}
    problems = []
    for name in backend.BACKENDS:
        if not backend.is_installed(name):
            found[name] = None
            continue
        try:
            with backend.use(name):
                found[name] = {"version": backend.version()}
        except BackendError as error:
            found[name] = {"problem": str(error)}
    try:
        chosen, why = backend.default()
    except BackendError as error:
        return found, None, [str(error)]
    if found[chosen] and "problem" in found[chosen]:
        problems.append(found[chosen]["problem"])
    return found, {"name": chosen, "why": why}, problems


def _engines(backends: dict[str, Any], gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Build a tiny engine with each TensorRT and load it on each GPU; say why it does not run."""
    import torch

    from t2t.conversion import convert
    from t2t.errors import T2TError

    found = []
    for name, state in backends.items():
        if not state or "problem" in state:
            continue
        for index, gpu in enumerate(gpus):
            device = torch.device("cuda", index)
            with torch.cuda.device(device):
                try:
                    made = convert(torch.relu, [torch.zeros(2)], backend=name)
                    assert made.engine is not None
                    problem = made.engine.why_not(device) or ""
                except T2TError as error:
                    problem = str(error)
            entry = {"backend": name, "gpu": f"cuda:{index} {gpu['name']}"}
            found.append({**entry, "runs": not problem, "problem": problem})
    return found


def _driver() -> str | None:
    """Return the version of NVIDIA's driver: from the kernel, else from nvidia-smi."""
    file = Path("/proc/driver/nvidia/version")
    if file.exists():
        numbers = re.search(r"\d+\.\d+(?:\.\d+)?", file.read_text(encoding="utf-8"))
        return numbers[0] if numbers else None
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.splitlines()[0] if result.returncode == 0 and result.stdout else None


def _version(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _shown(data: dict[str, Any]) -> Any:
    cuda = f"with CUDA {data['torch_cuda']}" if data["torch_cuda"] else "without CUDA"
    rows = [
        ("t2t", data["t2t"]),
        ("Python", f"{data['python']} on {data['platform']}"),
        ("torch", f"{data['torch']} {cuda}"),
        ("driver", data["driver"] or "no NVIDIA driver found"),
    ]
    for index, gpu in enumerate(data["gpus"]):
        memory = f"{gpu['memory_bytes'] / 2**30:.0f} GiB"
        rows.append((f"cuda:{index}", f"{gpu['name']}, {gpu['compute_capability']}, {memory}"))
    if not data["gpus"]:
        rows.append(("GPU", "torch finds none"))
    for name, state in data["backends"].items():
        state = state or {"problem": "not installed"}
        rows.append((name, state.get("version") or state["problem"]))
    if data["backend"]:
        rows.append(("chosen", f"{data['backend']['name']}: {data['backend']['why']}"))
    for engine in data["engines"]:
        runs = "run" if engine["runs"] else f"do not run: {engine['problem']}"
        rows.append(("engines", f"of {engine['backend']} on {engine['gpu']} {runs}"))
    if not data["engines"]:
        rows.append(
            ("engines", "cannot run here; converted modules run in PyTorch's reference executor")
        )
    for name, version in data["optional"].items():
        rows.append((name, version or f"not installed; for {_OPTIONAL[name]}"))
    rows += data["environment"].items()
    rows += [("PROBLEM", problem) for problem in data["problems"]]
    return table(["", ""], rows)
