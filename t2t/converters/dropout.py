"""Dropout, which an engine can only leave out."""

from __future__ import annotations

import torch

from t2t.errors import UnsupportedArgumentError
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["native_dropout"]


@converter("aten::native_dropout")
def native_dropout(
    net: Network, input: torch.Tensor, p: float, train: bool | None
) -> tuple[NetworkTensor, None]:
    """Convert dropout that keeps everything to nothing; the mask is for the backward pass.

    In eval mode torch calls no operator at all; where it makes the mask by others, those are
    refused as they draw random numbers.
    """
    if train and p != 0:
        raise UnsupportedArgumentError(
            f"p={p}, train=True: an engine cannot draw random numbers; call .eval() on the module"
        )
    return net.tensor(input), None
