"""What `convert` accepts: checked before anything runs, whatever it is called elsewhere."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from t2t.errors import ConversionError, OptionError

__all__ = ["FOREIGN", "check_module", "check_options", "refuse_unknown"]

_SHAPES = (
    "ranges are declared by min_shapes, opt_shapes and max_shapes, or by dynamic_shapes with "
    "torch.export.Dim"
)
_CONFIGURE = "set it on the IBuilderConfig: configure=lambda config: ..."
_WHOLE = (
    "a module converts whole, is refused, or with partial=True keeps what does not convert in "
    "PyTorch, submodule by submodule (torch_executed_modules=[...] names such)"
)
    for name, value in options.items():
        fits, wanted = _KINDS[name]
        if not fits(value):
            raise OptionError(f"{name}={value!r}: it takes {wanted}")
    if options["fp16"] and options["bf16"]:
        raise OptionError("fp16=True and bf16=True: give one of them")


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(name, str) for name in value)
    )


def _is_shapes(value: Any) -> bool:
    return isinstance(value, Sequence | Mapping) and not isinstance(value, str)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_new_file(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    path = Path(value)
    return path.parent.is_dir() and not path.is_dir()


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_FLAG = (_is_bool, "True or False")
_NAMES = (_is_names, 'a list of names: ["first", "second"]')
_SIZES = (_or_none(_is_shapes), "a shape for each input, in a list or by the input's name")

# Every parameter of `convert` but the module and its inputs.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "fp16": _FLAG,
    "bf16": _FLAG,
    "float64_as_float32": _FLAG,
    "fp32_modules": (_is_names, 'a list of submodules\' names: ["encoder.layers.0", "head*"]'),
    "min_shapes": _SIZES,
    "opt_shapes": _SIZES,
    "max_shapes": _SIZES,
    "dynamic_shapes": (_or_none(_is_shapes), "{dim: torch.export.Dim(...)} for each input"),
    "max_batch_size": (
        _or_none(lambda value: _is_int(value) and value > 0),
        "the largest batch, such as 8",
    ),
    "shape_examples": (
        _or_none(lambda value: isinstance(value, Iterable) and not isinstance(value, str)),
        "an iterable of further inputs",
    ),
    "profiles": (
        _or_none(lambda value: _is_shapes(value) and not isinstance(value, Mapping)),
        'a list of {"min": shapes, "opt": shapes, "max": shapes}',
    ),
    "narrow_shapes": _FLAG,
    "input_names": (_or_none(_is_names), _NAMES[1]),
    "output_names": (_or_none(_is_names), _NAMES[1]),
    "ignore_dropout": _FLAG,
    "keep_program": _FLAG,
    "backend": (_or_none(lambda value: isinstance(value, str)), '"tensorrt" or "tensorrt_rtx"'),
    "workspace": (
        _or_none(lambda value: _is_int(value) and value > 0),
        "a number of bytes, such as 1 << 30, or None",
    ),
    "optimization_level": (
        _or_none(lambda value: _is_int(value) and 0 <= value <= 5),
        "a level from 0 (quick to build) to 5 (quick to run), or None",
    ),
    "tf32": _FLAG,
    "compute_capabilities": (_is_names, 'a list of compute capabilities: ["8.6", "8.9"]'),
    "timing_cache": (_or_none(_is_new_file), "the path of a file, in a directory that exists"),
    "configure": (_or_none(callable), "a function that gets the IBuilderConfig"),
    "progress": (_or_none(_is_bool), "True, False or None"),
    "partial": _FLAG,
    "torch_executed_modules": (
        _is_names,
        'a list of submodules\' names: ["roi_heads", "*.nms"]',
    ),
}
