"""Every registered operator has a row in a table, and docs/operators.md says what there is."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t2t import registry
from tests.cases import TORCH, OpCase, operators_of

ROOT = Path(__file__).resolve().parents[1]

# Names that no row can reach, each with its reason.
UNREACHABLE: dict[str, str] = {
    "aten::_cudnn_rnn": "not of the CPU; tests/test_recurrent.py has it",
    "aten::_pack_padded_sequence": "always refused, with advice; tests/test_recurrent.py has rows",
    "aten::_scaled_dot_product_cudnn_attention": "not of the CPU; tests/test_attention.py has it",
    "aten::_scaled_dot_product_efficient_attention": "likewise",
    "aten::_scaled_dot_product_flash_attention": "likewise",
    "aten::_thnn_fused_gru_cell.default": "not of the CPU; tests/on_device.py runs gru-cell",
    "aten::_thnn_fused_lstm_cell.default": "not of the CPU; tests/on_device.py runs lstm-cell",
}
if TORCH < (2, 10):
    UNREACHABLE |= dict.fromkeys(
        ("aten::_grouped_mm", "aten::histc"), "tests/test_grouped.py needs PyTorch 2.10"
    )


def tables() -> dict[str, list[OpCase]]:
    """Give the rows of every test module."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "OpCase" not in source or path.name == Path(__file__).name:
            continue
        try:
            module = importlib.import_module(f"tests.{path.stem}")
        except pytest.skip.Exception:  # older PyTorch has nothing of what it tests
            continue
        lists = [value for value in vars(module).values() if isinstance(value, list)]
        found[path.stem] = [row for rows in lists for row in rows if isinstance(row, OpCase)]
    return found


def of_packages() -> set[str]:
    """Give the names that are registered once a package is imported, as other tests may have done.

    Those packages have tests of their own.
    """
    table = registry.converters.own
    return {name for name, x in table.items() if x.function.__module__.endswith(".modelopt")}


@pytest.mark.filterwarnings("ignore")  # the rows' own tests look at warnings
def test_every_registered_operator_has_a_row() -> None:
    reached: set[str] = set()
    for rows in tables().values():
        for row in rows:
            if row.raises is None:
                reached |= operators_of(row)
    own = (registry.converters.own, registry.formulas.own, registry.complex_formulas.own)
    names = {name for table in own for name in table} - of_packages()
    missing = sorted(names - reached - set(UNREACHABLE))
    assert not missing, f"no row of any table calls {missing}"
    assert not set(UNREACHABLE) & reached, "a row reaches what is said to be unreachable"


def test_the_list_of_operators_is_fresh() -> None:
    # It is written with the newest PyTorch; older ones lack some of its functions.
    if TORCH >= (2, 14):
        command = [sys.executable, str(ROOT / "tools" / "operators.py"), "--check"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    names = {*registry.supported_operators()} - of_packages()
    assert all(f"`{name}`" in page for name in names)
