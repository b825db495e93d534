"""Which layer loses accuracy: two networks, or a network and its module, layer by layer."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from t2t.errors import VerificationError
from t2t.float32 import float32_precision
from t2t.io import arguments, map_tree
from t2t.isolation import preserved
from t2t.module import RanOn, TRTModule
from t2t.reference import Layer, Program
from t2t.reference.text import short_line
from t2t.verification.tables import html_table, text_table
from t2t.verification.trials import at_edges

# The largest relative error that is the type's own rounding, about three times what image models
# of 20 to 150 layers show. A layer inherits the errors of those before it.
_TOLERANCES = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 4e-2, "8 bits or less": 2e-1}
_NARROW = {"HALF": "fp16", "BF16": "bf16"}
_NARROWEST = ("INT8", "FP8", "INT4", "FP4")
_ORDER = list(_TOLERANCES)

_UNMATCHED = (
    "{count} of {all} layers were not compared: the reference has no tensor that corresponds to "
    "theirs\n(constants, parts of one operator of the model, layers that only this network has)"
)


@dataclass(frozen=True)
class LayerError:
    """How far one layer's output is from the reference's.

    Attributes:
        name: the layer's name, "layer1.0.conv1/conv2d"; before the slash the module's path.
        kind: the name in TensorRT's LayerType.
        max_abs_error: the largest difference.
        max_rel_error: norm of the difference over norm of the reference.
        shape: the output's shape.
        line: where the user's code made it, as far as the network says.
        precision: the lowest type that it or a layer before it computes in: "fp16".
        allowed: the largest relative error that is taken as equal.
    """

    name: str
    kind: str
    max_abs_error: float
    max_rel_error: float
    shape: tuple[int, ...]
    line: str
    precision: str
    allowed: float

    @property
    def ok(self) -> bool:
        """Return whether the error is allowed."""
        return self.max_rel_error <= self.allowed

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio in dB: 20 log10 of the reference's norm over the difference's."""
        error = self.max_rel_error
        return -20 * math.log10(error) if error else math.inf


