"""Which floating type a layer computes in: torch's own, or half under ``fp16=True``.

Under ``fp16=True`` a float32 model behaves as torch's type promotion has it with half activations:

* matrix products and convolutions compute in half, unless the model cast all their factors to
  float32;
* delicate operators (softmax, norms, exp, large sums) compute in float32;
* all others promote as torch does: half with float32 gives float32.

So each float32 tensor of the model has a `Kind`: what it would be, were the model half.
"""

from __future__ import annotations

import enum
import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from t2t.registry import Precision

_HALF = (torch.float16, torch.bfloat16)
_WIDE = dict.fromkeys((*_HALF, torch.float32), torch.float32)


class Kind(enum.Enum):
    """What a float32 tensor of the model counts as under ``fp16=True``."""

    WEIGHT = "a parameter: half, but float32 among delicate results"
    HALF = "half: what a product gave"
    WIDE = "half, but held in float32 until it meets half: what a delicate operator made of halves"
    FLOAT = "float32: an input, a buffer, a table, a mask, and what is made with one of these"
    CAST = "float32, as the model cast it: products of such tensors stay float32"


class Operand(NamedTuple):
    """What decides about a floating-point operand: its kind and its number of dimensions."""

    kind: Kind
    rank: int


@dataclass(frozen=True)
class Cast:
    """What the model says of precision where it makes a call; in float32 it changes no tensor.

    Attributes:
        how: "float32" for ``.float()`` and ``.to(torch.float32)``; "dtype" for ``.to(dtype)``,
            which is a cast up, or one back down after that; "like" for ``.to(x.dtype)`` and
            ``.type_as(x)``; "region" where ``torch.autocast`` is switched off.
        like: what ``x`` is in the trace, where that is known.
    """

    how: Literal["float32", "dtype", "like", "region"]
    like: Any = None


class Choice(NamedTuple):
    """What an operator computes in: for torch's floating types others, and its result's kind."""

    dtypes: dict[torch.dtype, torch.dtype]
    kind: Kind


def promoted(operands: Iterable[Operand]) -> Kind:
    """Return the kind of what an operator makes of its operands, by torch's rules of promotion.

    Tensors without dimensions take the type of those that have some. What is made of integers and
    numbers only is float32.
    """
    kinds: dict[bool, set[Kind]] = {True: set(), False: set()}
    for kind, rank in operands:
        kinds[rank > 0].add(kind)
    found = kinds[True] or kinds[False]
    for strongest in (Kind.CAST, Kind.FLOAT, Kind.HALF, Kind.WIDE):
        if strongest in found:
            return strongest
    if not found:
        return Kind.FLOAT
    return Kind.WIDE if kinds[False] - {Kind.WEIGHT, Kind.HALF} else Kind.WEIGHT


def after_cast(kind: Kind, cast: Cast, like: Kind | None = None) -> Kind:
    """Return the kind of a tensor after a cast that leaves it float32 in a float32 model.

    Args:
        kind: its kind before.
        cast: the cast.
        like: the kind of ``cast.like``; None where it is not known.
    """
    float32 = (Kind.FLOAT, Kind.CAST)
    if cast.how == "float32":
        return Kind.CAST
    if kind in (Kind.HALF, Kind.WIDE):
        up = like in float32 if cast.how == "like" else True
        return Kind.CAST if up else kind
    down = kind is Kind.CAST if like is None else like not in float32
    return Kind.WIDE if down and kind in float32 else kind


