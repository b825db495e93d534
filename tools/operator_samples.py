"""PyTorch's own samples of an operator, and how its conversion stands up to one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

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

__all__ = ["DTYPES", "Outcome", "judge", "samples"]

# dtype, how many samples of it, and how many of each variant of spelling.
DTYPES = (
    (torch.float32, 20, 4),
    (torch.int64, 8, 2),
    (torch.bool, 6, 2),
    (torch.float16, 4, 0),
    (torch.bfloat16, 3, 0),
)

# Relative to each number, and to the largest of the result (at least 1): PyTorch and the executor
# add in different orders, PyTorch's half kernels in half, and sums may cancel.
TOLERANCES = {
    torch.float32: (1e-4, 5e-6),
    torch.float16: (1e-2, 5e-3),
    torch.bfloat16: (2e-2, 1e-2),
}

_HALF = (torch.float16, torch.bfloat16)

LARGEST = 200_000
"""Elements of a sample's largest tensor; PyTorch's samples are small, but for a few."""


@dataclass
class Outcome:
    """What became of one sample.

    Attributes:
        dtype: the sample's dtype.
        form: how the operator was spelt: "function", "method", "in place", "out=".
        sample: the sample, shortened.
        verdict: "ok", "refused", "WRONG", "CRASH", "BUILD" or "skipped".
        text: why.
    """

    dtype: str
    form: str
    sample: str
    verdict: str
    text: str = ""

    def to_dict(self) -> dict[str, str]:
        """Give it as JSON writes it."""
        return asdict(self)


# PyTorch does not say which place these give of several equal elements.
TIES = ("argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk")


@dataclass
class _Case:
    """One call with tensors as its inputs and everything else constant.

    Attributes:
        function: the call.
        tensors: its inputs.
        ties: whether integer outputs are places, and may be those of equal elements.
    """

    function: Callable[..., Any]
    tensors: list[torch.Tensor]
    ties: bool = False

    def expected(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give PyTorch's own answer; empty where it has none."""
        try:
            with torch.no_grad():
                answer = self.function(*[x.clone() for x in tensors])
        except Exception:  # noqa: BLE001  samples may be out of an operator's domain
            return []
        # A tensor that stands in several places is one output.
        return list({id(x): x for x in _tensors(answer)}.values())

    def differences(
        self, got: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> list[str]:
        """Say how outputs differ from PyTorch's."""
        wanted = self.expected(tensors)
        if len(got) != len(wanted):
            return [f"{len(got)} outputs instead of {len(wanted)}"]
        pairs = list(zip(got, wanted, strict=True))
        found = [
            text
            for a, b in pairs
            if (text := _difference(a, b)) and not (self.ties and _same_places(tensors[0], a, b))
        ]
        if not found or not any(x.dtype in _HALF for x in tensors):
            return found
        # PyTorch's half kernels overflow where float32, rounded once, does not.
        wide = self.expected([x.float() if x.dtype in _HALF else x for x in tensors])
        if [x.shape for x in wide] != [x.shape for x in wanted]:
            return found
        rounded = [a.to(b.dtype) for a, b in zip(wide, wanted, strict=True)]
        return list(filter(None, map(_difference, got, rounded)))


def samples(op: Any, dtype: torch.dtype, count: int) -> list[Any]:
    """Give the first samples of an operator that are small and hold a tensor."""
    torch.manual_seed(0)
    drawn = op.sample_inputs("cpu", dtype, requires_grad=False)
    return list(itertools.islice((s for s in drawn if _fits(s)), count))


def _leaves(tree: Any) -> list[Any]:
    return tree_flatten(tree)[0]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in _leaves(tree) if isinstance(x, torch.Tensor)]


def _fits(sample: Any) -> bool:
    leaves = _leaves((sample.input, sample.args, sample.kwargs))
    tensors = _tensors(leaves)
    types = [x for x in leaves if isinstance(x, torch.dtype)] + [x.dtype for x in tensors]
    return (
        bool(tensors)
        and max(x.numel() for x in tensors) <= LARGEST
        and all(x.layout == torch.strided and not x.is_quantized for x in tensors)
        and not any(t == torch.float64 or t.is_complex for t in types)
    )


def judge(op: Any, dtype: torch.dtype, count: int, variants: int) -> Iterator[Outcome]:
    """Convert an operator's samples of one dtype and compare with PyTorch."""
    name = str(dtype).removeprefix("torch.")
    try:
        drawn = samples(op, dtype, count)
    except Exception as error:  # noqa: BLE001  whatever PyTorch's own samples need
        yield Outcome(name, "function", "", "skipped", f"no samples: {_short(error)}")
        return
    built = False
    for index, sample in enumerate(drawn):
        for form, function in _forms(op, sample, index < variants):
            verdict, text, conversion = _judge(_case(function, sample, form, op.name in TIES))
            if verdict == "ok" and not built and form == "function" and conversion is not None:
                built = True
                verdict, text = _build(conversion)
            yield Outcome(name, form, _describe(sample), verdict, text)


