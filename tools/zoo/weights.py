"""Random weights that let every part of a network show in its outputs."""

from __future__ import annotations

from typing import Any

import torch

from zoo.case import Case

__all__ = ["vary"]

LAYERS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


def vary(module: torch.nn.Module, case: Case) -> None:
    """Replace the constants of fresh weights (zeros, ones) and scale the layers on real data.

    Else a bias, a scale or a whole residual branch could be lost without a trace, or the inputs
    would not reach the outputs: layers give outputs of deviation 1 (Mishkin and Matas, All you
    need is a good init), and batch norms the statistics of these.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() and _constant(parameter):
                parameter.add_(0.1 * torch.randn_like(parameter))
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    norms = [m for m in norms if m.track_running_stats]
    hooks = [m.register_forward_hook(_scaled) for m in module.modules() if isinstance(m, LAYERS)]
    for norm in norms:
        norm.train()
        norm.momentum = None
    try:
        for seed in range(4 if norms else 1):
            args, kwargs = case.draw(torch.Generator().manual_seed(10 + seed), 0)
            with torch.no_grad():
                module(*args, **kwargs)
            for hook in hooks:
                hook.remove()
    except (ValueError, RuntimeError):
        # One value for each channel has no deviation: random statistics do as well.
        for norm in norms:
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
    for norm in norms:
        norm.running_var.nan_to_num_(1.0).clamp_(min=1e-6)
        norm.eval()


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
