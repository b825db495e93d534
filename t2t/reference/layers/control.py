"""Boundary layers of loops and conditionals: what is read of them; the steps run them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from t2t.reference.layer import Ready
from t2t.reference.registry import Kernel, layer


@layer("CONDITIONAL_INPUT")
@layer("RECURRENCE")
@layer("ITERATOR", "axis", "reverse")
@layer("LOOP_OUTPUT", "kind", "axis")
@layer("CONDITIONAL_OUTPUT")
def passed_on(ready: Ready) -> Kernel:
    """Return the first input as it is; only a conditional's input is run as a layer."""
    if ready.kind != "CONDITIONAL_INPUT":
        raise AssertionError(f"{ready.kind} is run by its loop or conditional")
    return lambda x: x


@layer("CONDITION")
@layer("TRIP_LIMIT", "kind")
def nothing(ready: Ready) -> Kernel:
    """Read by its loop or conditional; has no output of its own."""
    del ready

    def kernel(value: Tensor) -> tuple[Any, ...]:
        del value
        return ()

    return kernel
