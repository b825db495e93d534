"""Random weights that let every part of a network show in its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zoo.case import Case

__all__ = ["vary"]

NORMS = torch.nn.modules.batchnorm._BatchNorm
LAYERS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


def vary(module: torch.nn.Module, case: Case) -> None:
    """Replace the constants of fresh weights (zeros, ones) and scale the layers on real data.

    Else a bias, a scale or a whole residual branch could be lost without a trace, and signals
    would vanish or grow until rounding errors are all that is left. Layers get outputs of deviation
    1 (Mishkin and Matas, All you need is a good init), batch norms the statistics of these.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() and _constant(parameter):
                parameter.add_(0.1 * torch.randn_like(parameter))
        norms = [m for m in module.modules() if isinstance(m, NORMS) and m.track_running_stats]
        layers = [m for m in module.modules() if isinstance(m, LAYERS)]
        for norm in norms:
            norm.train()
            norm.momentum = None
        try:
            _run(module, case, 0, layers)
            for seed in range(1, 4 if norms else 1):
                _run(module, case, seed, [])
        except ValueError:
            # A single value for each channel has no statistics.
            for norm in norms:
                norm.reset_running_stats()
        for norm in norms:
            # A channel that hardly varies in these few examples would explode in others.
            variance = norm.running_var
            variance.nan_to_num_(1.0).clamp_(min=max(0.5 * float(variance.mean()), 1e-6))
            norm.eval()
        if norms:
            _run(module, case, 4, norms)


def _run(module: torch.nn.Module, case: Case, seed: int, scaled: Sequence[Any]) -> None:
    hooks = [layer.register_forward_hook(_scaled) for layer in scaled]
    args, kwargs = case.draw(torch.Generator().manual_seed(10 + seed), 0)
    try:
        module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()


def _scaled(layer: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """Scale a layer so that its output has the deviation 1."""
    del inputs
    deviation = output.std()
    if not 1e-9 < deviation < 1e9:
        return output
    for parameter in layer.parameters(recurse=False):
        parameter.div_(deviation)
    return output / deviation


def _constant(x: torch.Tensor) -> bool:
    return bool((x == x.flatten()[0]).all())
