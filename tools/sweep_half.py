"""Convert the models of the sweep in fp16 and bf16; writes docs/models-half.md.

python tools/sweep_half.py             everything (some hours on one core)
python tools/sweep_half.py timm        only names that begin with this, or match a shell pattern
python tools/sweep_half.py --device cuda --jobs 16    minutes, where there is a GPU

Each model is traced once. Where its network in half precision misses the tolerance, the tuner looks
for what has to stay in float32. Both networks are built. Exits with 1 where that fails. Needs the
packages of the extra "sweep".
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from sweep_models import all_cases, in_process, one_line, prepare
from zoo.case import Case
from zoo.page import versions

from t2t.building import build
from t2t.errors import T2TError
from t2t.io import map_tree
from t2t.lowering import trace_module
from t2t.precision import Policy, Tuning
from t2t.tuning import Trials, tuned

TARGET = Path(__file__).resolve().parents[1] / "docs" / "models-half.md"
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = 2e-2
HEAD = """# Models in half precision

Written by `make sweep-half` ({packages}); do not edit.

The models of [the sweep](models.md), with the same weights and inputs, converted with `fp16=True`
and with `bf16=True`. The error is that of the network in the reference executor against PyTorch's
float32, relative, the largest over two inputs and all outputs. Where it is above {tolerance:g},
`tolerance={tolerance:g}` keeps in float32 what the third column of a type says, which leaves the
error of the second. Both ran on the device that the last column names. Every network is built.

{summary}

| model | fp16: error | with float32 | in float32 | bf16: error | with float32 | in float32 | on |
|---|---|---|---|---|---|---|---|
"""


@dataclass
class Half:
    """What half precision costs one model.

    Attributes:
        name: the model's name.
        result: why there are no figures; "" where there are.
        cells: for each type the error, the error of the tuned network, and what it keeps.
        device: where both ran, and with which PyTorch.
    """

    name: str
    result: str = ""
    cells: list[str] = field(default_factory=list)
    device: str = ""

    def row(self) -> str:
        """Return the row as Markdown."""
        cells = self.cells or [self.result.replace("|", "\\|"), "", "", "", "", ""]
        return f"| {self.name} | " + " | ".join([*cells, self.device]) + " |"


def examine(case: Case, device: str = "cpu") -> Half:
    """Convert a model in both types and run it on a device."""
    try:
        module, inputs = prepare(case)
        module = module.to(device)
        inputs = map_tree(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, inputs)
        args, kwargs = inputs[0]
        trace = trace_module(module, args, kwargs, **case.options)
        trials = Trials(trace, module, inputs)
        where = f"{device}, torch {torch.__version__.partition('+')[0]}"
        result = Half(case.name, device=where)
        for low in TYPES.values():
            policy = Policy(low)
            error = trials.error(policy)
            cells = [f"{error:.1e}", "", ""]
            if not error <= TOLERANCE:
                tuning = tuned(trials, policy, TOLERANCE)
                cells[1:] = f"{tuning.error:.1e}", _kept(tuning)
                policy = replace(policy, fp32_modules=tuning.fp32_modules, fp32_ops=tuning.fp32_ops)
            conversion = trace.lowered(policy)
            build(conversion.network.raw, builder=conversion.builder, progress=False)
            result.cells += cells
    except T2TError as error:
        return Half(case.name, f"refused: {one_line(error)}")
    except Exception as error:  # noqa: BLE001  a crash is a result
        return Half(case.name, f"crash: {one_line(error)}")
    return result


def _kept(tuning: Tuning) -> str:
    names = [*tuning.fp32_modules, *tuning.fp32_ops]
    first = ", ".join(f"`{name or 'the model'}`" for name in names[:3])
    return first + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def cases() -> Iterator[Case]:
    """Yield the static cases in float32 that can be converted."""
    for case in all_cases():
        if " " not in case.name and not case.refused:
            yield case


def write(results: Sequence[Half], known: Collection[str]) -> None:
    """Put new rows into the page, in the place of older ones of the same names."""
    rows: dict[str, str] = {}
    if TARGET.exists():
        for line in TARGET.read_text(encoding="utf-8").splitlines():
            if re.match(r"\| [a-z]+/", line):
                rows[line.split(" | ")[0][2:]] = line
    rows.update({result.name: result.row() for result in results})
    rows = {name: row for name, row in rows.items() if name in known}
    table = [row.strip("| ").split(" | ") for row in rows.values()]
    told = [cells for cells in table if re.match(r"inf|nan|[\d.]+e[-+]\d+$", cells[1])]
    alone = [
        f"{sum(float(cells[1 + 3 * index]) <= TOLERANCE for cells in told)} in {name}"
        for index, name in enumerate(TYPES)
    ]
    text = (
        f"{len(told)} models with figures: {' and '.join(alone)} meet {TOLERANCE:g} as they are, "
        f"the others with what the tuner keeps. {len(rows) - len(told)} models without figures."
    )
    head = HEAD.format(packages=versions(), summary=text, tolerance=TOLERANCE)
    TARGET.write_text(head + "\n".join(rows[name] for name in sorted(rows)) + "\n", "utf-8")


def main() -> int:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patterns", nargs="*", help="shell patterns of names, or their beginnings")
    parser.add_argument("--seconds", type=float, default=900, help="limit for each model")
    parser.add_argument("--device", default="cpu", help="where PyTorch and the executor compute")
    parser.add_argument("--jobs", type=int, default=1, help="how many models at a time")
    options = parser.parse_args()
    known = {case.name: case for case in cases()}
    patterns = options.patterns or [""]
    wanted = [
        case
        for name, case in known.items()
        if any(name.startswith(p) or fnmatch.fnmatch(name, p) for p in patterns)
    ]
    work = functools.partial(examine, device=options.device)
    results: list[Half] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(in_process, case, options.seconds, work, Half) for case in wanted]
        for run in as_completed(runs):
            results.append(run.result())
            sys.stdout.write(f"{results[-1].row()}\n")
            sys.stdout.flush()
            write(results, known)
    return int(any(result.result for result in results))


if __name__ == "__main__":
    sys.exit(main())
