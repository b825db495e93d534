"""Ranges of activations, from real forward passes."""

from __future__ import annotations

import functools
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
from t2t.torch_internals import writes_counted

__all__ = ["METHODS", "calibrate", "check_data"]

METHODS = ("minmax", "percentile", "entropy", "mse")

_BINS = 2048
_STEPS = 128
"""How many numbers int8 has on one side of zero."""
_BOUNDS = 48
"""So many bounds for channels are tried, four in an octave."""
_WORTH = 0.5
"""Channels are divided where that leaves no more than this part of the squared error."""


def calibrate(
    module: Callable[..., Any],
    data: Iterable[Any],
    *,
    method: str = "mse",
    percentile: float = 99.99,
    smooth: bool = True,
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
        smooth: where few input channels of a layer are far larger than the others, let int8 divide
            them by powers of two, and multiply the weights that they meet: exact in float, and the
            scale then fits all channels (Xiao et al., "SmoothQuant", ICML 2023).
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
    observed: dict[str, _Observed] = {}
    samples, first = 0, list[str]()
    console = Console(stderr=True)
    shown = console.is_terminal if progress is None else progress
    total = len(data) if isinstance(data, Sized) else None
    with Progress(console=console, disable=not shown) as bars:
        task = bars.add_task("calibrating", total=total)
        for sample in data:
            keys: list[str] = []
            with preserved(module):
                _observe(module, sample, observed, keys)
            first = first or keys
            if keys != first:
                raise ConversionError(_differs(samples, keys, first))
            samples += 1
            bars.advance(task)
    if not samples:
        raise ConversionError("calibration: the data hold no input")
    if not observed:
        raise ConversionError("calibration: the module computes no product that can be quantized")
    ranges = {key: found.range(method, percentile, smooth) for key, found in observed.items()}
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
    observed: dict[str, _Observed],
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

    last: _Observed | None = None

    def look(key: str, operands: list[torch.Tensor], summed: int | None) -> list[torch.Tensor]:
        nonlocal last
        keys.append(key)
        if key not in observed:
            observed[key] = _Observed(key, operands, summed)
        before, last = last, observed[key]
        last.add(operands, before)
        return operands

    with torch.no_grad(), seen_products(module, look):
        module(*args, **kwargs)
    if last is not None:
        last.read = None


def _device(module: Any) -> torch.device | None:
    parameters = module.parameters() if isinstance(module, torch.nn.Module) else iter(())
    first = next(parameters, None)
    return None if first is None else first.device


class _Observed:
    """What one product or addition has read so far.

    Attributes:
        read: its first operand in the pass that goes on, and how often that was written to, for the
            next call to compare with.
    """

    def __init__(self, key: str, operands: Sequence[torch.Tensor], summed: int | None) -> None:
        first, second = operands
        parameters = [isinstance(x, torch.nn.Parameter) for x in operands]
        self._histograms = [None if known else _Histogram(key) for known in parameters]
        self._ranks = (first.dim(), second.dim())
        self._channels: _Channels | None = None
        self.read: tuple[torch.Tensor, int] | None = None
        if parameters == [False, True] and summed is not None:
            if summed < 0 and second.dim() == 2 and first.dim() > 1:
                self._channels = _Channels(first.dim() - 1)
            elif summed >= 0 and second.dim() > 2:
                # A kernel has a dimension more than an input without a batch.
                self._channels = _Channels(first.dim() + 1 - second.dim())
        if self._channels is not None and summed is not None:
            self._channels.weights.append((second.detach(), summed))

    def add(self, operands: Sequence[torch.Tensor], before: _Observed | None) -> None:
        """Look at the operands, which may begin with what the call before has read."""
        x, y = operands
        known = None if before is None else before.read
        if before is not None:
            before.read = None
        self.read = x, writes_counted(x)
        seen = known is not None and known[0] is x and known[1] == self.read[1]
        same = seen and not x.is_inference()  # its writes are not counted
        if x.is_floating_point() and not (before is not None and same and self._joined(before)):
            if self._histograms[0] is not None:
                self._histograms[0].add(x)
            if self._channels is not None:
                self._channels.add(x)
        if y.is_floating_point() and self._histograms[1] is not None:
            self._histograms[1].add(y)

    def _joined(self, before: _Observed) -> bool:
        """Let calls that read one tensor, as those of query, key and value, look at it together."""
        mine, other = self._channels, before._channels
        if mine is None or other is None or mine.axis != other.axis:
            return False
        if mine is not other:
            other.weights += mine.weights
            self._channels, self._histograms[0] = other, before._histograms[0]
        return True

    def range(self, method: str, percentile: float, smooth: bool) -> Range:
        """Return what `convert` needs to know of it."""
        largest = tuple(
            None if histogram is None else histogram.largest(method, percentile)
            for histogram in self._histograms
        )
        shifts, smoothed = self._channels.smoothed if smooth and self._channels else ((), 0.0)
        return Range(largest, self._ranks, shifts, smoothed)


class _Channels:
    """How large the input channels of constant weights are.

    Attributes:
        axis: the dimension of the channels.
        weights: what they are multiplied by, with the dimension that is summed over.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.weights: list[tuple[torch.Tensor, int]] = []
        self._largest = self._squares = torch.zeros((), dtype=torch.float64)
        self._count = 0

    def add(self, x: torch.Tensor) -> None:
        """Look at what the weights are multiplied by."""
        others = [dim for dim in range(x.dim()) if dim != self.axis]
        if not x.numel():
            return
        norm = torch.linalg.vector_norm
        x = x.detach().float()
        self._largest = self._largest.maximum(norm(x, math.inf, others).double().cpu())
        self._squares = self._squares + norm(x, 2, others).double().cpu().square()
        self._count += x.numel() // x.shape[self.axis]

    @functools.cached_property
    def smoothed(self) -> tuple[tuple[int, ...], float]:
        """Return the powers of two by which to divide the channels, and what is then the largest.

        All channels above a bound are brought down to it. The bound is taken for which the rounding
        errors of activations and weights, uniform and independent as good as, make the least error
        in the results. () stands for none, where the best one does not halve the squared error.
        """
        squares = self._squares / max(1, self._count)
        weights = [_Weight(weight, summed, squares.numel()) for weight, summed in self.weights]
        chosen, least, best = torch.zeros_like(squares), math.inf, 0
        for step in range(_BOUNDS):
            bound = self._largest.amax() * 0.5 ** (step / 4)
            shifts = (self._largest / bound).log2().round().clamp_min(0)
            factors = 2.0**shifts
            largest = float((self._largest / factors).amax())
            error = sum(weight.error(factors, largest, squares) for weight in weights)
            if not step:
                least = error * _WORTH
            elif error < least:
                chosen, least, best = shifts, error, step
            elif step == best + 8:
                break
        if not bool(chosen.any()):
            return (), 0.0
        return tuple(map(int, chosen.tolist())), float((self._largest / 2.0**chosen).amax())


class _Weight:
    """A constant weight whose input channels are to be multiplied."""

    def __init__(self, weight: torch.Tensor, summed: int, channels: int) -> None:
        sizes = weight.float().abs().cpu()
        sizes = sizes.transpose(0, 1) if summed in (0, -2) else sizes
        sizes = sizes.flatten(2) if sizes.dim() > 2 else sizes.unsqueeze(2)
        outputs, inputs, self._kernel = sizes.shape
        # By the group of a convolution, output and input channel.
        groups = channels // inputs
        self._largest = sizes.amax(2).view(groups, outputs // groups, inputs)
        self._energy = sizes.double().square().sum(2).view(self._largest.shape).sum(1)

    def error(self, factors: torch.Tensor, largest: float, squares: torch.Tensor) -> float:
        """Return the squared error of the results, in units of a twelfth of a squared step of 1.

        Args:
            factors: of each input channel.
            largest: the largest activation, divided by them.
            squares: mean squares of the activations.
        """
        factors = factors.view(self._energy.shape)
        squares = squares.view(self._energy.shape) / factors.square()
        activations = largest**2 * float((self._energy * factors.square()).sum())
        steps = (self._largest * factors.float().unsqueeze(1)).amax(2).double().square().sum(1)
        return activations + self._kernel * float((steps * squares.sum(1)).sum())


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
