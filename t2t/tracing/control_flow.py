"""Operators that take functions: torch.cond, loops of fixed length, flex_attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from t2t.errors import UnsupportedOperatorError
from t2t.torch_internals import FakeTensor, flex_attention_in_plain_operators, pytree

__all__ = ["HIGHER_ORDER", "NO_LOOPS"]

NO_LOOPS = (
    "torch.{name} has no converter yet: write a Python loop of fixed length, which is unrolled, or "
    "operators on whole tensors"
)
_DATA = (
    "torch.while_loop: how often it runs depends on the input; a loop of fixed length is unrolled, "
    "with torch.where choosing what has ended already"
)


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    """Compute both branches and choose between their results.

    Branches of torch.cond have no side effects and give tensors of the same shapes, in trees of one
    structure, which is the result's.
    """
    if not isinstance(pred, torch.Tensor):
        return true_fn(*operands) if pred else false_fn(*operands)
    chosen, structure = pytree.tree_flatten(true_fn(*operands))
    other, others_structure = pytree.tree_flatten(false_fn(*operands))
    if structure != others_structure:
        raise UnsupportedOperatorError("torch.cond: its branches return other structures")
    made = [
        torch.where(pred.reshape(()), a, b) if isinstance(a, torch.Tensor) else _same(a, b)
        for a, b in zip(chosen, other, strict=True)
    ]
    return pytree.tree_unflatten(made, structure)


def _same(a: Any, b: Any) -> Any:
    if a != b:
        raise UnsupportedOperatorError(
            f"torch.cond: a number that differs between the branches ({a} and {b}); return a tensor"
        )
    return a


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any],
) -> tuple[Any, ...]:
    """Unroll a loop whose condition depends on constants only, such as a counter."""
    carried = tuple(carried_inputs)
    while True:
        goes_on = cond_fn(*carried, *additional_inputs)
        if isinstance(goes_on, FakeTensor):
            raise UnsupportedOperatorError(_DATA)
        if not goes_on:
            return carried
        carried = tuple(body_fn(*carried, *additional_inputs))


def scan(
    combine_fn: Callable[..., Any],
    init: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] = (),
    **mutated: Any,
) -> Any:
    """Unroll a scan: the last carried values, and what each step gives stacked.

    Where PyTorch compiles nothing, its wrapper gives and expects trees, as the user's function
    returns them; functions that were exported return the leaves of both in one row.
    """
    del mutated
    trees = isinstance(combine_fn, functools.partial)
    carry, rows = list(init), []
    for step in _steps(xs):
        made = combine_fn(*carry, *step, *additional_inputs)
        last, row = made if trees else (made[: len(init)], made[len(init) :])
        carry = pytree.tree_leaves(last)
        rows.append(row)
    stacked = _stacked(rows)
    return (last, stacked) if trees else (*last, *stacked)


def associative_scan(
    combine_fn: Callable[..., Any],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    """Unroll an associative scan, from the first step to the last."""
    first, *rest = _steps(xs)
    # Only the structure counts of what is combined here.
    rows = [combine_fn(*first, *first, *additional_inputs)]
    rows = [pytree.tree_unflatten(first, pytree.tree_structure(rows[0]))]
    for step in rest:
        rows.append(combine_fn(*pytree.tree_leaves(rows[-1]), *step, *additional_inputs))
    return _stacked(rows)


def map_rows(
    f: Callable[..., Any], xs: Sequence[torch.Tensor], pos_args: Sequence[Any], **mutated: Any
) -> Any:
    """Unroll torch's map of a function over rows."""
    del mutated
    return _stacked([f(*row, *pos_args) for row in _steps(xs)])


def _steps(xs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    # A dynamic number of steps is refused here, by its guard: the loop is unrolled.
    length = int(xs[0].shape[0])
    if not length:
        raise UnsupportedOperatorError("a scan or map without steps")
    return [tuple(x[index] for x in xs) for index in range(length)]


def _stacked(rows: Sequence[Any]) -> Any:
    """Stack trees of the same structure, leaf by leaf."""
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *rows)


def flex_attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """Compute with PyTorch's own definition: all scores, changed by the two functions."""
    out, *scores = flex_attention_in_plain_operators(query, *args, **kwargs)
    # In memory the result lies as the query does, on which a .view() behind it may rely.
    strides = query.stride()
    order = sorted(range(4), key=lambda axis: -strides[axis])
    inverse = sorted(range(4), key=lambda axis: order[axis])
    return out.permute(order).contiguous().permute(inverse), *scores


HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "associative_scan": associative_scan,
    "cond": cond,
    "flex_attention": flex_attention,
    "map": map_rows,
    "scan": scan,
    "while_loop": while_loop,
}
"""What operators that take functions compute, in terms of ordinary ones, by name."""
