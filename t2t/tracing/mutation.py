"""Operators that write to their arguments: recorded as new values of what they write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from t2t import registry
from t2t.errors import UnsupportedOperatorError
from t2t.tracing.graph import Value, map_tree, tree_leaves
from t2t.tracing.layout import may_be_same
from t2t.tracing.operators import OperatorInfo, draws_random, operator_info
from t2t.tracing.recorder import RANDOM, Recorder

__all__ = ["Mutations"]


class Mutations(Recorder):
    """Records in-place operators through their functional forms."""

    def _call_mutating(
        self, operator: OpOverload, info: OperatorInfo, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        targets = self._targets(info, args, kwargs)
        for target in targets:
            if not self.is_traced(target):
                self.promote(target, info.name)
        if info.changes_metadata:
            return self._change_metadata(operator, info, args, kwargs)
        if info.functional is None or _draws(operator, info.functional):
            return self._write_gap(operator, info, args, kwargs, targets)
        outs = {a.name for a in operator._schema.arguments if a.is_out}
        if outs:
            kwargs = {key: value for key, value in kwargs.items() if key not in outs}
        result = self.call_operator(info.functional, args, kwargs)
        results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        for target, new in zip(targets, results[-len(targets) :], strict=True):
            entry = self._memory.find(target)
            assert entry is not None
            if not outs and not may_be_same(new.shape, target.shape):
                raise RuntimeError(f"{info.name} gives another shape than its argument's")
            if not may_be_same(new.shape, target.shape):
                raise self.located(
                    UnsupportedOperatorError(
                        f"{info.name} writes a tensor of shape {tuple(new.shape)} into one of "
                        f"shape {tuple(target.shape)}; give out= the result's shape"
                    )
                )
            if not torch.can_cast(new.dtype, target.dtype):
                raise RuntimeError(f"{info.name} gives {new.dtype}, and writes to {target.dtype}")
            if new.dtype != target.dtype:
                new = self.call_operator(
                    torch.ops.aten._to_copy.default, (new,), {"dtype": target.dtype}
                )
            self._write(entry, self.value(new))
        # What is written need not be returned: running statistics, noise.
        returned = operator._schema.returns
        fresh = bool(returned) and returned[0].alias_info is None
        if not returned:
            return None
        given = list(results if fresh else targets)[: len(returned)]
        return given[0] if len(given) == 1 else tuple(given)

    def _write_gap(
        self,
        operator: OpOverload,
        info: OperatorInfo,
        args: tuple[Any, ...],
        kwargs: Any,
        targets: list[torch.Tensor],
    ) -> Any:
        """Let what an unconvertible operator wrote have values that raise when they are read."""
        random = draws_random(operator, args, kwargs)
        # The form that does not write, in which PyTorch can run it, has no defaults.
        defaults = {
            a.name: a.default_value
            for a in operator._schema.arguments[len(args) :]
            if a.has_default_value()
        }
        call = self._call(info.name, None, args, {**defaults, **kwargs})
        call.problem = UnsupportedOperatorError(
            RANDOM if random else "it writes to a traced tensor in place, and has no other form"
        )
        call.function = info.functional
        self.graph.calls.append(call)
        written = []
        for index, target in enumerate(targets):
            entry = self._memory.find(target)
            assert entry is not None
            written.append(self._alias(entry.fake))
            self._write(entry, Value(written[-1], call, index))
        call.output = written[0] if len(written) == 1 else tuple(written)
        return targets[0]

    def _change_metadata(
        self, operator: OpOverload, info: OperatorInfo, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        target = args[0]
        entry = self._memory.find(target)
        if info.functional is None or entry is None:
            raise self.located(UnsupportedOperatorError(f"{info.name} on a traced tensor"))
        value = self.value(target)
        old, fake = entry.fake, target
        with self.paused():
            if target is old:
                old = torch.ops.aten.alias.default(target)
                self._rename((value, entry.made), target, old)
            else:
                fake = info.functional(old, *args[1:], **kwargs)
            operator(*args, **kwargs)
        arguments = (old, *args[1:])
        functional, name = info.functional, operator_info(info.functional).name
        view = self._view(name, functional, arguments, kwargs, old)
        self._memory.change_metadata(entry, old, fake, self._refresh(view, value), view)
        return target

    def _rename(self, values: Iterable[Value], tensor: torch.Tensor, old: torch.Tensor) -> None:
        """Let calls already recorded refer to a tensor as it was before it changed its shape."""
        for value in values:
            if value.tensor is tensor:
                value.tensor = old
                if value.call is not None:
                    value.call.output = map_tree(
                        lambda x: old if x is tensor else x, value.call.output
                    )

    def _targets(self, info: OperatorInfo, args: Any, kwargs: Any) -> list[torch.Tensor]:
        found = [
            args[position] if position < len(args) else kwargs.get(name)
            for position, name in zip(info.mutated_positions, info.mutated, strict=True)
        ]
        return [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]

    def promote(self, target: torch.Tensor, operator: str) -> None:
        """Let a constant tensor become a traced one, as a traced value is written to it."""
        try:
            chain = list(self.constants.promote(target, operator))
        except UnsupportedOperatorError as error:
            raise self.located(error) from error
        with self.paused():
            for tensor, parent, view in chain:
                if view is None or parent is None:
                    fake = self.mode.from_tensor(tensor, static_shapes=True)
                    self._memory.add_root(tensor, Value(tensor.detach().clone()), fake)
                    continue
                entry = self._memory.find(parent)
                assert entry is not None
                value = self._refresh(view, entry.value)
                args, kwargs = view.on(entry.fake)
                made = view.function(*args, **kwargs)
                fake = made[view.index] if isinstance(made, tuple | list) else made
                self._memory.add_view(tensor, value, entry, view, fake)


def _draws(operator: OpOverload, functional: OpOverload) -> bool:
    """Say whether an operator draws random numbers, and no converter says when it does not."""
    random = torch.Tag.nondeterministic_seeded in operator.tags
    return random and registry.find_operator(functional) is None
