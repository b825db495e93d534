"""Random programs of views and in-place writes, for tests of aliasing.

A program is a list of steps, each four small numbers. `run_program` interprets them on a growing
pool of tensors: the first number chooses an operation, the others its operands and places, all
taken modulo what there is, so that every list of numbers is a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["OPERATIONS", "Step", "replay", "run_program"]

Step = tuple[int, int, int, int]
Tensors = list[torch.Tensor]


def _dim(x: torch.Tensor, number: int) -> int:
    return number % max(x.ndim, 1)


def _select(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    dim = _dim(x, b)
    pool.append(x.select(dim, c % x.shape[dim] - (x.shape[dim] if c % 2 else 0)))


def _slice(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    dim = _dim(x, b)
    start = c % x.shape[dim]
    place = [slice(None)] * x.ndim
    place[dim] = slice(start, start + 1 + b % 3, 1 + c % 2)
    pool.append(x[tuple(place)])


def _piece(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    dim = _dim(x, b)
    pieces = (
        x.split(1 + c % 2, dim),
        x.chunk(2, dim),
        x.unbind(dim),
        x.split([1, x.shape[dim] - 1], dim),
    )[c % 4]
    pool.append(pieces[b % len(pieces)])


def _permute(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    order = list(range(x.ndim))
    pool.append(x.permute(order[b % x.ndim :] + order[: b % x.ndim]) if c % 2 else x.mT)


def _reshape(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    pool.append((x.view(-1), x.flatten(0, 1), x.reshape(-1, x.shape[0]), x.unsqueeze(b % 2))[c % 4])


def _memory(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    pool.append(
        (
            x.diagonal(b % 2),
            x.unfold(_dim(x, b), 2, 1 + b % 2),
            x.as_strided((2, 2), (1 + b % 2, 1)),
            x.squeeze(_dim(x, b)),
            x.detach(),
            x.expand(2, *x.shape),
            x.view_as(x),
            x.movedim(0, -1),
        )[c % 8]
    )


def _compute(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    y = pool[b % len(pool)]
    pool.append((x + 1, x.clone(), x.contiguous(), x * y, torch.cat([x, x]), x.relu())[c % 6])


def _constant(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    pool.append(
        (torch.zeros(3, 4), torch.full((2, 3), 2.0), torch.zeros_like(x), x.new_ones(4))[c % 4]
    )


def _other(pool: Tensors, x: torch.Tensor, b: int) -> torch.Tensor:
    """Give an operand: a copy where it shares memory with the target, as torch's order counts."""
    if any(size > 1 and not step for size, step in zip(x.shape, x.stride(), strict=True)):
        raise ValueError("torch warns of writes to expanded tensors, and writes")
    y = pool[b % len(pool)]
    shared = x.untyped_storage()._cdata == y.untyped_storage()._cdata
    return y.clone() if shared and y is not x else y


def _write(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    y = _other(pool, x, b)
    writes: Sequence[Callable[[], Any]] = (
        lambda: x.add_(1),
        lambda: x.mul_(y),
        lambda: x.copy_(y),
        lambda: x.relu_(),
        lambda: x.fill_(float(b)),
        lambda: x.zero_(),
        lambda: x.clamp_(max=0.5),
        lambda: x.masked_fill_(x > 0, 0.25),
        lambda: x.sub_(y.mean()),
    )
    writes[c % len(writes)]()


def _assign(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    y = _other(pool, x, b)
    if c % 6 == 0:
        x[0] = y
    elif c % 6 == 1:
        x[..., : 1 + b % 2] = 7.0
    elif c % 6 == 2:
        x[..., -1] *= 2
    elif c % 6 == 3:
        x[x > 0] = -1.0
    elif c % 6 == 4:
        x[[0, -1]] = 3.0
    else:
        x[..., 0].add_(y)


def _into(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    y = _other(pool, x, b)
    if c % 3 == 0:
        if x.shape != y.shape:
            raise ValueError("torch gives out= another size, and warns")
        torch.add(y, 1, out=x)
    elif c % 3 == 1:
        torch.mul(x, 2, out=x)
    else:
        x.index_fill_(0, torch.tensor([0]), 5.0)


def _turn(pool: Tensors, x: torch.Tensor, b: int, c: int) -> None:
    (
        lambda: x.t_(),
        lambda: x.unsqueeze_(b % 2),
        lambda: x.squeeze_(),
        lambda: x.transpose_(0, -1),
    )[c % 4]()


OPERATIONS = (
    _select, _slice, _piece, _permute, _reshape, _memory, _compute, _constant,
    _write, _write, _assign, _into, _turn,
)  # fmt: skip


def run_program(steps: Sequence[Step], *inputs: torch.Tensor) -> tuple[Tensors, list[Step]]:
    """Run a program; steps that torch refuses are left out, and the others are given back."""
    pool, done = list(inputs), []
    for step in steps:
        operation, a, b, c = step
        # torch may have changed something before it refuses.
        saved = [x.clone() for x in pool]
        try:
            OPERATIONS[operation % len(OPERATIONS)](pool, pool[a % len(pool)], b, c)
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            assert all(map(torch.equal, saved, pool))
            continue
        done.append(step)
    return pool, done


def replay(steps: Sequence[Step], *inputs: torch.Tensor) -> Tensors:
    """Run the steps of a program that torch takes."""
    pool = list(inputs)
    for operation, a, b, c in steps:
        OPERATIONS[operation % len(OPERATIONS)](pool, pool[a % len(pool)], b, c)
    return pool
