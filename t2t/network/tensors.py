"""The words of a network: its tensors, what stands for them, and the operation in progress."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from t2t import backend
from t2t.backend import trt
from t2t.errors import ConversionError
from t2t.precision import Cast, Choice, Kind, Operand

MAX_RANK = 8
"""Most dimensions that a TensorRT tensor has."""

RANK = (
    "a tensor of {rank} dimensions, and TensorRT's have at most 8: join some with .reshape() or "
    ".flatten() before"
)

Number: TypeAlias = "bool | int | float | torch.SymInt | torch.SymFloat | torch.SymBool"


class NetworkTensor(Protocol):
    """TensorRT's ITensor: a tensor of the network, without data."""

    name: str

    @property
    def shape(self) -> Any:
        """Sizes, -1 where dynamic."""

    @property
    def dtype(self) -> Any:
        """TensorRT's data type."""

    @property
    def is_network_input(self) -> bool:
        """Whether it is an input of the network."""


TensorLike: TypeAlias = "torch.Tensor | NetworkTensor | Number"
"""What layers take: a torch tensor (traced or constant), a network tensor or a number."""


@dataclass
class Operation:
    """The call that is being converted: what its layers are named after and checked against.

    Attributes:
        name: the operator's short name, as "conv2d".
        scope: path of the module that made the call, as "layer1.0.conv1".
        operators: full names of the operator, and of those whose formulas it is a part of.
        line: the user's line, as "model.py:12 in forward".
        output: the fake tensors that torch answered with, nested as torch returns them.
        operands: what decides about its floating-point operands under ``fp16=True``.
        numbers: the numbers among its operands.
        cast: what the model says of precision where it makes the call.
        like: the kind of what it casts to the type of.
        unused: which of its outputs nobody reads, by their place.
        choice: torch's floating dtypes and those that this operator computes in instead, and what
            its result counts as.
    """

    name: str
    scope: str = ""
    operators: tuple[str, ...] = ()
    line: str = ""
    output: Any = None
    operands: Sequence[Operand] = ()
    numbers: Sequence[Any] = ()
    cast: Cast | None = None
    like: Kind | None = None
    unused: frozenset[int] = frozenset()
    choice: Choice = field(default_factory=lambda: Choice({}, Kind.FLOAT))

    @property
    def path(self) -> str:
        """Name of the operation's layers: "layer1.0.conv1/conv2d"."""
        return f"{self.scope}/{self.name}" if self.scope else self.name


def shape(tensor: NetworkTensor) -> tuple[int, ...]:
    """Read a network tensor's shape; what TensorRT has against its layer raises here."""
    try:
        return tuple(tensor.shape)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConversionError(
            f"TensorRT cannot infer the shape of {tensor.name}: {backend.error_text()}"
        ) from error


def set_attribute(layer: Any, attribute: str, value: Any) -> None:
    """Set an attribute of a layer, and raise where TensorRT's setter ignores it."""
    setattr(layer, attribute, value)
    got = getattr(layer, attribute)
    if isinstance(value, float):
        same = math.isclose(got, np.float32(value), rel_tol=1e-6) or (
            math.isnan(value) and math.isnan(got)
        )
    elif isinstance(value, list | tuple):
        same = tuple(got) == tuple(value)
    else:
        same = got == value
    if not same:
        raise ConversionError(
            f"TensorRT ignores {attribute}={value!r} (it keeps {got!r}): {backend.error_text()}"
        )


def member(kind: str, value: Any) -> Any:
    """Return a member of one of TensorRT's enums, from its name or from itself."""
    return getattr(getattr(trt, kind), value) if isinstance(value, str) else value


def axes_mask(axes: int | Iterable[int]) -> int:
    """Return TensorRT's bit mask of non-negative axes."""
    return sum(1 << axis for axis in ([axes] if isinstance(axes, int) else axes))
