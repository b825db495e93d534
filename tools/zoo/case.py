"""What the sweep converts: one case for each model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Case", "Inputs", "images", "tokens"]

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword inputs of one forward pass."""


@dataclass(frozen=True)
class Case:
    """One model, and what to convert it with.

    Attributes:
        name: "package/model", with what is special after a blank: "timm/resnet18 fp16".
        make: makes the model, in eval mode, from random numbers of torch's generator.
        draw: makes inputs from a generator; called with 0 for the example and 1 for the second
            run, whose sizes may differ where dimensions are dynamic.
        options: further arguments of `t2t.to_network` (dynamic_shapes).
        fp16: convert with ``fp16=True``.
        keep_weights: the weights are the model's own, and are left as they are.
        refused: what the refusal must say, where the model cannot be converted.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    draw: Callable[[torch.Generator, int], Inputs]
    options: Mapping[str, Any] = field(default_factory=dict)
    fp16: bool = False
    keep_weights: bool = False
    refused: str = ""


def images(*shape: int, second: Sequence[int] | None = None) -> Any:
    """Draw one input of standard normal numbers; ``second`` is its shape in the second run."""

    def draw(generator: torch.Generator, run: int) -> Inputs:
        return (torch.randn(tuple((second if run else None) or shape), generator=generator),), {}

    return draw


def tokens(
    vocabulary: int,
    batch: int = 2,
    length: int = 12,
    second: tuple[int, int] | None = None,
    **others: Callable[[torch.Generator, int, int], torch.Tensor],
) -> Any:
    """Draw input_ids and an attention_mask that hides the end of all but the first sequence.

    Args:
        vocabulary: ids are drawn from 3 to this, exclusive.
        batch: how many sequences.
        length: how many tokens in each.
        second: batch and length of the second run.
        others: further keyword inputs, as functions of the generator, the batch and the length.
    """

    def draw(generator: torch.Generator, run: int) -> Inputs:
        b, n = (second if run else None) or (batch, length)
        ids = torch.randint(3, vocabulary, (b, n), generator=generator)
        mask = torch.ones(b, n, dtype=torch.int64)
        for row in range(1, b):
            mask[row, n - row % (n // 2) - run :] = 0
        given = {"input_ids": ids, "attention_mask": mask}
        return (), {**given, **{key: make(generator, b, n) for key, make in others.items()}}

    return draw
