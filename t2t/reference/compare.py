"""Which layer loses accuracy: two programs, or a program and its module, layer by layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from t2t.errors import VerificationError
from t2t.isolation import preserved
from t2t.reference.layer import Layer
from t2t.reference.program import Program

__all__ = ["LayerError", "LayerReport", "compare_layers"]

Inputs = Sequence[Tensor] | Mapping[str, Tensor]


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
    """

    name: str
    kind: str
    max_abs_error: float
    max_rel_error: float
    shape: tuple[int, ...]
    line: str


@dataclass(frozen=True)
class LayerReport:
    """The errors of all layers that could be compared, in the order in which they ran.

    Attributes:
        layers: one entry for each layer.
        tolerance: the largest relative error that is taken as equal.
        unmatched: number of layers that the reference has no counterpart of.
    """

    layers: tuple[LayerError, ...]
    tolerance: float
    unmatched: int

    @property
    def ok(self) -> bool:
        """Say whether every layer is within the tolerance."""
        return self.first is None

    @property
    def first(self) -> LayerError | None:
        """The first layer that leaves the tolerance; the cause is here or just before."""
        bad = (entry for entry in self.layers if not entry.max_rel_error <= self.tolerance)
        return next(bad, None)

    def worst(self, count: int = 10) -> tuple[LayerError, ...]:
        """Give the layers of largest relative error, the worst first."""
        ordered = sorted(self.layers, key=lambda entry: -_rank(entry.max_rel_error))
        return tuple(ordered[:count])

    def __str__(self) -> str:
        """The first layer out of tolerance, and the ten worst as a table."""
        rows = [("layer", "kind", "max abs", "rel", "shape", "line")]
        rows += [
            (
                entry.name,
                entry.kind,
                f"{entry.max_abs_error:.2e}",
                f"{entry.max_rel_error:.2e}",
                str(list(entry.shape)),
                entry.line,
            )
            for entry in self.worst()
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        first = self.first
        said = (
            f"all {len(self.layers)} layers are within {self.tolerance:g}"
            if first is None
            else f"first out of tolerance ({self.tolerance:g}): {first.name} ({first.kind}), "
            f"rel {first.max_rel_error:.2e}, {first.line}"
        )
        return "\n".join([said, *table, f"{self.unmatched} layers have no counterpart"])


def compare_layers(
    program: Program,
    reference: Program | nn.Module,
    inputs: Inputs,
    *,
    tolerance: float = 1e-3,
) -> LayerReport:
    """Run both and compare the output of every layer that both have.

    Args:
        program: the program under test, such as that of an fp16 conversion.
        reference: what is taken as right: another program whose layers have the same names
            (of the fp32 conversion), or the original module, matched by module path.
        inputs: the program's inputs, in order or by name; a module takes them in order, so
            must take its tensors as positional arguments.
        tolerance: the largest relative error that is taken as equal.

    Raises:
        VerificationError: the two have no layer in common.
    """
    if isinstance(reference, Program):
        expected = _recorded(reference, inputs)
    else:
        expected = _of_module(reference, program, inputs)
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
        found.append(
            LayerError(layer.name, layer.kind, *worst, tuple(made[0].shape), layer.metadata)
        )

    program.run(inputs, watch=watch)
    if not found:
        raise VerificationError("the program and the reference have no layer in common")
    return LayerReport(tuple(found), tolerance, unmatched)


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


def _recorded(program: Program, inputs: Inputs) -> dict[_Key, tuple[Tensor, ...]]:
    """Give copies of what each layer made, by name and how often it has run before."""
    found: dict[_Key, tuple[Tensor, ...]] = {}
    seen: Counter[str] = Counter()

    def watch(layer: Layer, made: tuple[Tensor, ...]) -> None:
        found[layer.name, seen[layer.name]] = tuple(value.clone() for value in made)
        seen[layer.name] += 1

    program.run(inputs, watch=watch)
    return found


def _of_module(
    module: nn.Module, program: Program, inputs: Inputs
) -> dict[_Key, tuple[Tensor, ...]]:
    """Give what each call of each submodule made, by the layer that ends it."""
    made: dict[str, list[Tensor]] = defaultdict(list)
    given = (
        [inputs[info.name] for info in program.inputs] if isinstance(inputs, Mapping) else inputs
    )
    # Takes the hooks away again, too.
    with preserved(module), torch.no_grad():
        for path, part in module.named_modules():
            part.register_forward_hook(_hook(made[path]))
        module(*(value.clone() for value in given))
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
    """Give the last layer of each unbroken run of layers that belong to a module."""
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
