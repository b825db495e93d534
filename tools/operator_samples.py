"""PyTorch's own samples of an operator, and the spellings in which they are converted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from t2t.precision import Policy
from t2t.registry import function_converters
from tools.operator_judge import Case, build_it, judge, judge_partial, short, tensors_of

__all__ = ["DTYPES", "FORMS", "Outcome", "judged"]

# dtype, how many samples of it, and how many of them are spelt in every form.
DTYPES = (
    (torch.float32, 24, 5),
    (torch.int64, 10, 2),
    (torch.bool, 6, 2),
    (torch.float16, 4, 0),
    (torch.bfloat16, 3, 0),
)

FORMS = ("function", "captured", "method", "in place", "out=", "dynamic", "fp16")

LARGEST = 200_000
"""Elements of a sample's largest tensor; PyTorch's samples are small, but for a few."""

# PyTorch does not say which place these give of several equal elements.
TIES = ("argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk")

# Their first result is unspecified where the second, LAPACK's info, is not 0.
INFO = ("linalg.cholesky_ex",)

# These take sorted tensors only.
ORDERED = ("searchsorted", "bucketize")


@dataclass
class Outcome:
    """What became of one sample.

    Attributes:
        dtype: the sample's dtype.
        form: how it was spelt or converted: one of `FORMS`.
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
        """Return it as JSON writes it."""
        return asdict(self)


def judged(
    op: Any, dtype: torch.dtype, count: int, variants: int, *, partial: bool = False
) -> Iterator[Outcome]:
    """Convert an operator's samples of one dtype and compare with PyTorch.

    With ``partial``, each is converted with ``partial=True`` instead, between two engines.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        drawn = _samples(op, dtype, count)
    except Exception as error:  # noqa: BLE001  whatever PyTorch's own samples need
        yield Outcome(name, "function", "", "skipped", f"no samples: {short(error)}")
        return
    built = set()
    full = set(_spread(range(len(drawn)), 0 if partial else variants))
    for index, sample in enumerate(drawn):
        for form in FORMS if index in full else FORMS[:1]:
            case = _case(op, sample, form)
            if case is None:
                continue
            if partial:
                yield Outcome(name, form, _describe(sample), *judge_partial(case))
                continue
            verdict, text, conversion = judge(case)
            if verdict == "ok" and form not in built and conversion is not None:
                built.add(form)
                verdict, text = build_it(conversion)
            yield Outcome(name, form, _describe(sample), verdict, text)


def _samples(op: Any, dtype: torch.dtype, count: int) -> list[Any]:
    """Return samples of an operator that are small and hold a tensor, of all that there are."""
    torch.manual_seed(0)
    drawn = [s for s in op.sample_inputs("cpu", dtype, requires_grad=False) if _fits(s)]
    return _spread(drawn, count)


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def _fits(sample: Any) -> bool:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    tensors = tensors_of(leaves)
    types = [x for x in leaves if isinstance(x, torch.dtype)] + [x.dtype for x in tensors]
    return (
        bool(tensors)
        and max(x.numel() for x in tensors) <= LARGEST
        and all(x.layout == torch.strided and not x.is_quantized for x in tensors)
        and not any(t == torch.float64 or t.is_complex for t in types)
    )


def _case(op: Any, sample: Any, form: str) -> Case | None:
    """Return one sample in one form; None where the operator does not have this one."""
    function = _function(op, form)
    if function is None or (form == "in place" and sample.broadcasts_input):
        return None
    if form == "out=" and not op.supports_out:
        return None
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    given = [leaves[place].detach().clone() for place in places]

    def call(*tensors: torch.Tensor, **more: Any) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        input, args, kwargs = tree_unflatten(filled, structure)
        result = function(input, *args, **kwargs, **more)
        if op.name not in INFO:
            return result
        return result[0].where((result[1] == 0)[..., None, None], 0), result[1]

    case = Case(call, given, op.name in TIES, op.name in ORDERED)
    if form == "out=":
        case.function = _with_out(call, case.expected(given))
    elif form == "dynamic":
        case.options = {"dynamic_shapes": _dynamic(given), "narrow_shapes": True}
        return case if any(case.options["dynamic_shapes"]) else None
    elif form == "fp16":
        case.options, case.loose = {"policy": Policy(torch.float16)}, True
        return case if given[0].dtype == torch.float32 else None
    return case


def _function(op: Any, form: str) -> Callable[..., Any] | None:
    """Return what is called: functions are looked up by their names, as a user's module does."""
    if form == "method":
        method = op.method_variant
        return method and _looked_up(torch.Tensor, [op.name], method)
    if form == "in place":
        return op.inplace_variant  # type: ignore[no-any-return]
    if form == "captured":
        # As where a function was imported by its name before the conversion: it is not seen, only
        # the operators that it calls are.
        patched = f"torch.{op.name}" in function_converters()
        return op.op if patched else None
    return _looked_up(torch, op.name.split("."), op.op)


def _looked_up(owner: Any, path: Sequence[str], original: Any) -> Callable[..., Any]:
    """Return a function that looks another one up when it is called; itself where that fails."""
    for part in path[:-1]:
        owner = getattr(owner, part, None)
    name = path[-1]
    if getattr(owner, name, None) is not original:
        return original  # type: ignore[no-any-return]

    def live(*args: Any, **kwargs: Any) -> Any:
        return getattr(owner, name)(*args, **kwargs)

    return live


def _with_out(call: Callable[..., Any], like: Sequence[torch.Tensor]) -> Callable[..., Any]:
    def with_out(*tensors: torch.Tensor) -> Any:
        made = [torch.zeros_like(x) for x in like]
        return call(*tensors, out=made[0] if len(made) == 1 else tuple(made))

    return with_out if like else call


def _dynamic(tensors: Sequence[torch.Tensor]) -> list[dict[int, Any]]:
    """Declare every size above 1 dynamic; equal sizes are the same dimension."""
    dims: dict[int, Any] = {}

    def dim(size: int) -> Any:
        return dims.setdefault(size, torch.export.Dim(f"n{size}", min=2, max=size + 3))

    return [{axis: dim(size) for axis, size in enumerate(x.shape) if size > 1} for x in tensors]


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