def _forms(op: Any, sample: Any, variants: bool) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "function", op.op
    if not variants:
        return
    if op.method_variant is not None:
        yield "method", op.method_variant
    if op.inplace_variant is not None and not sample.broadcasts_input:
        yield "in place", op.inplace_variant
    if op.supports_out:
        yield "out=", op.op


def _case(function: Callable[..., Any], sample: Any, form: str, ties: bool) -> _Case:
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    given = [leaves[place].detach().clone() for place in places]

    def call(*tensors: torch.Tensor, **more: Any) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        input, args, kwargs = tree_unflatten(filled, structure)
        return function(input, *args, **kwargs, **more)

    case = _Case(call, given, ties)
    like = case.expected(given) if form == "out=" else []
    if not like:
        return case

    def with_out(*tensors: torch.Tensor) -> Any:
        made = [torch.zeros_like(x) for x in like]
        return call(*tensors, out=made[0] if len(made) == 1 else tuple(made))

    return _Case(with_out, given, ties)


def _judge(case: _Case) -> tuple[str, str, Conversion | None]:
    wanted = case.expected(case.tensors)
    if not wanted:
        return "skipped", "PyTorch gives no tensor", None
    try:
        conversion = to_network(case.function, [x.clone() for x in case.tensors])
        program = capture(conversion.network.raw, conversion.network.weights)
        text = _compare(case, conversion, program, case.tensors)
        if text and any(map(_difference, wanted, case.expected(case.tensors))):
            return "skipped", "PyTorch's own results differ from call to call", None
        if not text:
            text = _compare_others(case, conversion, program)
    except (UnsupportedArgumentError, UnsupportedOperatorError, GuardError) as error:
        return "refused", _short(error), None
    except ConversionError as error:
        return "refused", f"[check] {_short(error)}", None
    except Exception as error:  # noqa: BLE001  any other exception is what is looked for
        return "CRASH", _short(error), None
    return "WRONG" if text else "ok", text, conversion


def _compare_others(case: _Case, conversion: Conversion, program: Any) -> str:
    """Compare once more, where the network must not have kept the first values."""
    tensors = _others(case.tensors)
    shapes = [tuple(x.shape) for x in case.expected(tensors)]
    if shapes != [spec.shape for spec in conversion.signature.outputs]:
        return ""
    text = _compare(case, conversion, program, tensors)
    return text and f"second input: {text}"


def _others(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Give other tensors of the same domain: the same numbers in another order."""
    generator = torch.Generator().manual_seed(1)

    def other(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() and x.dtype != torch.bool:
            return x.clone()
        order = torch.randperm(x.numel(), generator=generator)
        return x.reshape(-1)[order].reshape(x.shape)

    return [other(x) for x in tensors]


def _compare(
    case: _Case, conversion: Conversion, program: Any, tensors: Sequence[torch.Tensor]
) -> str:
    """Say how the network's outputs differ from PyTorch's; empty where they do not."""
    results = program.run([x.clone() for x in tensors])
    got = [results[spec.name] for spec in conversion.signature.outputs]
    return "; ".join(case.differences(got, tensors))


def _same_places(x: torch.Tensor, got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Say whether two tensors of indices point at equal elements of ``x``."""
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


def _difference(got: torch.Tensor, wanted: torch.Tensor) -> str:
    if got.dtype != wanted.dtype:
        return f"{got.dtype} instead of {wanted.dtype}"
    if got.shape != wanted.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    rtol, atol = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
    finite = wanted[wanted.isfinite()]
    largest = float(finite.abs().max()) if atol and finite.numel() else 1.0
    near = torch.isclose(got, wanted, rtol=rtol, atol=atol * max(largest, 1.0), equal_nan=True)
    if near.all():
        return ""
    place = (~near).nonzero()[0].tolist()
    return (
        f"{int((~near).sum())} of {near.numel()} differ, at {place} "
        f"{got[tuple(place)].item()!r} instead of {wanted[tuple(place)].item()!r}"
    )


def _build(conversion: Conversion) -> tuple[str, str]:
    try:
        build(conversion.network.raw, builder=conversion.builder, progress=False)
    except BuildError as error:
        return "BUILD", _short(error)
    return "ok", ""


def _short(error: BaseException) -> str:
    text = f"{type(error).__name__}: " + " ".join(str(error).split())
    notes = " ".join(getattr(error, "__notes__", ()))
    return (text[:300] + (f" ({notes})" if notes else ""))[:500]


def _describe(sample: Any) -> str:
    def shown(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, list | tuple):
            return f"[{', '.join(map(shown, x))}]"
        return repr(x)

    parts = [shown(sample.input), *map(shown, sample.args)]
    parts += [f"{key}={shown(value)}" for key, value in sample.kwargs.items()]
    return ", ".join(parts)[:200]