def fits(scope: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the shell patterns is the name of a module, or of one around it."""
    return any(
        fnmatch.fnmatchcase(scope, pattern) or fnmatch.fnmatchcase(scope, f"{pattern}.*")
        for pattern in patterns
    )


def operator_name(name: str) -> str:
    """Return what all spellings of an operator have in common: "softmax" of "aten::_softmax.int".

    ``aten::add_.Tensor``, ``torch.add`` and ``torch.Tensor.__add__`` are all "add";
    ``torch.nn.functional.conv2d`` and its like are "convolution".
    """
    if "::" in name:
        return name.rpartition("::")[2].partition(".")[0].strip("_")
    name = name.rpartition(".")[2].strip("_")
    return "convolution" if name in _CONVOLUTIONS else name


_CONVOLUTIONS = tuple(f"{name}{n}d" for name in ("conv", "conv_transpose") for n in (1, 2, 3))


@dataclass(frozen=True)
class Policy:
    """Chooses the floating type of every operator as its layers are emitted.

    Attributes:
        low: the half type asked for, or None to keep torch's types.
        fp32_modules: names of modules (shell patterns, as "decoder.*") kept in float32.
        float64_as_float32: compute in float32 what torch computes in float64, which TensorRT does
            not have; never in half precision.
        fp32_ops: names of operators ("aten::softmax") kept in float32 wherever they are called.
        low_precision_io: let inputs and outputs that torch has in float32 be half, too.
        only: pairs of a module's name and an operator that alone may leave float32; None for all.
            Tensors count as what they would be without it, so that each call does what it would.
    """

    low: torch.dtype | None = None
    fp32_modules: tuple[str, ...] = ()
    float64_as_float32: bool = False
    fp32_ops: tuple[str, ...] = ()
    low_precision_io: bool = False
    only: frozenset[tuple[str, str]] | None = None

    def choose(
        self,
        precision: Precision,
        scope: str = "",
        operands: Sequence[Operand] = (),
        numbers: Sequence[Any] = (),
        cast: Cast | None = None,
        like: Kind | None = None,
        operators: Sequence[str] = (),
    ) -> Choice:
        """Choose what the layers of one operator compute in.

        Args:
            precision: what the operator's converter says of itself.
            scope: path of the module that calls it.
            operands: its floating-point operands.
            numbers: the numbers among its operands, perhaps symbolic.
            cast: what the model says where it calls it.
            like: the kind of ``cast.like``, where that is known.
            operators: names of the operator, and of those whose formulas it is a part of.
        """
        # Also in half models: torch computes these in float32 inside and rounds once.
        plain = Choice(_WIDE if precision == "sensitive" else {}, Kind.FLOAT)
        region = cast is not None and cast.how == "region"
        if self.low is None or region or self.keeps(scope, operators):
            return plain
        kind = promoted([*operands, *self._large(numbers)])
        if cast is not None:
            kind = after_cast(kind, cast, like)
        elif precision == "compute":
            factors = {operand.kind for operand in operands}
            stays = factors <= {Kind.CAST, Kind.FLOAT} and Kind.CAST in factors
            kind = Kind.CAST if stays else Kind.HALF
        elif precision == "small" and kind is Kind.WIDE:
            kind = Kind.HALF
        elif kind in (Kind.WEIGHT, Kind.HALF):
            delicate = precision == "sensitive" or any(map(self._is_tiny, numbers))
            kind = Kind.WIDE if delicate else Kind.HALF
        passed = self.passes(scope, operators)
        if passed or precision == "sensitive" or kind is not Kind.HALF:
            return Choice(plain.dtypes, kind)
        return Choice({torch.float32: self.low}, kind)

    def passes(self, scope: str, operators: Sequence[str]) -> bool:
        """Return whether ``only`` leaves a call out."""
        return self.only is not None and not (operators and (scope, operators[0]) in self.only)

    def at_edges(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of a network's input or output that torch has in ``dtype``."""
        half = self.low is not None and self.low_precision_io and dtype == torch.float32
        return self.low if half and self.low is not None else dtype

    @property
    def largest(self) -> float:
        """The number up to which the half type has all whole numbers: 2048, or 256."""
        return math.inf if self.low is None else 2 / torch.finfo(self.low).eps

    def keeps(self, scope: str, operators: Sequence[str]) -> bool:
        """Return whether a call stays in float32, and is not quantized either.

        Args:
            scope: path of the module that makes it.
            operators: names of its operator, and of those whose formulas it is a part of.
        """
        if fits(scope, self.fp32_modules):
            return True
        named = {operator_name(name) for name in operators} if self.fp32_ops else set()
        return any(operator_name(name) in named for name in self.fp32_ops)

    def _large(self, numbers: Iterable[Any]) -> list[Operand]:
        """Return an operand for each number that half cannot count to: -1e4, as masks have it."""
        given = [x for x in numbers if isinstance(x, int | float)]
        return [Operand(Kind.FLOAT, 1) for x in given if self.largest < abs(x) < math.inf]

    def _is_tiny(self, x: Any) -> bool:
        """Return whether half would lose a number's digits (1e-12), or may, as it is symbolic."""
        assert self.low is not None
        if not isinstance(x, int | float):
            return True
        return 0 < abs(x) < torch.finfo(self.low).smallest_normal


@dataclass(frozen=True)
class Trial:
    """One list of what stays in float32, and how far the network was from the original then.

    Attributes:
        tried: what was tried, in words.
        error: the largest relative error of an output; infinite where one has NaN or infinity.
    """

    tried: str
    error: float


@dataclass(frozen=True)
class Tuning:
    """What of a converted module stays in float32, and how that was found; prints as a table.

    Attributes:
        fp32_modules: names of modules (shell patterns).
        fp32_ops: names of operators.
        tolerance: what ``convert(tolerance=...)`` was given; None without it.
        error: the largest relative error of an output on the tuning inputs, in the reference
            executor; None without a tolerance.
        trials: what was tried, in order.
    """

    fp32_modules: tuple[str, ...] = ()
    fp32_ops: tuple[str, ...] = ()
    tolerance: float | None = None
    error: float | None = None
    trials: tuple[Trial, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return plain data, as a checkpoint keeps it; JSON has no infinity, which is None."""
        return {
            "fp32_modules": list(self.fp32_modules),
            "fp32_ops": list(self.fp32_ops),
            "tolerance": self.tolerance,
            "error": self.error,
            "trials": [
                [one.tried, one.error if math.isfinite(one.error) else None] for one in self.trials
            ],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Tuning:
        """Read what `to_data` returned; ValueError, KeyError or TypeError where it is damaged."""
        given = [data["tolerance"], data["error"]]
        tolerance, error = (None if x is None else float(x) for x in given)
        trials = tuple(
            Trial(str(tried), math.inf if x is None else float(x)) for tried, x in data["trials"]
        )
        modules, ops = (tuple(map(str, data[name])) for name in ("fp32_modules", "fp32_ops"))
        return cls(modules, ops, tolerance, error, trials)

    def __str__(self) -> str:
        names = ", ".join([*self.fp32_modules, *self.fp32_ops]) or "nothing"
        lines = [f"in float32: {names}"]
        if self.error is not None:
            lines.append(f"relative error {self.error:.2e}, allowed {self.tolerance:.2e}; tried:")
        return "\n".join([*lines, *(f"{one.error:9.2e}  {one.tried}" for one in self.trials)])
