"""Convert hundreds of real architectures and compare each with PyTorch; writes docs/models.md.

python tools/sweep_models.py                     everything (an hour on one core)
python tools/sweep_models.py timm "*swin* fp16"  only what one of the patterns matches
python tools/sweep_models.py --list              the names

Each model gets a process of its own, one after the other. Exits with 1 where a model neither
converts nor is refused as it should be. Needs the packages of the extra "sweep".
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import multiprocessing
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from zoo import (
    other_models,
    timm_models,
    torchvision_models,
    transformers_models,
    ultralytics_models,
)
from zoo.case import Case, Inputs
from zoo.page import TARGET, Result, write
from zoo.weights import vary

import t2t
from t2t.building import build
from t2t.errors import BuildError, T2TError
from t2t.io import flatten, map_tree, unflatten
from t2t.precision import Policy
from t2t.reference import capture
from t2t.verification.metrics import measure

MEMORY = 14 << 30
# A model whose outputs differ this little between two inputs hides errors behind a large constant.
LEAST_CHANGE = 1e-3
# Above, rounding errors grow through the model until they hide everything else.
CHAOS = 1e-2
TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2


def all_cases() -> Iterator[Case]:
    """Yield every case."""
    for package in (
        torchvision_models,
        timm_models,
        transformers_models,
        ultralytics_models,
        other_models,
    ):
        yield from package.cases()


def examine(case: Case) -> Result:
    """Convert, compare and build one model."""
    result = Result(case.name)
    try:
        module, inputs = prepare(case)
        with torch.no_grad():
            expected = [module(*args, **kwargs) for args, kwargs in inputs]
    except Exception as error:  # noqa: BLE001  whatever the model's own code raises
        result.result = f"PyTorch fails: {one_line(error)}"
        return result
    try:
        _convert(case, _unused(case, module), inputs, expected, result)
    except BuildError as error:
        result.result = f"the builder refuses: {one_line(error)}"
    except T2TError as error:
        known = case.refused and re.search(case.refused, str(error))
        result.result = f"{'refused, rightly' if known else 'refused'}: {one_line(error)}"
    except Exception as error:  # noqa: BLE001  a crash is a result
        notes = " ".join(getattr(error, "__notes__", ()))
        result.result = f"crash: {one_line(error)} {' '.join(notes.split())[:200]}"
    return result


def prepare(case: Case) -> tuple[torch.nn.Module, list[Inputs]]:
    """Make a case's model, with weights that show errors, and the inputs of its two runs."""
    torch.manual_seed(0)
    module = case.make()
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    inputs = [case.draw(generator, run) for run, generator in enumerate(generators)]
    if not case.keep_weights:
        vary(module, case)
    return module, inputs


def _unused(case: Case, module: torch.nn.Module) -> torch.nn.Module:
    """Make the model again: what one keeps of its first call may make its conversion easier."""
    torch.manual_seed(0)
    fresh = case.make()
    fresh.load_state_dict(module.state_dict())
    return fresh


def _convert(
    case: Case, module: Any, inputs: Sequence[Inputs], expected: Sequence[Any], result: Result
) -> None:
    start = time.perf_counter()
    policy = Policy(torch.float16 if case.fp16 else None)
    conversion = t2t.to_network(module, *inputs[0], policy=policy, **case.options)
    result.converted = time.perf_counter() - start
    raw = conversion.network.raw
    result.layers = raw.num_layers
    result.calls = len(conversion.graph.used_calls(conversion.graph.output[0]))
    program = capture(raw, conversion.network.weights)
    worst: dict[str, Any] = {}
    tolerance = HALF_TOLERANCE if case.fp16 else TOLERANCE
    signature = conversion.signature
    for (args, kwargs), wanted in zip(inputs, expected, strict=True):
        answers = program.run(_tensors((args, kwargs)))
        leaves = [answers[spec.name] for spec in signature.outputs]
        got = unflatten(signature.output_structure, leaves)
        problem = measure(wanted, got, tolerance, tolerance, worst)
        if problem:
            result.result = f"WRONG: {problem}"
            return
    result.error = max(output.max_rel_error for output in worst.values())
    bad = [f"{name} {report.note}".strip() for name, report in worst.items() if not report.ok]
    if bad:
        noise = _noise(module, inputs, expected)
        if case.fp16 or not result.error < 5 * noise:
            result.result = f"WRONG: {', '.join(bad)}; PyTorch's own rounding error is {noise:.0e}"
            return
        kind = "ok" if result.error < CHAOS else "weak"
        result.result = f"{kind}: PyTorch's own rounding error is {noise:.0e}"
    del program
    gc.collect()
    start = time.perf_counter()
    build(raw, builder=conversion.builder, profiles=conversion.profiles(), progress=False)
    result.built = time.perf_counter() - start
    if result.result == "ok" and not changes(expected):
        result.result = "weak: the outputs hardly depend on the inputs"


