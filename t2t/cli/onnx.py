"""`t2t convert model.onnx`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from t2t.cli.options import Given
from t2t.cli.running import Refusal, stage
from t2t.cli.shapes import InputShape, ShapeNotationError, resolve
from t2t.module import TRTModule
from t2t.onnx import REASONS, from_onnx

# They have a value where nothing was said.
_IGNORED = ("calibration_method", "min_block_size")


def convert_onnx(
    given: Given,
    options: Mapping[str, Any],
    *,
    configure: Callable[[Any], None] | None,
    verify: bool,
    rtol: float | None,
) -> TRTModule:
    """Convert the file that SOURCE names.

    Raises:
        Refusal: an option has no meaning for a file of ONNX.
    """
    named: dict[str, Any] = {
        "set": given.settings,
        "weights": given.weights,
        "example": given.examples,
    }
    named |= {"constant": given.constants, "values": given.values}
    named |= {"device": given.device, "require_engine": options["require_engine"]}
    named |= {name: x for name, x in options.items() if name in REASONS and name not in _IGNORED}
    for name, value in named.items():
        if value:
            flag = name.removesuffix("s") if isinstance(value, tuple) else name
            reason = REASONS.get(name, f"{given.source} is converted and compared as it is")
            raise Refusal(f"--{flag.replace('_', '-')} is for PyTorch modules: {reason}")
    stage(f"converting {given.source}")
    taken = {name: x for name, x in options.items() if name not in (*named, *_IGNORED)}
    return from_onnx(
        given.source,
        **_shapes(given.shapes),
        **taken,
        configure=configure,
        verify=verify,
        rtol=rtol,
    )


def _shapes(shapes: tuple[InputShape, ...]) -> dict[str, Any]:
    """Return min_shapes, opt_shapes and max_shapes: by name, or in order where none has a name."""
    if not shapes:
        return {}
    try:
        resolved = resolve(shapes)
    except ShapeNotationError as error:
        raise Refusal(f"--shape: {error}") from error
    for shape in resolved:
        if shape.dtype or any(size.step != 1 for size in shape.ranges):
            raise Refusal(f"--shape {shape}: the file says types, and its sizes have no steps")
    if len({bool(shape.name) for shape in resolved}) > 1:
        raise Refusal("--shape: name all inputs, or give all in the model's order")
    parts = {
        "min_shapes": [tuple(size.low for size in shape.ranges) for shape in resolved],
        "opt_shapes": [tuple(size.example for size in shape.ranges) for shape in resolved],
        "max_shapes": [tuple(size.high for size in shape.ranges) for shape in resolved],
    }
    if not resolved[0].name:
        return dict(parts)
    names = [shape.name for shape in resolved]
    return {part: dict(zip(names, found, strict=True)) for part, found in parts.items()}
