"""Run the tests with other versions of PyTorch, and write docs/versions.md.

python tools/matrix.py                      the oldest and the newest that t2t supports
python tools/matrix.py 2.8.0 2.11.0         these
python tools/matrix.py --python python3     an environment that is there already, as it is

Each version gets an environment of its own under .matrix/, with the newest packages that go with
it; the table keeps the rows of versions that were not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "versions.md"
# torchvision names the torch that it belongs to; pip finds the one that fits.
VERSIONS = ("2.8.0", "2.14.1")
HEAD = """# Versions

Written by `python tools/matrix.py` (`make matrix`), which runs the tests in an environment for each
version of PyTorch; do not edit. t2t is written for Python 3.10 to 3.13 (checked by ruff and mypy
for the oldest) and for TensorRT 10.3 to 11.4 and TensorRT-RTX 1.4 to 1.7.

| PyTorch | Python | TensorRT | passed | failed | skipped |
|---|---|---|---|---|---|
"""
_ROW = re.compile(r"^\| (\d[^ |]*) \| ")
ASK = """
import json, platform, torch
from importlib.metadata import PackageNotFoundError, version
def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
rtx, full = found("tensorrt-rtx-cu13"), found("tensorrt")
print(json.dumps({
    "torch": torch.__version__.partition("+")[0],
    "python": platform.python_version(),
    "tensorrt": f"RTX {rtx}" if rtx else full,
}))
"""


def main() -> int:
    """Run what the command line says; return how many tests failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="versions of PyTorch")
    parser.add_argument("--python", help="an interpreter to use as it is, instead of versions")
    parser.add_argument("--pytest", default="", help='more options of pytest, as "-n 8"')
    given = parser.parse_args()
    pythons = [given.python] if given.python else [environment(v) for v in given.versions]
    failed = 0
    for python in pythons:
        row, failures = run(python, given.pytest.split())
        failed += len(failures)
        write(row, failures)
    return min(failed, 1)


def environment(version: str) -> str:
    """Make the environment of a version of PyTorch, once; return its interpreter."""
    folder = ROOT / ".matrix" / version
    python = str(folder / "bin" / "python")
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        packages = [f"torch=={version}", "torchvision", "--editable", ".[test,rtx,vision]"]
        subprocess.run([*pip, *packages], check=True, cwd=ROOT)
        subprocess.run([*pip, "--no-deps", "facenet-pytorch==2.6.0"], check=True, cwd=ROOT)
        (folder / ".ready").touch()
    return python


def run(python: str, options: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Run the tests; return a row of the table, and why tests failed."""
    environ = {"OMP_NUM_THREADS": "1", **os.environ}
    asked = subprocess.run([python, "-c", ASK], check=True, capture_output=True, env=environ)
    row = json.loads(asked.stdout)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            python,
            "-m",
            "pytest",
            "-q",
            "--show-capture=no",
            "--continue-on-collection-errors",
            f"--junitxml={report}",
        ]
        subprocess.run([*command, *options], check=False, cwd=ROOT, env=environ)
        suite = ElementTree.parse(report).getroot()
    failures = {}
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for case in suite.iter("testcase"):
        bad = next(
            (case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None
        )
        kind = (
            "failed" if bad is not None else "passed" if case.find("skipped") is None else "skipped"
        )
        counts[kind] += 1
        if bad is not None:
            name = f"{case.get('classname')}.{case.get('name')}".removeprefix("tests.")
            failures[name] = _without_paths((bad.get("message") or "").partition("\n")[0])
    return {**row, **counts}, failures


def _without_paths(text: str) -> str:
    """Leave out where the checkout and the packages lie on this machine."""
    return re.sub(r"[^\s'\"]*/site-packages/", "", text).replace(f"{ROOT}/", "")


def write(row: dict[str, Any], failures: dict[str, str]) -> None:
    """Put a row and its failures into the page, in the place of the same version's."""
    rows: dict[str, str] = {}
    parts: dict[str, str] = {}
    if TARGET.exists():
        table, *sections = re.split(r"^## ", TARGET.read_text(encoding="utf-8"), flags=re.M)
        rows = {m[1]: line for line in table.splitlines() if (m := _ROW.match(line))}
        parts = {section.split()[1]: f"## {section.strip()}\n" for section in sections}
    version = row["torch"]
    rows[version] = "| " + " | ".join(str(value) for value in row.values()) + " |"
    parts.pop(version, None)
    if failures:
        lines = [f"- `{name}`: {why[:160]}" for name, why in sorted(failures.items())]
        parts[version] = f"## PyTorch {version}\n\nWhat failed:\n\n" + "\n".join(lines) + "\n"
    order = sorted(rows, key=lambda v: [int(n) for n in re.findall(r"\d+", v)])
    page = HEAD + "\n".join(rows[v] for v in order) + "\n"
    page += "".join(f"\n{parts[v]}" for v in order if v in parts)
    TARGET.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
