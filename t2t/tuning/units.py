"""The modules of a trace as a tree, and the parts into which precision can be told apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from t2t.precision import Policy
from t2t.tracing.graph import Call, tree_leaves

Pair = tuple[str, str]


@dataclass(frozen=True)
class Unit:
    """Calls that leave float32, or stay there, together.

    Attributes:
        name: path of the module, or name of the operator, that stays in float32 for it.
        pairs: the calls: path of the module that makes them, and operator.
        parts: what it is made of: submodules, what the module computes itself, and for the whole
            model, whose own calls no submodule's name covers, its operators. () for the smallest.
        what: "module", "own calls" or "operator".
    """

    name: str
    pairs: frozenset[Pair]
    parts: tuple[Unit, ...] = field(default=(), compare=False)
    what: str = "module"

    def __str__(self) -> str:
        return f"{self.name} (its own calls)" if self.what == "own calls" else self.name

    def alone(self, policy: Policy) -> Policy:
        """Return a policy under which nothing else leaves float32."""
        return replace(policy, only=self.pairs)

    def leaves(self, depth: int | None = None) -> list[Unit]:
        """Return the smallest units, or those of so many levels of modules."""
        if not self.parts or depth == 0:
            return [self]
        deeper = None if depth is None else depth - 1
        return [leaf for part in self.parts for leaf in part.leaves(deeper)]

    def joined(self, units: Sequence[Unit]) -> list[Unit]:
        """Return units, where all parts of a module are among them the module instead."""
        if self in units:
            return [self]
        found = [part.joined(units) for part in self.parts]
        if self.name and self.parts and found == [[part] for part in self.parts]:
            return [self]
        return [unit for inside in found for unit in inside]


def root(calls: Iterable[Call]) -> Unit:
    """Return the unit of all calls that compute floating-point tensors, in program order.

    Views compute nothing: they are as precise as what they show.
    """
    pairs = dict.fromkeys(
        (call.scope, call.name)
        for call in calls
        if not getattr(call.function, "is_view", False)
        and any(isinstance(x, Tensor) and x.is_floating_point() for x in tree_leaves(call.output))
    )
    return _unit("", list(pairs))


def kept(policy: Policy, units: Sequence[Unit]) -> Policy:
    """Return a policy under which these units stay in float32 besides."""
    modules = dict.fromkeys(unit.name for unit in units if unit.what != "operator")
    outer = [name for name in modules if not any(name.startswith(f"{other}.") for other in modules)]
    ops = dict.fromkeys(unit.name for unit in units if unit.what == "operator")
    return replace(
        policy,
        fp32_modules=tuple(dict.fromkeys([*policy.fp32_modules, *outer])),
        fp32_ops=tuple(dict.fromkeys([*policy.fp32_ops, *ops])),
    )


def _unit(path: str, pairs: Sequence[Pair]) -> Unit:
    own = [pair for pair in pairs if pair[0] == path]
    start = f"{path}." if path else ""
    below: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair[0] != path:
            child = pair[0][len(start) :].partition(".")[0]
            below.setdefault(start + child, []).append(pair)
    parts = [_unit(child, inside) for child, inside in below.items()]
    if not path:
        parts += [Unit(op, frozenset([(scope, op)]), (), "operator") for scope, op in own]
    elif own and parts:
        parts.append(Unit(path, frozenset(own), (), "own calls"))
    if path and len(parts) == 1:
        # One name for the same calls: the shorter one.
        parts = list(parts[0].parts)
    return Unit(path, frozenset(pairs), tuple(parts))
