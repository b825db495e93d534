"""What the tracer needs to know of a PyTorch operator, read from its schema once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from t2t import registry
from t2t.registry import Converter, Formula
from t2t.sizes import is_symbolic
from t2t.torch_internals import (
    CompositeImplicit,
    OpOverload,
    decomposition_tables,
    overload_name,
    schema_of,
)

PAIRS = (torch.ops.aten.view_as_real.default, torch.ops.aten.view_as_complex.default)
"""What leads from complex numbers to pairs of real ones and back: in a network both are pairs."""


@dataclass(frozen=True)
class OperatorInfo:
    """Facts about one operator overload.

    Attributes:
        name: "aten::add_.Tensor".
        mutated: names of the arguments that it writes to.
        mutated_positions: their positions.
        functional: the operator that computes the same without writing, if there is one.
        changes_metadata: it changes shape or strides of its argument in place (``squeeze_``).
        is_view: it returns an alias of its argument.
    """

    name: str
    mutated: tuple[str, ...]
    mutated_positions: tuple[int, ...]
    functional: OpOverload | None
    changes_metadata: bool
    is_view: bool


@functools.cache
def operator_info(operator: OpOverload) -> OperatorInfo:
    """Read an operator's schema."""
    schema = schema_of(operator)
    writes = [
        (index, argument.name)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    overload = overload_name(operator)
    name = schema.name if overload == "default" else f"{schema.name}.{overload}"
    return OperatorInfo(
        name=name,
        mutated=tuple(argument for _, argument in writes),
        mutated_positions=tuple(index for index, _ in writes),
        functional=_functional(operator) if writes else None,
        changes_metadata=torch.Tag.inplace_view in operator.tags,
        is_view=not writes and any(r.alias_info is not None for r in schema.returns),
    )


def draws_random(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call draws random numbers: attention, for one, does with dropout only."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    for index, argument in enumerate(schema_of(operator).arguments):
        if argument.name == "dropout_p":
            given = args[index] if index < len(args) else kwargs.get(argument.name, 0.0)
            return bool(given)
    return True


_FUNCTIONAL_NAMES = {"fill_": "fill", "zero_": "zero", "copy_": "copy", "set_": None}


def _functional(operator: OpOverload) -> OpOverload | None:
    """Find ``aten::add.Tensor`` for ``aten::add_.Tensor`` or ``aten::add.out``."""
    namespace, _, name = schema_of(operator).name.partition("::")
    overload = overload_name(operator)
    wanted = name[:-1] if name.endswith("_") else name
    packet = getattr(getattr(torch.ops, namespace), wanted, None)
    if packet is None or _FUNCTIONAL_NAMES.get(name, "") is None:
        return None
    # With their types: pow_.Scalar is the in-place form of pow.Tensor_Scalar, not of pow.Scalar.
    inputs = [(a.name, str(a.type)) for a in schema_of(operator).arguments if not a.is_out]
    if wanted != name and overload in packet.overloads():
        found: OpOverload = getattr(packet, overload)
        if not schema_of(found).is_mutable and _inputs(found) == inputs:
            return found
    for candidate in packet.overloads():
        other: OpOverload = getattr(packet, candidate)
        if not schema_of(other).is_mutable and _inputs(other) == inputs:
            return other
    # Where more is written than the result: aten::rrelu_with_noise.
    packet = getattr(getattr(torch.ops, namespace), f"{wanted}_functional", None)
    return None if packet is None else packet.default


def _inputs(operator: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in schema_of(operator).arguments]


@functools.cache
def _tables() -> tuple[dict[OpOverload, Callable[..., Any]], ...]:
    return decomposition_tables()


def ways(operator: OpOverload) -> Iterator[Converter | Formula]:
    """Yield what may convert an operator, in turn: what is registered, then PyTorch's formula."""
    yield from registry.ways(operator)
    found = _decomposition(operator)
    if found is not None:
        yield Formula(found, (), "follow")


def complex_ways(operator: OpOverload) -> Iterator[Formula]:
    """Yield what computes an operator of complex numbers, in turn.

    Of PyTorch's own formulas, those that stand for the operator on every device: others may not
    know such numbers.
    """
    yield from registry.complex_ways(operator)
    if operator.has_kernel_for_dispatch_key(CompositeImplicit):
        yield Formula(operator.decompose, (), "follow")


def _decomposition(operator: OpOverload) -> Callable[..., Any] | None:
    if operator.namespace == "prims":
        # PyTorch's own formulas end in these primitives, each of which names its torch function.
        return getattr(operator, "impl_aten", None)
    for table in _tables():
        if operator in table:
            return table[operator]
    try:
        decomposes = operator._can_decompose()
    except RuntimeError:
        # TorchScript's own operators, such as aten::size: some versions say that they do not exist.
        return None
    return operator.decompose if decomposes else None


def _decide_squeeze(self: torch.Tensor, dim: Any = None) -> None:
    """Let a guard say whether a dynamic size is 1.

    torch assumes in silence that it is not; the result would have another rank where it is.
    """
    chosen = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    for axis in chosen:
        if self.ndim and is_symbolic(size := self.shape[axis]):
            bool(size == 1)


def _require_elements(self: torch.Tensor, dim: Any = None, *_args: Any) -> None:
    """Let a guard say that there is an extreme; torch asks for it when it has the data."""
    sizes = self.shape if type(dim) is not int else self.shape[dim : dim + 1 or None]
    for size in sizes:
        torch._check(size != 0, lambda: "the reduction of no elements has no result")


def _require_image(self: torch.Tensor, *_args: Any) -> None:
    """Let a guard say that there is an image to pool; torch asks for it when it has the data."""
    for size in self.shape[1:]:
        torch._check(size != 0, lambda: "adaptive pooling of no elements")


_aten = torch.ops.aten
DECISIONS: dict[OpOverload, Callable[..., None]] = {
    **dict.fromkeys(
        (
            _aten.squeeze.default,
            _aten.squeeze.dim,
            _aten.squeeze.dims,
            _aten.squeeze_.default,
            _aten.squeeze_.dim,
            _aten.squeeze_.dims,
        ),
        _decide_squeeze,
    ),
    **dict.fromkeys(
        (_aten.max.default, _aten.max.dim, _aten.min.default, _aten.min.dim), _require_elements
    ),
    **dict.fromkeys(
        (_aten._adaptive_avg_pool2d.default, _aten._adaptive_avg_pool3d.default), _require_image
    ),
}
"""What must be decided about dynamic sizes before an operator runs."""