def _noise(module: Any, inputs: Sequence[Inputs], expected: Sequence[Any]) -> float:
    """Measure how far PyTorch's float32 result moves by rounding.

    That is, from its float64 result, and where a millionth is added to the inputs: a model that
    selects its best candidates selects others in each.
    """
    worst: dict[str, Any] = {}
    for (args, kwargs), found in zip(inputs, expected, strict=True):
        with torch.no_grad():
            moved = module(*map_tree(_moved, args), **map_tree(_moved, kwargs))
        measure(_as_doubles(found), _as_doubles(moved), 1.0, 1.0, worst)
    module = module.double()
    for (args, kwargs), found in zip(inputs, expected, strict=True):
        with torch.no_grad():
            wanted = module(*map_tree(_double, args), **map_tree(_double, kwargs))
        measure(_as_doubles(wanted), _as_doubles(found), 1.0, 1.0, worst)
    return float(max(output.max_rel_error for output in worst.values()))


def _moved(x: Any) -> Any:
    return x * (1 + 1e-6) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _as_doubles(tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return unflatten(structure, [_double(leaf) for leaf in leaves])


def _double(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree.clone()]
    items = tree.values() if isinstance(tree, dict) else tree
    nested = isinstance(tree, list | tuple | dict)
    return [x for item in items for x in _tensors(item)] if nested else []


def changes(expected: Sequence[Any]) -> bool:
    """Return whether the outputs for the two inputs differ enough to show an error."""
    one, two = (_leaves(x) for x in expected)
    for a, b in zip(one, two, strict=True):
        if a.shape != b.shape or not a.dtype.is_floating_point:
            return True
        if float((a - b).norm()) > LEAST_CHANGE * float(a.norm()):
            return True
    return False


def _leaves(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    items = tree.values() if hasattr(tree, "values") else tree
    return [x for item in items for x in _leaves(item)] if hasattr(items, "__iter__") else []


def one_line(error: BaseException) -> str:
    """Return an error's class and text without line breaks and paths."""
    text = f"{type(error).__name__}: {error}"
    # Paths of one machine say nothing to another.
    text = re.sub(r"[^\s']*/(?:site-packages/|(?=zoo/))", "", text)
    return " ".join(text.split())[:400]


def in_process(
    case: Case, seconds: float, examine: Callable[[Case], Any] = examine, kind: Any = Result
) -> Any:
    """Examine a case in a process of its own, which memory and time are limited for.

    Args:
        case: the model.
        seconds: the limit.
        examine: what is done with it.
        kind: makes the result of a process that died, from the model's name and what happened.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(case, theirs, examine, kind))
    process.start()
    theirs.close()
    result = kind(case.name, result="crash: the process died")
    if ours.poll(seconds):
        try:
            result = ours.recv()
        except EOFError:
            process.join()
            result.result = f"crash: the process ended with {process.exitcode}"
    else:
        result.result = f"crash: not ready in {seconds:.0f} seconds"
        process.kill()
    process.join()
    return result


def _child(case: Case, pipe: Any, examine: Callable[[Case], Any], kind: Any) -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    try:
        result = examine(case)
    except MemoryError:
        result = kind(case.name, result="crash: out of memory")
    pipe.send(result)


def main() -> int:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patterns", nargs="*", help="shell patterns of names, or their beginnings")
    parser.add_argument("--list", action="store_true", help="only print the names")
    parser.add_argument("--seconds", type=float, default=400, help="limit for each model")
    parser.add_argument("--failed", action="store_true", help="only what is not ok in the page")
    options = parser.parse_args()
    known = {case.name: case for case in all_cases()}
    cases = [case for name, case in known.items() if _chosen(name, options)]
    results = []
    for index, case in enumerate(cases):
        if options.list:
            sys.stdout.write(f"{case.name}\n")
            continue
        sys.stdout.write(f"[{index + 1}/{len(cases)}] ")
        sys.stdout.flush()
        results.append(in_process(case, options.seconds))
        sys.stdout.write(f"{results[-1].row()}\n")
        sys.stdout.flush()
        write(results, known)
    return int(any(not r.result.startswith(("ok", "refused, rightly")) for r in results))


def _chosen(name: str, options: argparse.Namespace) -> bool:
    patterns = options.patterns
    if patterns and not any(name.startswith(p) or fnmatch.fnmatch(name, p) for p in patterns):
        return False
    if options.failed and TARGET.exists():
        return f"| {name} |" not in "".join(
            line
            for line in TARGET.read_text(encoding="utf-8").splitlines(keepends=True)
            if re.search(r"\| (ok|refused, rightly.*) \|$", line.rstrip())
        )
    return True


if __name__ == "__main__":
    sys.exit(main())
