"""Ranges of activations, from real forward passes."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from t2t.errors import ConversionError
from t2t.io import Parameters, arguments, map_tree
from t2t.isolation import preserved, without_modes
from t2t.options import check_module
from t2t.quantization.forward import seen_products
from t2t.quantization.scales import Range, Scales
from t2t.torch_internals import writes_counted

METHODS = ("minmax", "percentile", "entropy", "mse")

_BINS = 2048
_COUNTED, _STRIDE, _RUN = 2**16, 16, 256
"""So many elements of a tensor are counted, or a sixteenth, in runs that lie side by side."""
_IMAGES = 4
"""Mean squares are those of every fourth index of the first dimension."""
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
                _observe(module, sample, observed, keys, smooth)
            first = first or keys
            if keys != first:
                raise ConversionError(_differs(samples, keys, first))
            samples += 1
            bars.advance(task)
    if not samples:
        raise ConversionError("calibration: the data hold no input")
    if not observed:
        raise ConversionError("calibration: the module computes no product that can be quantized")
    ranges = {key: found.range(method, percentile) for key, found in observed.items()}
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
    smooth: bool,
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

    seen: dict[int, _Seen] = {}

    def look(key: str, operands: list[torch.Tensor], summed: int | None) -> list[torch.Tensor]:
        keys.append(key)
        if key not in observed:
            observed[key] = _Observed(key, operands, summed if smooth else None)
        plain = all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in operands)
        # The modes that are active have nothing to see here, and take their time.
        with without_modes() if plain else nullcontext():
            observed[key].add(operands, seen)
        return operands

    with torch.no_grad(), seen_products(module, look):
        module(*args, **kwargs)


def _device(module: Any) -> torch.device | None:
    parameters = module.parameters() if isinstance(module, torch.nn.Module) else iter(())
    first = next(parameters, None)
    return None if first is None else first.device


@dataclass
class _Seen:
    """A tensor that was read in the pass that goes on, and what has looked at it.

    Attributes:
        tensor: it, which the pass may free.
        writes: how often it had been written to.
        histogram: of its elements.
        channels: by the dimension.
    """

    tensor: weakref.ref[torch.Tensor]
    writes: int
    histogram: _Histogram | None = None
    channels: dict[int, _Channels] = field(default_factory=dict)

    @classmethod
    def of(cls, x: torch.Tensor, seen: dict[int, _Seen]) -> _Seen:
        """Return what is known of a tensor, by its `id`; it is new where it was written to."""
        known, writes = seen.get(id(x)), writes_counted(x)
        same = known is not None and known.tensor() is x and known.writes == writes
        if known is None or not same or x.is_inference():  # whose writes are not counted
            known = seen[id(x)] = cls(weakref.ref(x), writes)
        return known


class _Observed:
    """What one product or addition has read so far.

    Calls that read one tensor, as those of query, key and value, or the convolution and the
    addition of a residual block, look at it together, once.

    Args:
        key: the name of the call.
        operands: those of its first pass.
        summed: the dimension of the second one that is summed over; None where channels are none of
            interest.
    """

    def __init__(self, key: str, operands: Sequence[torch.Tensor], summed: int | None) -> None:
        first, second = operands
        parameters = [isinstance(x, torch.nn.Parameter) for x in operands]
        self._histograms = [None if known else _Histogram(key) for known in parameters]
        self._ranks = (first.dim(), second.dim())
        self._channels: _Channels | None = None
        if parameters == [False, True] and summed is not None:
            if summed < 0 and second.dim() == 2 and first.dim() > 1:
                self._channels = _Channels(first.dim() - 1)
            elif summed >= 0 and second.dim() > 2:
                # A kernel has a dimension more than an input without a batch.
                self._channels = _Channels(first.dim() + 1 - second.dim())
        if self._channels is not None and summed is not None:
            self._channels.weights.append((second.detach(), summed))

    def add(self, operands: Sequence[torch.Tensor], seen: dict[int, _Seen]) -> None:
        """Look at the operands, of which this pass may have seen some."""
        for place, x in enumerate(operands):
            mine = self._histograms[place]
            if mine is None or not x.is_floating_point() or not x.numel():
                continue
            known = _Seen.of(x, seen)
            largest = None if place else self._add_channels(x, known)
            if known.histogram is None:
                known.histogram = mine
                mine.add(x, largest)
            elif not mine.maximum:
                self._histograms[place] = known.histogram
            elif mine is not known.histogram:
                mine.add(x)

    def _add_channels(self, x: torch.Tensor, known: _Seen) -> float | None:
        """Look at the channels and return the largest absolute value, where that was not done."""
        mine = self._channels
        if mine is None:
            return None
        other = known.channels.get(mine.axis)
        if other is mine:
            return None
        if other is not None and not mine.count:
            other.weights += mine.weights
            self._channels = other
            return None
        known.channels.setdefault(mine.axis, mine)
        return mine.add(x)

    def range(self, method: str, percentile: float) -> Range:
        """Return what `convert` needs to know of it."""
        largest = tuple(
            None if histogram is None else histogram.largest(method, percentile)
            for histogram in self._histograms
        )
        shifts, smoothed = self._channels.smoothed if self._channels else ((), 0.0)
        return Range(largest, self._ranks, shifts, smoothed)


class _Channels:
    """How large the input channels of constant weights are.

    Attributes:
        axis: the dimension of the channels.
        weights: what they are multiplied by, with the dimension that is summed over.
        count: of how many elements of each channel the squares are.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.weights: list[tuple[torch.Tensor, int]] = []
        self._largest = self._squares = torch.zeros((), dtype=torch.float64)
        self.count = 0

    def add(self, x: torch.Tensor) -> float:
        """Look at what the weights are multiplied by; return the largest absolute value."""
        x = x.detach().float()
        others = [dim for dim in range(x.dim()) if dim != self.axis]
        largest = torch.maximum(x.amax(others), -x.amin(others)).double().cpu()
        self._largest = self._largest.maximum(largest)
        some = x[::_IMAGES] if self.axis else x
        self._squares = self._squares + some.square().sum(others).double().cpu()
        self.count += some.numel() // x.shape[self.axis]
        return float(largest.amax())

    @functools.cached_property
    def smoothed(self) -> tuple[tuple[int, ...], float]:
        """Return the powers of two by which to divide the channels, and what is then the largest.

        All channels above a bound are brought down to it. The bound is taken for which the rounding
        errors of activations and weights, uniform and independent as good as, make the least error
        in the results. () stands for none, where the best one does not halve the squared error.
        """
        squares = self._squares / max(1, self.count)
        weights = [_Weight(weight, summed, squares.numel()) for weight, summed in self.weights]
        chosen, least, best = torch.zeros_like(squares), math.inf, 0
        for step in range(_BOUNDS):
            bound = self._largest.amax() * 0.5 ** (step / 4)
            shifts = (self._largest / bound).log2().round().clamp_min(0)
            factors = 2.0**shifts
            largest = float((self._largest / factors).amax())
            error = sum(weight.least_error(factors, largest, squares) for weight in weights)
            if not step or error < least:
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
        groups = channels // inputs
        sizes = sizes.view(groups, outputs // groups, inputs, self._kernel)
        # By the group of a convolution, output and input channel.
        self._largest = sizes.amax(3) if self._kernel > 1 else sizes.squeeze(3)
        self._steps = self._largest.amax(2)
        self._energy = sizes.square().sum((1, 3)).double()

    def error(self, factors: torch.Tensor, largest: float, squares: torch.Tensor) -> float:
        """Return the squared error of the results, in units of a twelfth of a squared step of 1.

        Args:
            factors: of each input channel.
            largest: the largest activation, divided by them.
            squares: mean squares of the activations.
        """
        steps = self._largest * factors.float().view(self._energy.shape).unsqueeze(1)
        return self._error(steps.amax(2), factors, largest, squares)

    def least_error(self, factors: torch.Tensor, largest: float, squares: torch.Tensor) -> float:
        """Return what the error is at least, in less time: no step of the weights gets smaller."""
        return self._error(self._steps, factors, largest, squares)

    def _error(
        self, steps: torch.Tensor, factors: torch.Tensor, largest: float, squares: torch.Tensor
    ) -> float:
        factors = factors.view(self._energy.shape)
        squares = (squares.view(self._energy.shape) / factors.square()).sum(1)
        activations = largest**2 * float((self._energy * factors.square()).sum())
        return activations + self._kernel * float((steps.double().square().sum(1) * squares).sum())


class _Histogram:
    """Counts of absolute values, in bins of equal width from 0 to a bound that grows.

    Attributes:
        maximum: the largest of all values, also of those that are not counted.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts = torch.zeros(_BINS, dtype=torch.float64)
        self._bound = 0.0
        self.maximum = 0.0

    def add(self, x: torch.Tensor, largest: float | None = None) -> None:
        """Count elements of a tensor, which is not empty, and whose largest value may be known."""
        x = x.detach().float()
        if largest is None:
            largest = float(torch.stack(x.aminmax()).abs().amax())
        if not math.isfinite(largest):
            raise ConversionError(f"calibration: {self._name} reads NaN or infinity")
        self.maximum = max(self.maximum, largest)
        if not self._bound:
            self._bound = largest
        while self._bound < largest:
            # Twice as wide bins are exactly pairs of the old ones.
            self._counts = torch.cat(
                [self._counts.view(-1, 2).sum(1), self._counts.new_zeros(_BINS // 2)]
            )
            self._bound *= 2
        if self._bound:
            # Divided first: the reciprocal of the least bounds is infinite.
            bins = _sample(x).abs().div_(self._bound).mul_(_BINS).clamp_max_(_BINS - 1)
            counts = torch.bincount(bins.to(torch.int16), minlength=_BINS)
            # A new tensor: what a forward pass writes in place is put back after it.
            self._counts = self._counts + counts.double().cpu()

    def largest(self, method: str, percentile: float) -> float:
        """Return the number that becomes the largest integer; 0 where all numbers were 0."""
        if method == "minmax" or not self.maximum or not self._bound:
            return self.maximum
        find = {"percentile": self._percentile, "entropy": self._entropy, "mse": self._mse}[method]
        return min(find(percentile), self.maximum)

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
        bounds = torch.arange(1, 101, dtype=torch.float64)[:, None] / 100 * self.maximum
        scales = bounds / (_STEPS - 1)
        rounded = (middles / scales).round_().clamp_max_(_STEPS - 1).mul_(scales)
        errors = rounded.sub_(middles).square_() @ self._counts
        return float(bounds[int(errors.argmin())])


def _sample(x: torch.Tensor) -> torch.Tensor:
    """Return as many elements of a tensor as are enough for a histogram, from all over it."""
    runs = x.flatten()
    if x.numel() < 2 * _COUNTED:
        return runs
    runs = runs[: x.numel() // _RUN * _RUN].view(-1, _RUN)
    stride = min(x.numel() // _COUNTED, _STRIDE)
    # A stride that shares no factor with the sizes meets all indices of each dimension alike.
    while math.gcd(stride, len(runs)) > 1:
        stride += 1
    return runs[::stride].flatten()
