"""Runs rows of the operator tables, and modules, on a device: python -m tests.on_device DEVICE.

The device is "cuda" or "second", which tests/data/second_device.cpp makes of the CPU. Each row's
module, inputs and arguments are moved there, traced there, and the network's program runs there; it
must give what PyTorch gives on the CPU. Rows that PyTorch itself cannot run on the device (their
functions make tensors on the CPU) are left out. Prints what fails, and exits with 1 if anything
does or if fewer rows ran than expected.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from t2t.io import map_tree
from t2t.lowering import to_network
from t2t.reference import capture
from tests.cases import OpCase, leaves, parts_of
from tests.test_coverage import tables
from tests.test_isolation import CachesBiases

SOURCE = Path(__file__).parent / "data" / "second_device.cpp"


class _Module(types.ModuleType):
    """What torch asks a device's module for."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16]


def make_second() -> None:
    """Build and register the device "second"; cannot be undone in this process."""
    from torch.utils import cpp_extension

    torch.utils.rename_privateuse1_backend("second")
    torch._register_device_module("second", _Module("second"))
    with tempfile.TemporaryDirectory() as folder:
        cpp_extension.load(
            "second_device",
            [str(SOURCE)],
            extra_cflags=["-O0"],
            build_directory=folder,
            is_python_module=False,
        )
    torch.utils.generate_methods_for_privateuse1_backend()
    library = torch.library.Library("aten", "IMPL")
    library.impl("_thnn_fused_lstm_cell", _lstm_cell, "PrivateUse1")
    library.impl("_thnn_fused_gru_cell", _gru_cell, "PrivateUse1")
    _LIBRARIES.append(library)


# As on a GPU, the cells are operators of their own; what torch registers lives as long as this.
_LIBRARIES: list[torch.library.Library] = []


def _lstm_cell(x: Any, hidden: Any, state: Any, *biases: Any) -> Any:
    gates = sum((bias for bias in biases if bias is not None), x + hidden)
    i, f, g, o = gates.chunk(4, 1)
    cell = torch.addcmul(torch.sigmoid(f) * state, torch.sigmoid(i), torch.tanh(g))
    return torch.sigmoid(o) * torch.tanh(cell), cell, torch.empty_like(x)


def _gru_cell(x: Any, hidden: Any, state: Any, *biases: Any) -> Any:
    if biases and biases[0] is not None:
        x, hidden = x + biases[0], hidden + biases[1]
    rx, zx, nx = x.chunk(3, 1)
    rh, zh, nh = hidden.chunk(3, 1)
    z = torch.sigmoid(zx + zh)
    result = (1 - z) * torch.tanh(nx + torch.sigmoid(rx + rh) * nh) + z * state
    return result, state.new_empty(state.shape[0], 5 * state.shape[1])


def rows(every: int) -> Iterator[tuple[str, OpCase]]:
    """Yield every n-th row that is not refused, and its name."""
    found = [
        (f"{table}:{case.name}", case)
        for table, cases in tables().items()
        for case in cases
        if case.raises is None
    ]
    yield from found[::every]


class Tables(nn.Module):
    """Makes tables where its input is, and indexes with one on the CPU."""

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> Any:
        number = torch.arange(x.shape[1], device=x.device)
        added = x.index_put((torch.tensor([0, 0, 1]),), torch.tensor(2.0), accumulate=True)
        chosen = torch.nn.functional.one_hot(tokens, 7)
        return added * number, x[torch.tensor([1, 0])], chosen, x.narrow(1, tokens[0] % 2, 2)


MODULES = [
    OpCase("keeps-table", CachesBiases(), [(3, 4)]),
    OpCase("tables", Tables(), [(3, 4), lambda g: torch.randint(0, 7, (5,), generator=g)]),
    OpCase("prelu", nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4)), [(2, 3, 8, 8)]),
    OpCase("lstm", nn.LSTM(4, 5, 2, bidirectional=True), [(6, 2, 4)]),
    OpCase("lstm-cell", nn.LSTMCell(4, 3), [(5, 4)]),
    OpCase("lstm-cell-plain", nn.LSTMCell(4, 3, bias=False), [(5, 4)]),
    OpCase("gru-cell", nn.GRUCell(4, 3), [(5, 4), (5, 3)]),
    OpCase("gru-cell-plain", nn.GRUCell(4, 3, bias=False), [(5, 4), (5, 3)]),
]


@torch.no_grad()
def check(case: OpCase, device: str) -> str:
    """Return what is wrong with a row on a device; "skip" where PyTorch cannot run it there."""

    def moved(tree: Any) -> Any:
        return map_tree(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, tree)

    function, (first, second), dims = parts_of(case)

    def made() -> Any:
        there = case.function
        if isinstance(there, nn.Module):
            there = copy.deepcopy(there).to(device)
        row = dataclasses.replace(case, function=there, kwargs=moved(dict(case.kwargs)))
        return parts_of(row)[0]

    examples = moved(first)
    try:
        expected = [leaves(function(*copied(inputs))) for inputs in (first, second)]
        # Another one than is converted: what a module keeps of its first call may make that easier.
        found = leaves(made()(*copied(examples)))
        if [(x.device.type, x.dtype) for x in found] != [(device, x.dtype) for x in expected[0]]:
            return "skip"
        function = made()
    except (RuntimeError, ValueError, AssertionError):
        return "skip"
    try:
        conversion = to_network(function, copied(examples), policy=case.policy, **dims)
        program = capture(conversion.network.raw, conversion.network.weights)
        for inputs, wanted in zip((first, second), expected, strict=True):
            got = program.run([x for x in moved(inputs) if isinstance(x, torch.Tensor)])
            results = [got[spec.name] for spec in conversion.signature.outputs]
            assert all(x.device.type == device for x in results), "a result on another device"
            for result, want in zip(results, wanted, strict=True):
                assert result.dtype == want.dtype
                case.assert_close(result.cpu(), want)
    except Exception as error:  # noqa: BLE001  every failure is told
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


def copied(inputs: list[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("device", choices=["cuda", "second"])
    parser.add_argument("--every", type=int, default=1, help="take every n-th row only")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.device == "second":
        make_second()
    chosen = [*((f"module:{case.name}", case) for case in MODULES), *rows(options.every)]
    problems = {name: check(case, options.device) for name, case in chosen}
    assert all(problems[f"module:{case.name}"] != "skip" for case in MODULES)
    ran = [name for name, problem in problems.items() if problem != "skip"]
    wrong = {name: problems[name] for name in ran if problems[name]}
    for name, problem in wrong.items():
        sys.stdout.write(f"{name}: {problem}\n")
    sys.stdout.write(f"{len(ran)} of {len(chosen)} rows ran on {options.device}\n")
    return int(bool(wrong) or len(ran) < 0.8 * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
