"""Each module's share of the error that low precision makes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from t2t.errors import OptionError
from t2t.io import arguments
from t2t.lowering import trace_module, without_dropout
from t2t.precision import Policy, operator_name
from t2t.quantization.calibration import calibrate
from t2t.quantization.plan import Wanted
from t2t.quantization.scales import Scales
from t2t.reference import Layer
from t2t.tuning.trials import Trials
from t2t.tuning.units import Unit, root
from t2t.verification.tables import html_table, text_table

_HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
_BAR = 20
"""Characters of the longest bar."""


@dataclass(frozen=True)
class Share:
    """What one module in low precision does to the model's outputs.

    Attributes:
        name: path of the module; of what the whole model computes outside of its submodules, the
            operator; "layer1.0 (its own calls)" for what a module computes beside its submodules.
        error: relative error of the worst output with only this in low precision; or with only
            this in float32, as `sensitivity` was asked. Infinite where NaN or infinity appears.
        share: of the whole error: errors are independent of each other as good as, so that their
            squares add up. Where only this is in float32, the part of the squared error that goes
            away by that, which is negative where errors cancel.
        rounding: relative error of what the module gives, with only this in low precision: what its
            own arithmetic loses. None where no layer of the float32 network corresponds.
        accumulated: the same with everything in low precision: with what it inherits.
        overflow: how many numbers become NaN or infinite in the first layer in which any does.
        layer: the name of that layer, or "".
    """

    name: str
    error: float
    share: float
    rounding: float | None
    accumulated: float | None
    overflow: int
    layer: str

    @property
    def cause(self) -> str:
        """Return "overflow" where numbers leave the range of the type, else "rounding"."""
        return "overflow" if self.overflow else "rounding"


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """What `sensitivity` found; prints as a table with a bar for each share.

    Attributes:
        rows: a row for each module, in program order.
        precision: the low precision: "fp16", "bf16", "int8" or "fp8".
        error: relative error of the worst output with everything in low precision.
        left_in_float32: whether each module was left out of low precision, instead of being alone
            in it.
    """

    rows: tuple[Share, ...]
    precision: str
    error: float
    left_in_float32: bool

    def worst(self, count: int = 10) -> tuple[Share, ...]:
        """Return the rows of the largest shares, the worst first."""
        return tuple(sorted(self.rows, key=lambda row: -row.share)[:count])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what is infinite is None."""
        rows = [{**asdict(row), "cause": row.cause} for row in self.rows]
        return {
            "precision": self.precision,
            "error": _finite(self.error),
            "left_in_float32": self.left_in_float32,
            "rows": [{name: _finite(x) for name, x in row.items()} for row in rows],
        }

    def to_json(self) -> str:
        """Return the table as JSON."""
        return json.dumps(self.to_dict())

    def plot(self, axes: Any, count: int = 20) -> None:
        """Draw the largest shares as bars, those of modules that overflow in red.

        Args:
            axes: matplotlib's Axes to draw into: ``pyplot.gca()``.
            count: how many rows are drawn.
        """
        rows = self.worst(count)[::-1]
        colors = ["tab:red" if row.overflow else "tab:blue" for row in rows]
        axes.barh([row.name for row in rows], [100 * row.share for row in rows], color=colors)
        axes.set_xlabel(f"share of the squared error of {self.precision}, %")

    def _head(self) -> str:
        how = "only the module in float32" if self.left_in_float32 else "only the module in it"
        return f"{self.precision}: relative error {self.error:.2e}; error with {how}:"

    def _table(self, count: int) -> list[tuple[str, ...]]:
        largest = max((row.share for row in self.rows), default=0.0)
        rows: list[tuple[str, ...]] = [
            ("module", "error", "share", "", "rounding", "accumulated", "cause")
        ]
        for row in self.worst(count):
            bar = "█" * round(_BAR * max(row.share, 0) / largest) if largest > 0 else ""
            at = f"overflow: {row.overflow} in {row.layer}" if row.overflow else "rounding"
            numbers = [_number(x) for x in (row.rounding, row.accumulated)]
            rows.append((row.name, f"{row.error:.1e}", f"{row.share:.1%}", bar, *numbers, at))
        return rows

    def __str__(self) -> str:
        """The twenty modules of the largest shares."""
        return "\n".join([self._head(), *text_table(self._table(20))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        marked = [place for place, row in enumerate(self.worst(20), 1) if row.overflow]
        return html_table([self._head()], self._table(20), marked)


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.1e}"


def _finite(x: Any) -> Any:
    return None if isinstance(x, float) and not math.isfinite(x) else x


def sensitivity(
    module: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    precision: Literal["fp16", "bf16", "int8", "fp8"] = "fp16",
    calibration: Iterable[Any] | Scales | None = None,
    calibration_method: str = "mse",
    left_in_float32: bool = False,
    depth: int | None = None,
    ignore_dropout: bool = False,
) -> Sensitivity:
    """Measure what each module in low precision does to the outputs, without a GPU.

    The module is traced once; a network for each of its submodules is made of that and run in the
    reference executor, on these inputs. No engine is built.

        print(t2t.sensitivity(model, [x], precision="int8", calibration=images))

    Args:
        module: a module in eval mode (or a function of tensors).
        inputs: example inputs, as `convert` takes them; real ones, since errors depend on them.
        kwargs: more keyword arguments.
        precision: the low precision; the rest is in float32.
        calibration: for int8 and fp8, as `convert` takes it.
        calibration_method: as `convert` takes it.
        left_in_float32: measure the model in low precision with only the module left in float32,
            instead of the model in float32 with only the module in low precision.
        depth: how many levels of submodules are told apart; None tells all apart.
        ignore_dropout: as `convert` takes it.

    Raises:
        OptionError: the precision is unknown, or calibration is missing.
        ConversionError: the module does not convert.
    """
    if precision not in (*_HALF, "int8", "fp8"):
        raise OptionError(f"precision={precision!r}: it takes fp16, bf16, int8 or fp8")
    args, keywords = arguments(inputs, kwargs)
    wanted = None
    if precision in ("int8", "fp8"):
        with without_dropout(module, ignore_dropout):
            scales = _scales(module, precision, calibration, calibration_method)
        wanted = Wanted(precision, scales)
    elif calibration is not None:
        raise OptionError('calibration is for precision="int8" and "fp8"')
    policy = Policy(_HALF.get(precision))
    traced = trace_module(module, args, keywords, ignore_dropout=ignore_dropout)
    with without_dropout(module, ignore_dropout):
        trials = Trials(traced, module, [(args, keywords)], wanted)
    return _measured(trials, policy, precision, left_in_float32, depth)


def _scales(
    module: Callable[..., Any],
    precision: str,
    calibration: Iterable[Any] | Scales | None,
    method: str,
) -> Scales:
    if calibration is None:
        raise OptionError(
            f'precision="{precision}" needs the ranges of activations: calibration=<an iterable of '
            "inputs such as the module will see, or the scales of t2t.calibrate>"
        )
    if isinstance(calibration, Scales):
        return calibration
    return calibrate(module, calibration, method=method)


def _measured(
    trials: Trials, policy: Policy, precision: str, left: bool, depth: int | None
) -> Sensitivity:
    units = root(trials.calls(policy)).leaves(depth)
    plain = _Run(trials, replace(policy, only=frozenset()))
    ends = {unit: plain.end_of(unit) for unit in units}
    wanted = set(ends.values())
    plain.watch(wanted)
    low = _Run(trials, policy)
    low.watch(wanted)
    every = frozenset(pair for unit in units for pair in unit.pairs)
    rows = []
    for unit in units:
        alone = _Run(trials, unit.alone(policy))
        alone.watch({ends[unit]})
        error = alone.error
        if left:
            error = trials.error(replace(policy, only=every - unit.pairs))
        overflow, layer = alone.overflow(plain)
        own, all_of_it = (run.error_at(ends[unit], plain) for run in (alone, low))
        rows.append(Share(str(unit), error, 0.0, own, all_of_it, overflow, layer))
    shares = _shares(rows, low.error, left)
    shared = (replace(row, share=share) for row, share in zip(rows, shares, strict=True))
    return Sensitivity(tuple(shared), precision, low.error, left)


def _shares(rows: Sequence[Share], error: float, left: bool) -> list[float]:
    if left and math.isfinite(error):
        return [1 - (row.error / error) ** 2 if error else 0.0 for row in rows]
    if left:
        # Of infinite errors, those modules have a share without which it is finite.
        squares = [float(math.isfinite(row.error)) for row in rows]
    elif any(not math.isfinite(row.error) for row in rows):
        squares = [float(not math.isfinite(row.error)) for row in rows]
    else:
        squares = [row.error**2 for row in rows]
    return [square / (sum(squares) or 1.0) for square in squares]


class _Run:
    """One network on the inputs: what its layers gave, as far as it is needed."""

    def __init__(self, trials: Trials, policy: Policy) -> None:
        self._trials = trials
        self._program, self._signature = trials.network(policy)
        self._kept: dict[str, Tensor] = {}
        self._infinite: dict[str, int] = {}
        self.error = math.nan

    def end_of(self, unit: Unit) -> str:
        """Return the name of the last layer of a unit, or ""."""
        names = [layer.name for layer in self._program.layers if layer.kind not in _ASIDE]
        return next((name for name in reversed(names) if _is_of(name, unit)), "")

    def watch(self, wanted: set[str]) -> None:
        """Run the network; keep what the wanted layers give, and count what is infinite."""
        self._kept, self._infinite = {}, {}

        def look(layer: Layer, made: tuple[Tensor, ...]) -> None:
            x = made[0] if made else None
            if x is None or not x.is_floating_point():
                return
            if layer.name in wanted:
                self._kept[layer.name] = x.clone()
            # PyTorch does not ask 8-bit floats for it.
            given = x if x.dtype.itemsize > 1 else x.float()
            self._infinite[layer.name] = int((~given.isfinite()).sum())

        [inputs] = self._trials.bound(self._signature)
        results = self._program.run(inputs, watch=look)
        self.error = self._trials.apart(self._signature, [results])

    def overflow(self, plain: _Run) -> tuple[int, str]:
        """Return how many numbers became infinite in the first layer with any, and its name."""
        for name, count in self._infinite.items():
            # A cast to half, which float32 does not have, comes behind what was finite there.
            before = plain._infinite.get(name, plain._infinite.get(name.rpartition("/")[0], 0))
            if count > before:
                return count - before, name
        return 0, ""

    def error_at(self, layer: str, plain: _Run) -> float | None:
        """Return the relative error of what a layer gives; None where it cannot be compared."""
        mine, other = self._kept.get(layer), plain._kept.get(layer)
        if mine is None or other is None or mine.shape != other.shape:
            return None
        difference, norm = (mine.double() - other.double()).norm(), other.double().norm()
        error = float(difference / norm) if norm else float(difference)
        return error if math.isfinite(error) else math.inf


_ASIDE = ("CONSTANT", "CAST", "QUANTIZE", "DEQUANTIZE")


def _is_of(layer: str, unit: Unit) -> bool:
    if unit.what == "operator":
        # The model's own layers have no module's path before them, but perhaps a number behind.
        plain = re.sub(r"_\d+$", "", layer)
        return "/" not in layer and operator_name(plain) == operator_name(unit.name)
    scope = layer.partition("/")[0] if "/" in layer else ""
    return scope == unit.name or (unit.what == "module" and scope.startswith(f"{unit.name}."))
