"""How far the outputs of two modules are apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from t2t.io import flatten, leaf_paths
from t2t.verification.report import OutputReport

_RTOL_OF_DTYPE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}
# Nothing can be small relative to an all-zero reference: then errors are allowed up to this.
_ZERO = 1e-6


def measure(
    expected: Any, got: Any, rtol: float | None, default: float, worst: dict[str, OutputReport]
) -> str:
    """Compare what two modules returned.

    Args:
        expected: the original's result.
        got: the converted module's.
        rtol: the tolerance; None takes ``default``, or more for outputs in half precision.
        default: the tolerance for the module's precision.
        worst: the worst of the earlier runs by the output's place; it is updated.

    Returns:
        What makes measuring pointless (another structure or constant), or "".
    """
    (wanted, structure), (found, other) = flatten(expected), flatten(got)
    places, others = leaf_paths(structure, "output"), leaf_paths(other, "output")
    missing = [place for place in places if place not in others]
    extra = [place for place in others if place not in places]
    if missing or extra:
        return f"the structure differs: missing {missing}, extra {extra}"
    for place, form in places.items():
        if "index" in form and "index" in others[place]:
            reference = wanted[form["index"]].detach().cpu()
            output = found[others[place]["index"]].detach().cpu()
            limit = max(default, _RTOL_OF_DTYPE.get(reference.dtype, 0)) if rtol is None else rtol
            seen = _compare(place, reference, output, limit)
            worst[place] = _merge(worst[place], seen) if place in worst else seen
        elif repr(form.get("value", form)) != repr(others[place].get("value", others[place])):
            return (
                f"{place} is {others[place].get('value', 'a tensor')!r}, "
                f"the original's {form.get('value', 'a tensor')!r}"
            )
    return ""


def _merge(a: OutputReport, b: OutputReport) -> OutputReport:
    return replace(
        b if b.note or not a.note else a,
        max_abs_error=max(a.max_abs_error, b.max_abs_error),
        max_rel_error=max(a.max_rel_error, b.max_rel_error),
        min_cosine=min(a.min_cosine, b.min_cosine),
        ok=a.ok and b.ok,
    )


def _compare(name: str, reference: torch.Tensor, output: torch.Tensor, rtol: float) -> OutputReport:
    shape = tuple(reference.shape)
    if output.shape != reference.shape:
        note = f"shape {tuple(output.shape)}"
        return OutputReport(name, reference.dtype, shape, math.inf, math.inf, -1.0, False, note)
    absolute, relative, cosine, note = _errors(reference, output)
    if not (reference.dtype.is_floating_point or reference.dtype.is_complex):
        ok = torch.equal(reference, output) if output.dtype == reference.dtype else False
    elif note == _ALL_ZERO:
        ok = absolute <= _ZERO
    else:
        ok = relative <= rtol
    if output.dtype != reference.dtype:
        ok, note = False, f"dtype {output.dtype}".replace("torch.", "")
    return OutputReport(name, reference.dtype, shape, absolute, relative, cosine, ok, note)


_ALL_ZERO = "the original gives zeros"


def _errors(reference: torch.Tensor, output: torch.Tensor) -> tuple[float, float, float, str]:
    a, b = (_as_doubles(tensor) for tensor in (reference, output))
    finite = torch.isfinite(a) & torch.isfinite(b)
    alike = finite | (a == b) | (torch.isnan(a) & torch.isnan(b))
    if not alike.all():
        return math.inf, math.inf, -1.0, f"{int((~alike).sum())} NaN or infinity in one of both"
    a, b = a[finite], b[finite]
    note = "" if finite.all() else f"{int((~finite).sum())} NaN or infinity in both"
    difference, norm, other = (float((x).norm()) for x in (a - b, a, b))
    absolute = float((a - b).abs().max()) if a.numel() else 0.0
    if norm == 0 and a.numel():
        return absolute, math.inf if other else 0.0, 0.0 if other else 1.0, _ALL_ZERO
    if norm == 0:
        return 0.0, 0.0, 1.0, note
    cosine = float(a @ b) / (norm * other) if other else 0.0
    return absolute, difference / norm, min(cosine, 1.0), note


def _as_doubles(tensor: torch.Tensor) -> torch.Tensor:
    parts = torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
    return parts.double().flatten()
