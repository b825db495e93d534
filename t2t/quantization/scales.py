"""What calibration found, and what a conversion made of it: both can be saved and looked at."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from t2t.errors import ConversionError
from t2t.rounding import Rounding

_FORMAT = 1


def call_key(scope: str, kind: str, index: int) -> str:
    """Return the name of a call: its module, what it computes, which such call of the module."""
    name = f"{scope}/{kind}" if scope else kind
    return f"{name}#{index}" if index else name


@dataclass(frozen=True)
class Range:
    """What was seen at one product or addition.

    Attributes:
        largest: for each operand the number that the largest integer shall stand for; None where it
            was not looked at (parameters, whose scales are made of their values).
        ranks: the number of dimensions of each operand.
        shifts: for int8, the power of two that each input channel of the activations is divided by,
            and the weights multiplied by; () where no channels stick out.
        smoothed: the largest number of the activations after that.
    """

    largest: tuple[float | None, ...]
    ranks: tuple[int, ...]
    shifts: tuple[int, ...] = ()
    smoothed: float = 0.0


@dataclass(frozen=True)
class Scales:
    """Ranges of what a model's products and additions read, by the call.

    Attributes:
        ranges: by call: "layer1.0.conv1/conv" is the first convolution that the module
            ``layer1.0.conv1`` calls, "head/matmul#1" the second product of ``head``.
        method: how they were chosen: "minmax", "percentile", "entropy" or "mse".
        samples: of how many inputs.
    """

    ranges: Mapping[str, Range]
    method: str
    samples: int

    def to_json(self) -> str:
        """Return the scales as JSON."""
        data = {
            "format": _FORMAT,
            "method": self.method,
            "samples": self.samples,
            "ranges": {key: asdict(value) for key, value in self.ranges.items()},
        }
        return json.dumps(data, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scales:
        """Read what `to_json` returned.

        Raises:
            ConversionError: the text is none of it.
        """
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']}, and this t2t reads {_FORMAT}")
            ranges = {str(key): _range(value) for key, value in data["ranges"].items()}
            return cls(ranges, str(data["method"]), int(data["samples"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConversionError(f"these are no scales of t2t.calibrate: {error!r}") from error

    def __str__(self) -> str:
        rows = [
            f"{key:40} {' '.join('-' if x is None else f'{x:.6g}' for x in value.largest)}"
            + (f" (smoothed: {value.smoothed:.6g})" if value.shifts else "")
            for key, value in self.ranges.items()
        ]
        head = f"{len(rows)} calls, {self.method} of {self.samples} inputs; largest values:"
        return "\n".join([head, *rows])


def _range(data: Mapping[str, Any]) -> Range:
    largest = tuple(None if x is None else float(x) for x in data["largest"])
    ranks = tuple(int(rank) for rank in data["ranks"])
    smoothed, shifts = float(data.get("smoothed", 0.0)), data.get("shifts", ())
    if len(largest) != len(ranks) or any(
        x is not None and not (math.isfinite(x) and x >= 0) for x in (*largest, smoothed)
    ):
        raise ValueError(f"largest={data['largest']}, smoothed={smoothed}")
    return Range(largest, ranks, tuple(int(shift) for shift in shifts), smoothed)


@dataclass(frozen=True)
class Quantized:
    """What became of one product or addition.

    Attributes:
        call: its name, as in `Scales`.
        line: the user's line.
        roundings: how each operand is rounded; None for one that stays as it is.
        reason: why it is not quantized, or not wholly; "" where it is.
    """

    call: str
    line: str
    roundings: tuple[Rounding | None, ...]
    reason: str = ""

    @property
    def bits(self) -> str:
        """What it computes in: "int8", "fp8", "int4 weights", "int8 weights" or "float"."""
        rounded = [x for x in self.roundings if x is not None]
        if not rounded:
            return "float"
        alone = len(rounded) == 1 and rounded[0].scale is None
        return f"{rounded[0].bits} weights" if alone else rounded[0].bits


@dataclass(frozen=True)
class Quantization:
    """What became of all products and additions of a converted module; prints as a table.

    Attributes:
        calls: in the order of the forward pass.
    """

    calls: tuple[Quantized, ...] = ()

    def __bool__(self) -> bool:
        return any(any(one.roundings) for one in self.calls)

    def summary(self) -> str:
        """Return how many products and additions compute in what: "20 int8, 1 float"."""
        counts = Counter(one.bits for one in self.calls)
        return ", ".join(f"{count} {bits}" for bits, count in counts.most_common())

    def to_data(self) -> list[Any]:
        """Return plain data, as a checkpoint keeps it."""
        return [
            {
                "call": one.call,
                "line": one.line,
                "roundings": [None if r is None else r.to_data() for r in one.roundings],
                "reason": one.reason,
            }
            for one in self.calls
        ]

    @classmethod
    def from_data(cls, data: Any) -> Quantization:
        """Read what `to_data` returned; ValueError, KeyError or TypeError where it is damaged."""
        return cls(
            tuple(
                Quantized(
                    str(one["call"]),
                    str(one["line"]),
                    tuple(None if r is None else Rounding.from_data(r) for r in one["roundings"]),
                    str(one["reason"]),
                )
                for one in data
            )
        )

    def __str__(self) -> str:
        rows = [(one.call, one.bits, one.reason) for one in self.calls]
        wide = max((len(call) for call, *_ in rows), default=0)
        return "\n".join(
            f"{call:{wide}}  {bits:12}  {reason}".rstrip() for call, bits, reason in rows
        )
