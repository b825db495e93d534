"""Running the original and the converted module on the same inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from t2t.errors import T2TError, VerificationError
from t2t.examples import random_like
from t2t.io import arguments, map_tree
from t2t.isolation import preserved
from t2t.verification.metrics import measure
from t2t.verification.report import OutputReport, Report

__all__ = ["verify"]

_RTOL = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 5e-2}


def verify(
    module: Callable[..., Any],
    module_trt: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    random_inputs: int = 1,
    rtol: float | None = None,
    seed: int = 0,
    raise_on_error: bool = False,
) -> Report:
    """Compare a converted module with the original, on the given and on random inputs.

    Random inputs are like the given ones: floats of their mean, deviation and range, integers of
    their range, booleans as often true. A module whose outputs got stuck passes one input; so
    there are two. Neither the module, its buffers, its training flags nor the inputs change.

    Args:
        module: the original.
        module_trt: the converted one.
        inputs: positional arguments in a list or tuple, keyword arguments in a mapping, or one
            tensor.
        kwargs: more keyword arguments.
        random_inputs: how many random inputs to try besides the given ones.
        rtol: largest allowed norm of a difference over the norm of the original's output; None
            takes 1e-4 for fp32, 2e-2 for fp16 and 5e-2 for bf16, by the converted module's
            precision and the output's dtype.
        seed: of the random inputs.
        raise_on_error: raise if the outputs differ, instead of only reporting it.

    Raises:
        VerificationError: if asked for; the message is the report.
    """
    given = arguments(inputs, kwargs)
    generator = torch.Generator().manual_seed(seed)
    default = _RTOL.get(getattr(module_trt, "precision", "fp32"), _RTOL["fp32"])
    worst: dict[str, OutputReport] = {}
    problem = ""
    for run in range(1 + random_inputs):
        call = given if run == 0 else _on_tensors(functools.partial(random_like, generator), given)
        with preserved(module):
            expected = _call(module, call)
        try:
            got = _call(module_trt, call)
        except T2TError as error:
            problem = f"the converted module fails: {type(error).__name__}: {error}"
            break
        problem = measure(expected, got, rtol, default, worst)
        if problem:
            break
    ok = not problem and all(output.ok for output in worst.values())
    allowed = default if rtol is None else rtol
    report = Report(ok, tuple(worst.values()), run + 1, allowed, problem)
    if raise_on_error and not ok:
        raise VerificationError(str(report))
    return report


def _on_tensors(function: Callable[[torch.Tensor], torch.Tensor], call: Any) -> Any:
    return map_tree(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, call)


def _call(module: Callable[..., Any], call: Any) -> Any:
    args, kwargs = _on_tensors(lambda leaf: leaf.detach().clone(), call)
    with torch.no_grad():
        return module(*args, **kwargs)
