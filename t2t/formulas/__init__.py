"""Operators in terms of other functions of torch, where TensorRT has no layer that computes them.

A formula takes what its operator takes. Its parts are operators of their own: their results may be
unused, their sizes dynamic, and a write to a view reaches the whole.
"""

from __future__ import annotations

import importlib

# Importing a family registers its formulas.
FAMILIES = (
    "accumulating",
    "arithmetic",
    "complex_numbers",
    "fourier",
    "linalg",
    "running",
    "sorting",
    "special",
    "statistics",
    "structure",
    "vision",
)

for _family in FAMILIES:
    importlib.import_module(f"t2t.formulas.{_family}")
