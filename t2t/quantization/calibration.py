"""Ranges of activations, from real forward passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from t2t.errors import ConversionError
from t2t.io import Parameters, arguments, map_tree
from t2t.isolation import preserved
from t2t.options import check_module
from t2t.quantization.forward import seen_products
from t2t.quantization.scales import Range, Scales

__all__ = ["METHODS", "calibrate", "check_data"]

METHODS = ("minmax", "percentile", "entropy", "mse")

_BINS = 2048
_STEPS = 128
"""How many numbers int8 has on one side of zero."""


def calibrate(
    module: Callable[..., Any],
    data: Iterable[Any],
    *,
    method: str = "mse",
    percentile: float = 99.99,
    progress: bool | None = None,
) -> Scales:
    """Look at what a module's products and additions read while it runs, for `convert`.

    The module runs in PyTorch, on its own device, without gradients, and is left as it is.

    Args:
        module: a module in eval mode (or a function of tensors).
        data: an iterable of inputs such as the module will see, some hundred: each a tensor, a
            tuple or list of positional arguments, or a dict of keyword arguments. A loader of
            images and labels is ``[(image,) for image, label in loader]`` here.
        method: which number becomes the largest integer: "minmax", the largest that was seen;
            "percentile", one below which so many percent are; "entropy", the one that changes the
            distribution least (the Kullback-Leibler divergence, as TensorRT's calibrator had it);
            "mse", the one with the least squared error.
        percentile: for the method of this name.
        progress: show a bar on stderr; None shows it only on a terminal.

    Returns:
        The scales, which can be saved (`Scales.to_json`), looked at and given to `convert`.

    Raises:
        ConversionError: there is no data, it does not fit the module, a value is NaN or infinite,
            or the module does not make the same calls for all inputs.
    """
    check_module(module)
    check_data(data)
    if method not in METHODS:
        raise ConversionError(f"method={method!r}: supported: {', '.join(METHODS)}")
    if not 50 < percentile <= 100:
        raise ConversionError(f"percentile={percentile}: it is above 50 and at most 100")
    observed: dict[str, list[_Histogram | None]] = {}
    ranks: dict[str, tuple[int, ...]] = {}
    samples, first = 0, list[str]()
    console = Console(stderr=True)
    shown = console.is_terminal if progress is None else progress
    total = len(data) if isinstance(data, Sized) else None
    with Progress(console=console, disable=not shown) as bars:
        task = bars.add_task("calibrating", total=total)
        for sample in data:
            keys: list[str] = []
            with preserved(module):
                _observe(module, sample, observed, ranks, keys)
            first = first or keys
            if keys != first:
                raise ConversionError(_differs(samples, keys, first))
            samples += 1
            bars.advance(task)
    if not samples:
        raise ConversionError("calibration: the data hold no input")
    if not observed:
        raise ConversionError("calibration: the module computes no product that can be quantized")
    ranges = {
        key: Range(
            tuple(None if h is None else h.largest(method, percentile) for h in histograms),
            ranks[key],
        )
        for key, histograms in observed.items()
    }
    return Scales(ranges, method, samples)


def check_data(data: Any) -> None:
    """Raise ConversionError unless this is an iterable of inputs."""
    if isinstance(data, torch.Tensor | Mapping | str) or not isinstance(data, Iterable):
        raise ConversionError(
            "calibration takes an iterable of inputs, each as the module is called with: "
            f"[x, y, ...], not a {type(data).__name__}"
        )


def _differs(sample: int, keys: Sequence[str], first: Sequence[str]) -> str:
    pairs = zip([*keys, "nothing"], [*first, "nothing"], strict=False)
    got, wanted = next(pair for pair in pairs if pair[0] != pair[1])
    return (
        f"calibration: input {sample} makes other calls than the first one ({got} where that had "
        f"{wanted}), so that the model decides by values; an engine cannot do that"
    )


def _observe(
    module: Callable[..., Any],
    sample: Any,
    observed: dict[str, list[_Histogram | None]],
    ranks: dict[str, tuple[int, ...]],
    keys: list[str],
) -> None:
    args, kwargs = arguments(sample)
    try:
        Parameters.check(module, args, kwargs)
    except ConversionError as error:
        hint = "of images and labels, calibrate on [(image,) for image, label in loader]"
        raise ConversionError(f"calibration: {error}; {hint}") from error
    device = _device(module)
    args, kwargs = map_tree(
        lambda x: x.detach().to(device or x.device) if isinstance(x, torch.Tensor) else x,
        (args, kwargs),
    )

    def look(key: str, operands: list[torch.Tensor]) -> list[torch.Tensor]:
        keys.append(key)
        if key not in observed:
            observed[key] = [
                None if isinstance(x, torch.nn.Parameter) else _Histogram(key) for x in operands
            ]
            ranks[key] = tuple(x.dim() for x in operands)
        for histogram, x in zip(observed[key], operands, strict=True):
            if histogram is not None and x.is_floating_point():
                histogram.add(x)
        return operands

    with torch.no_grad(), seen_products(module, look):
        module(*args, **kwargs)


def _device(module: Any) -> torch.device | None:
    parameters = module.parameters() if isinstance(module, torch.nn.Module) else iter(())
    first = next(parameters, None)
    return None if first is None else first.device


class _Histogram:
    """Counts of absolute values, in bins of equal width from 0 to a bound that grows."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts = torch.zeros(_BINS, dtype=torch.float64)
        self._bound = 0.0
        self._maximum = 0.0

    def add(self, x: torch.Tensor) -> None:
        """Count the elements of a tensor."""
        sizes = x.detach().float().abs().flatten()
        if not sizes.numel():
            return
        maximum = float(sizes.amax())
        if not math.isfinite(maximum):
            raise ConversionError(f"calibration: {self._name} reads NaN or infinity")
        self._maximum = max(self._maximum, maximum)
        if not self._bound:
            self._bound = maximum
        while self._bound < maximum:
            # Twice as wide bins are exactly pairs of the old ones.
            self._counts = torch.cat(
                [self._counts.view(-1, 2).sum(1), self._counts.new_zeros(_BINS // 2)]
            )
            self._bound *= 2
        if self._bound:
            counts = torch.histc(sizes, _BINS, 0.0, self._bound)
            # A new tensor: what a forward pass writes in place is put back after it.
            self._counts = self._counts + counts.double().cpu()

    def largest(self, method: str, percentile: float) -> float:
        """Return the number that becomes the largest integer; 0 where all numbers were 0."""
        if method == "minmax" or not self._maximum or not self._bound:
            return self._maximum
        find = {"percentile": self._percentile, "entropy": self._entropy, "mse": self._mse}[method]
        return min(find(percentile), self._maximum)

    def _percentile(self, percentile: float) -> float:
        reached = self._counts.cumsum(0) >= self._counts.sum() * (percentile / 100)
        return self._width * (int(reached.long().argmax()) + 1)

    @property
    def _width(self) -> float:
        return self._bound / _BINS

    def _entropy(self, percentile: float) -> float:
        """Return the bound of least divergence between the clipped distribution and its steps.

        S. Migacz, "8-bit inference with TensorRT" (GTC 2017). Zeros are left out, as every bound
        keeps them.
        """
        del percentile
        counts = self._counts.clone()
        counts[0] = 0
        best, chosen = math.inf, _BINS
        for bins in range(_STEPS, _BINS + 1, 4):
            kept = counts[:bins]
            reference = kept.clone()
            reference[-1] += counts[bins:].sum()
            edges = torch.arange(bins) * _STEPS // bins
            filled = (kept > 0).double()
            sums = torch.zeros(_STEPS, dtype=torch.float64).index_add(0, edges, kept)
            numbers = torch.zeros(_STEPS, dtype=torch.float64).index_add(0, edges, filled)
            candidate = (sums / numbers.clamp_min(1))[edges] * filled
            if not float(candidate.sum()):
                continue
            p, q = reference / reference.sum(), candidate / candidate.sum()
            shown = p > 0
            divergence = float((p[shown] * (p[shown] / q[shown].clamp_min(1e-12)).log()).sum())
            if divergence < best:
                best, chosen = divergence, bins
        return chosen * self._width

    def _mse(self, percentile: float) -> float:
        """Return the bound of least squared error, among hundredths of the largest value."""
        del percentile
        middles = (torch.arange(_BINS, dtype=torch.float64) + 0.5) * self._width
        bounds = torch.arange(1, 101, dtype=torch.float64)[:, None] / 100 * self._maximum
        scales = bounds / (_STEPS - 1)
        rounded = (middles / scales).round().clamp_max(_STEPS - 1) * scales
        errors = ((rounded - middles).square() * self._counts).sum(1)
        return float(bounds[int(errors.argmin())])
