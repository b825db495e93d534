"""How the conversion of one call stands up to PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import t2t
from t2t.building import build
from t2t.errors import (
    BuildError,
    ConversionError,
    GuardError,
    UnsupportedArgumentError,
    UnsupportedOperatorError,
)
from t2t.lowering import Conversion, to_network
from t2t.reference import capture

__all__ = ["Case", "build_it", "judge", "judge_partial", "short", "tensors_of"]

# Relative to each number, and to the largest of the result (at least 1): PyTorch and the executor
# add in different orders, PyTorch's half kernels in half, and sums may cancel.
TOLERANCES = {
    torch.float32: (1e-4, 5e-6),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (2e-2, 2e-2),
    torch.complex64: (1e-4, 5e-6),
    torch.complex32: (1e-2, 1e-2),
}

_LOOSE = (2e-2, 1e-2)
_HALF = (torch.float16, torch.bfloat16)
# No engine has these; PyTorch negates none of the unsigned ones.
_NOT_NEGATED = (torch.float64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists and dicts."""
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


@dataclass
class Case:
    """One call with tensors as its inputs and everything else constant.

    Attributes:
        function: the call.
        tensors: its inputs.
        ties: whether integer outputs are places, and may be those of equal elements.
        ordered: whether the inputs are sorted, so that their numbers in another order are none.
        options: further arguments of the conversion.
        loose: whether the network computes in half precision what PyTorch computes in float32.
    """

    function: Callable[..., Any]
    tensors: list[torch.Tensor]
    ties: bool = False
    ordered: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    loose: bool = False

    def expected(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return PyTorch's own answer; empty where it has none."""
        try:
            with torch.no_grad():
                answer = self.function(*[x.clone() for x in tensors])
        except Exception:  # noqa: BLE001  samples may be out of an operator's domain
            return []
        # A tensor that stands in several places is one output.
        return list({id(x): x for x in tensors_of(answer)}.values())

    def differences(
        self, got: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> list[str]:
        """Return how outputs differ from PyTorch's."""
        wanted = self.expected(tensors)
        if len(got) != len(wanted):
            return [f"{len(got)} outputs instead of {len(wanted)}"]
        found = [
            text
            for a, b in zip(got, wanted, strict=True)
            if (text := _difference(a, b, self.loose))
            and not (self.ties and _same_places(tensors[0], a, b))
        ]
        if not found or not any(x.dtype in _HALF for x in tensors):
            return found
        # PyTorch's half kernels overflow where float32, rounded once, does not.
        wide = self.expected([x.float() if x.dtype in _HALF else x for x in tensors])
        if [x.shape for x in wide] != [x.shape for x in wanted]:
            return found
        rounded = [a.to(b.dtype) for a, b in zip(wide, wanted, strict=True)]
        return [text for a, b in zip(got, rounded, strict=True) if (text := _difference(a, b))]


def judge(case: Case) -> tuple[str, str, Conversion | None]:
    """Convert a call, run it twice, and compare.

    Returns:
        "ok", "refused", "WRONG", "CRASH" or "skipped"; why; the conversion where there is one.
    """
    wanted = case.expected(case.tensors)
    if not wanted:
        return "skipped", "PyTorch gives no tensor", None
    try:
        conversion = to_network(case.function, [x.clone() for x in case.tensors], **case.options)
        program = capture(conversion.network.raw, conversion.network.weights)
        text = _compare(case, conversion, program, case.tensors)
        if text and any(map(_difference, wanted, case.expected(case.tensors))):
            return "skipped", "PyTorch's own results differ from call to call", None
        text = text or _compare_others(case, conversion, program)
    except (UnsupportedArgumentError, UnsupportedOperatorError, GuardError) as error:
        return "refused", short(error), None
    except ConversionError as error:
        return "refused", f"[check] {short(error)}", None
    except Exception as error:  # noqa: BLE001  any other exception is what is looked for
        return "CRASH", short(error), None
    return "WRONG" if text else "ok", text, conversion


def judge_partial(case: Case) -> tuple[str, str]:
    """Convert a call between engines with ``partial=True``, run it twice, and compare.

    Returns:
        "ok", "refused", "untraceable" (PyTorch's export refuses it, too), "WRONG", "CRASH" or
        "skipped", and why.
    """
    wanted = case.expected(case.tensors)
    if not wanted:
        return "skipped", "PyTorch gives no tensor"
    if any(map(_difference, wanted, case.expected(case.tensors))):
        return "skipped", "PyTorch's own results differ from call to call"
    between = replace(case, function=_between(case.function))
    try:
        converted = t2t.convert(
            between.function, [x.clone() for x in case.tensors], partial=True, min_block_size=1
        )
        answer = tensors_of(converted(*[x.clone() for x in case.tensors]))
        text = "; ".join(between.differences(_distinct(answer), case.tensors))
        if not text and not case.ordered:
            generator = torch.Generator().manual_seed(1)
            others = [_permuted(x, generator) for x in case.tensors]
            if between.expected(others):
                answer = tensors_of(converted(*[x.clone() for x in others]))
                text = "; ".join(between.differences(_distinct(answer), others))
                text = text and f"second input: {text}"
    except ConversionError as error:
        untraceable = _untraceable(case)
        return ("untraceable", untraceable) if untraceable else ("refused", short(error))
    except Exception as error:  # noqa: BLE001  any other exception is what is looked for
        return "CRASH", short(error)
    return "WRONG" if text else "ok", text


def _untraceable(case: Case) -> str:
    """Return why PyTorch's own export cannot trace a call either; empty where it can."""

    class Calling(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return case.function(*tensors)

    try:
        torch.export.export(Calling(), tuple(x.clone() for x in case.tensors), strict=False)
    except Exception as error:  # noqa: BLE001  PyTorch raises any
        return short(error)
    return ""


def _distinct(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(x): x for x in tensors}.values())


def _between(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with work for engines before and behind another, which changes nothing."""

    def twice(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype in _NOT_NEGATED:
            return x
        if x.dtype == torch.bool:
            return x.logical_not().logical_not()
        return x if x.is_complex() else x.neg().neg()

    def between(*tensors: torch.Tensor) -> Any:
        return tree_map(twice, function(*map(twice, tensors)))

    return between


def _permuted(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the same numbers in another order; integers may be places, and stay."""
    if not x.is_floating_point() and x.dtype != torch.bool:
        return x.clone()
    return x.reshape(-1)[torch.randperm(x.numel(), generator=generator)].reshape(x.shape)


def _compare_others(case: Case, conversion: Conversion, program: Any) -> str:
    """Compare once more, where the network must not have kept the first values or sizes."""
    if case.ordered:
        return ""
    tensors = _others(case, conversion)
    wanted = case.expected(tensors)
    shapes = [spec.shape for spec in conversion.signature.outputs]
    fits = len(wanted) == len(shapes) and all(
        len(x.shape) == len(shape)
        and all(size in (-1, n) for n, size in zip(x.shape, shape, strict=True))
        for x, shape in zip(wanted, shapes, strict=True)
    )
    if not fits:
        return ""
    text = _compare(case, conversion, program, tensors)
    return text and f"second input, {[list(x.shape) for x in tensors]}: {text}"


def _others(case: Case, conversion: Conversion) -> list[torch.Tensor]:
    """Return other tensors of the same domain: the same numbers in another order or number."""
    generator = torch.Generator().manual_seed(1)

    def other(x: torch.Tensor, spec: Any) -> torch.Tensor:
        if spec.max_shape is None:
            return _permuted(x, generator)
        picked = torch.randint(max(x.numel(), 1), spec.max_shape, generator=generator)
        return x.reshape(-1)[picked] if x.numel() else x.clone()

    return [other(*pair) for pair in zip(case.tensors, conversion.signature.inputs, strict=True)]


def _compare(
    case: Case, conversion: Conversion, program: Any, tensors: Sequence[torch.Tensor]
) -> str:
    """Return how the network's outputs differ from PyTorch's; empty where they do not."""
    results = program.run([x.clone() for x in tensors])
    got = [results[spec.name] for spec in conversion.signature.outputs]
    return "; ".join(case.differences(got, tensors))


def _same_places(x: torch.Tensor, got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return whether two tensors of indices point at equal elements of ``x``."""
    if got.dtype != torch.int64 or got.shape != wanted.shape:
        return False
    if not x.ndim or got.ndim not in (x.ndim, x.ndim - 1):
        return False
    for dim in range(x.ndim):
        a, b = (i if i.ndim == x.ndim else i.unsqueeze(dim) for i in (got, wanted))
        others = [size for d, size in enumerate(x.shape) if d != dim]
        if [size for d, size in enumerate(a.shape) if d != dim] != others:
            continue
        if max(int(a.max()), int(b.max())) >= x.shape[dim]:
            continue
        if torch.equal(x.gather(dim, a), x.gather(dim, b)):
            return True
    return False


def _difference(got: torch.Tensor, wanted: torch.Tensor, loose: bool = False) -> str:
    if got.dtype != wanted.dtype:
        return f"{got.dtype} instead of {wanted.dtype}"
    if got.shape != wanted.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    rtol, atol = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
    if loose and wanted.is_floating_point():
        rtol, atol = _LOOSE
    finite = wanted[wanted.isfinite()]
    largest = float(finite.abs().max()) if atol and finite.numel() else 1.0
    near = torch.isclose(got, wanted, rtol=rtol, atol=atol * max(largest, 1.0), equal_nan=True)
    if loose and wanted.is_floating_point():
        # Half precision ends at 65504.
        near |= wanted.abs() > torch.finfo(torch.float16).max
    if near.all():
        return ""
    place = (~near).nonzero()[0].tolist()
    return (
        f"{int((~near).sum())} of {near.numel()} differ, at {place} "
        f"{got[tuple(place)].item()!r} instead of {wanted[tuple(place)].item()!r}"
    )


def build_it(conversion: Conversion) -> tuple[str, str]:
    """Let the real builder make an engine: "ok" or "BUILD", and why."""
    try:
        build(
            conversion.network.raw,
            builder=conversion.builder,
            profiles=conversion.profiles(),
            progress=False,
        )
    except BuildError as error:
        return "BUILD", short(error)
    return "ok", ""


def short(error: BaseException) -> str:
    """Return an error's kind and the beginning of its text, on one line."""
    text = f"{type(error).__name__}: " + " ".join(str(error).split())
    notes = " ".join(getattr(error, "__notes__", ()))
    return (text[:300] + (f" ({notes})" if notes else ""))[:500]