@dataclass(frozen=True, repr=False)
class LayerReport:
    """The errors of all layers that could be compared, in the order in which they ran.

    Attributes:
        layers: one entry for each layer.
        unmatched: number of layers that the reference has no counterpart of.
        ran_on: where the network was run, which is never its engine.
    """

    layers: tuple[LayerError, ...]
    unmatched: int
    ran_on: RanOn

    @property
    def ok(self) -> bool:
        """Return whether every layer is within its tolerance."""
        return self.first is None

    @property
    def first(self) -> LayerError | None:
        """The first layer that leaves its tolerance; the cause is here or just before."""
        return next((entry for entry in self.layers if not entry.ok), None)

    def worst(self, count: int = 10) -> tuple[LayerError, ...]:
        """Return the layers of largest relative error for their type, the worst first."""
        ordered = sorted(self.layers, key=lambda e: -_rank(e.max_rel_error / e.allowed))
        return tuple(ordered[:count])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "ok": self.ok,
            "ran_on": self.ran_on.to_dict(),
            "layers": [
                {
                    **asdict(entry),
                    "ok": entry.ok,
                    # JSON has no infinity; there is no noise then.
                    "snr": entry.snr if math.isfinite(entry.snr) else None,
                }
                for entry in self.layers
            ],
            "unmatched": self.unmatched,
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict())

    def _head(self) -> list[str]:
        first = self.first
        allowed = {entry.precision: entry.allowed for entry in self.layers}
        limits = ", ".join(f"{name} {limit:g}" for name, limit in sorted(allowed.items()))
        said = (
            f"all {len(self.layers)} layers are within the allowed relative error ({limits})"
            if first is None
            else f"first out of tolerance: {first.name} ({first.kind}), rel "
            f"{first.max_rel_error:.2e}, allowed for {first.precision} {first.allowed:g}"
        )
        where = [] if first is None or not first.line else [f"made at {_place(first.line)}"]
        return [said, *where, f"run by the {self.ran_on.place}"]

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            ("layer", "kind", "max abs", "rel", "dB", "allowed", "shape", "line")
        ]
        return rows + [
            (
                entry.name,
                entry.kind,
                f"{entry.max_abs_error:.1e}",
                f"{entry.max_rel_error:.1e}",
                f"{entry.snr:.0f}",
                f"{entry.allowed:g}",
                "x".join(map(str, entry.shape)),
                _place(entry.line),
            )
            for entry in self.worst()
        ]

    def _unmatched_text(self) -> list[str]:
        if not self.unmatched:
            return []
        everything = len(self.layers) + self.unmatched
        return _UNMATCHED.format(count=self.unmatched, all=everything).split("\n")

    def __str__(self) -> str:
        """The first layer out of tolerance, and the ten worst as a table."""
        return "\n".join([*self._head(), *text_table(self._rows()), *self._unmatched_text()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        marked = [place for place, entry in enumerate(self.worst(), 1) if not entry.ok]
        return html_table([*self._head(), *self._unmatched_text()], self._rows(), marked)


def _place(line: str) -> str:
    """Return the file and line of "path:line in function", short enough for a table."""
    return short_line(line).partition(" in ")[0]


def compare_layers(
    module_trt: TRTModule | Program,
    reference: TRTModule | Program | nn.Module,
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tolerance: float | None = None,
) -> LayerReport:
    """Run both and compare the output of every layer that both have.

    The network runs in the reference executor, which sees every layer; an engine has fused them.

    Args:
        module_trt: the converted module under test, such as an fp16 conversion, or its program.
        reference: what is taken as right: another conversion whose layers have the same names (the
            fp32 one), or the original module, matched by module path.
        inputs: as for the module: positional arguments in a list or tuple, keyword arguments in a
            mapping, or one tensor. A program takes its tensors in order or by name.
        kwargs: more keyword arguments.
        tolerance: the largest relative error that is taken as equal; None takes 1e-4 for fp32,
            5e-3 for fp16 and 4e-2 for bf16, by the lowest type that the layer or one before it
            computes in.

    Raises:
        VerificationError: the two have no layer in common, or a module has no program.
    """
    args, keywords = arguments(inputs, kwargs)
    program, named = _program(module_trt), _named(module_trt, args, keywords)
    if isinstance(reference, TRTModule | Program):
        expected = _recorded(_program(reference), _named(reference, args, keywords))
    else:
        expected = _of_module(reference, program, args, keywords)
    precisions = _precisions(program)
    found: list[LayerError] = []
    unmatched = 0
    seen: Counter[str] = Counter()

    def watch(layer: Layer, made: tuple[Tensor, ...]) -> None:
        nonlocal unmatched
        key = (layer.name, seen[layer.name])
        seen[layer.name] += 1
        wanted = expected.pop(key, None)
        pairs = [] if wanted is None else [p for p in zip(made, wanted) if p[0].shape == p[1].shape]  # noqa: B905
        if not pairs:
            unmatched += 1
            return
        errors = [_errors(*pair) for pair in pairs]
        worst = max(errors, key=lambda error: _rank(error[1]))
        precision = precisions[layer.name]
        allowed = _TOLERANCES[precision] if tolerance is None else tolerance
        shape = tuple(made[0].shape)
        found.append(
            LayerError(layer.name, layer.kind, *worst, shape, layer.metadata, precision, allowed)
        )

    program.run(named, watch=watch)
    if not found:
        raise VerificationError("the program and the reference have no layer in common")
    device = next((tensor.device for tensor in named.values()), torch.device("cpu"))
    backend, _, version = program.version.partition(" ")
    details = {"backend": backend, "backend_version": version}
    ran_on = RanOn.of(device, "layers are compared one by one", details)
    return LayerReport(tuple(found), unmatched, ran_on)


def _program(module: TRTModule | Program) -> Program:
    program = module if isinstance(module, Program) else module.program
    if program is None:
        raise VerificationError(
            "the module has no program of its own: it was converted with keep_program=False, or "
            "is in several parts"
        )
    return program


def _named(
    module: TRTModule | Program, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the inputs of a program by name."""
    if isinstance(module, TRTModule):
        args, kwargs = at_edges(module, (args, kwargs))
        tensors = [*module.signature.bind(args, kwargs), *module.initial_state.values()]
        names = module.input_names
    else:
        names = [info.name for info in module.inputs]
        tensors = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
        if len(tensors) != len(names):
            raise VerificationError(f"the program takes the tensors {names}")
    return dict(zip(names, tensors, strict=True))


def _precisions(program: Program) -> dict[str, str]:
    """Return the lowest type that each layer, or one before it, computes in."""
    of_tensor: dict[str | None, int] = {}
    found: dict[str, str] = {}
    before = None
    # A loop's first layers come after its last ones, too.
    while found != before:
        before = dict(found)
        for layer in program.layers:
            own = [
                _ORDER.index("8 bits or less" if kind in _NARROWEST else _NARROW.get(kind, "fp32"))
                for kind in layer.types
            ]
            lowest = max([0, *own, *(of_tensor.get(name, 0) for name in layer.inputs)])
            of_tensor.update(dict.fromkeys(layer.outputs, lowest))
            found[layer.name] = _ORDER[lowest]
    return found


def _rank(error: float) -> float:
    return float("inf") if error != error else error


def _errors(got: Tensor, want: Tensor) -> tuple[float, float]:
    got, want = got.double(), want.to(got.device).double()
    if not got.numel():
        return 0.0, 0.0
    same = (got == want) | (got.isnan() & want.isnan())
    difference = torch.where(same, 0.0, got - want)
    size = float(torch.where(want.isfinite(), want, 0.0).norm())
    distance = float(difference.norm())
    return float(difference.abs().max()), distance / size if size else distance


_Key = tuple[str, int]


def _recorded(program: Program, inputs: Mapping[str, Tensor]) -> dict[_Key, tuple[Tensor, ...]]:
    """Return copies of what each layer made, by name and how often it has run before."""
    found: dict[_Key, tuple[Tensor, ...]] = {}
    seen: Counter[str] = Counter()

    def watch(layer: Layer, made: tuple[Tensor, ...]) -> None:
        found[layer.name, seen[layer.name]] = tuple(value.clone() for value in made)
        seen[layer.name] += 1

    program.run(inputs, watch=watch)
    return found


def _of_module(
    module: nn.Module, program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[_Key, tuple[Tensor, ...]]:
    """Return what each call of each submodule made, by the layer that ends it."""
    made: dict[str, list[Tensor]] = defaultdict(list)
    args, kwargs = map_tree(lambda x: x.clone() if isinstance(x, Tensor) else x, (args, kwargs))
    # Takes the hooks away again, too.
    with preserved(module), float32_precision.held(), torch.no_grad():
        for path, part in module.named_modules():
            part.register_forward_hook(_hook(made[path]))
        module(*args, **kwargs)
    found: dict[_Key, tuple[Tensor, ...]] = {}
    # Deeper modules last: where one layer ends several modules, the innermost says what it is.
    for path in sorted(made, key=len):
        ends = _ends(program.layers, path)
        if len(ends) == len(made[path]):
            found.update({(end, 0): (value,) for end, value in zip(ends, made[path], strict=True)})
    return found


def _hook(made: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        if isinstance(output, Tensor):
            made.append(output.detach().clone())

    return hook


def _ends(layers: Sequence[Layer], path: str) -> list[str]:
    """Return the last layer of each unbroken run of layers that belong to a module."""
    inside = [
        not path or layer.name.split("/")[0] == path or layer.name.startswith(f"{path}.")
        for layer in layers
        if layer.kind != "CONSTANT"
    ]
    names = [layer.name for layer in layers if layer.kind != "CONSTANT"]
    return [
        name
        for name, here, after in zip(names, inside, [*inside[1:], False], strict=True)
        if here and not after
    ]
