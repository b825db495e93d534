"""Programs as text: one line for each layer."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from t2t.reference.layer import Layer, TensorInfo, axes_of_mask

Sizes = Mapping[str, Sequence[str]]
"""Shapes of tensors with names for dynamic sizes, by the tensor's name: "x" to ("batch", "3")."""

# Values that say nothing: TensorRT's defaults, and 0 or 1 in every place of a list.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "alpha": (0.0,),
    "average_count_excludes_padding": (True,),
    "axis": (-1,),
    "beta": (0.0,),
    "blend_factor": (0.0,),
    "causal_kind": ("NONE",),
    "channel_axis": (1,),
    "coordinate_transformation": ("ASYMMETRIC",),
    "cubic_coeff": (-0.75,),
    "dilation_nd": (1,),
    "exclude_outside": (False, 0),
    "exclusive": (False,),
    "indices_type": ("INT32",),
    "is_v2": (True, False),
    "key_value_form": ("PADDED_BHND",),
    "mode": ("STRICT_BOUNDS", "DEFAULT", "CHANNEL"),
    "name": (),
    "nearest_rounding": ("FLOOR",),
    "norm_op": ("SOFTMAX",),
    "normalization_quantize_to_type": ("FLOAT",),
    "num_elementwise_dims": (0,),
    "num_groups": (1,),
    "padding_mode": ("EXPLICIT_ROUND_DOWN",),
    "post_padding": (0,),
    "pre_padding": (0,),
    "query_form": ("PADDED_BHND",),
    "reverse": (False,),
    "selector_for_single_pixel": ("FORMULA",),
    "shape": (),
    "stride": (1,),
    "stride_nd": (1,),
    "to_type": (),
    "update_form": ("PADDED_BHND",),
    "zero_is_placeholder": (True, False),
}
_TYPES = {"FLOAT": "fp32", "HALF": "fp16"}
_TORCH_TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
# What a picture calls the attributes that it has room for; what stands for itself has no name.
_BRIEF = {
    "op": "",
    "operation": "",
    "type": "",
    "mode": "",
    "resize_mode": "",
    "equation": "",
    "k": "k",
    "kernel_size_nd": "",
    "window_size_nd": "",
    "stride_nd": "stride",
    "pre_padding": "pad",
    "dilation_nd": "dilation",
    "num_groups": "groups",
    "first_transpose": "transpose",
    "reshape_dims": "to",
    "second_transpose": "transpose",
    "start": "from",
    "stride": "step",
    "axis": "axis",
    "axes": "axes",
}
# A constant's shape and a cast's type stand at the end of the line anyway.
_TOLD = {("CONSTANT", "shape"), ("FILL", "shape")}


def describe(
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    layers: Sequence[Layer],
    sizes: Sizes,
) -> str:
    """Return the inputs, one line for each layer, and the outputs.

    Args:
        inputs: the network's inputs.
        outputs: the network's outputs.
        layers: its layers.
        sizes: the shapes of tensors with names for dynamic sizes, by the tensor's name.
    """
    lines = [f"input {info.name}: {_info(info, sizes)}" for info in inputs]
    width = min(max((len(layer.name) for layer in layers), default=0), 48)
    for layer in layers:
        made = ", ".join(
            f"{type_text(kind)}{size_text(sizes.get(name, shape))}"
            for name, kind, shape in zip(layer.outputs, layer.types, layer.shapes, strict=True)
        )
        attributes = ", ".join(attribute_texts(layer))
        call = f"{layer.kind}({attributes})" if attributes else layer.kind
        given = ", ".join(name if name is not None else "-" for name in layer.inputs)
        lines.append(f"{layer.name:<{width}} {call} -> {made}" + (f" <- {given}" if given else ""))
    lines += [f"output {info.name}: {_info(info, sizes)}" for info in outputs]
    return "\n".join(lines)


def attribute_texts(layer: Layer) -> list[str]:
    """Return the attributes that differ from their default, each as "name=value"."""
    return [
        f"{name}={_value(_readable(name, value))}"
        for name, value in layer.attributes.items()
        if not _says_nothing(layer.kind, name, value)
    ]


def brief_text(layer: Layer) -> str:
    """Return the most telling attributes in a few words: "7x7, stride 2x2, pad 3x3"."""
    parts = []
    for name, called in _BRIEF.items():
        value = layer.attributes.get(name)
        if name not in layer.attributes or _says_nothing(layer.kind, name, value):
            continue
        readable = _readable(name, value)
        joint = "x" if name.endswith(("_nd", "_padding", "_dims")) else ","
        text = (
            joint.join(map(str, readable)) if isinstance(readable, list) else str(readable).lower()
        )
        parts.append(f"{called} {text}".strip())
    return ", ".join(parts)


def _readable(name: str, value: Any) -> Any:
    """Return a bit mask as its axes, and of TensorRT's eight places those that are used."""
    if name == "axes" and isinstance(value, int):
        return list(axes_of_mask(value))
    if name in ("first_transpose", "second_transpose"):
        used = next(
            (k for k in range(1, 9) if sorted(value[:k]) == list(range(k)) and not any(value[k:])),
            len(value),
        )
        return value[:used]
    return value


def _says_nothing(kind: str, name: str, value: Any) -> bool:
    if value is None or value in ([], "") or (kind, name) in _TOLD:
        return True
    if name in ("first_transpose", "second_transpose"):
        return bool(value == list(range(len(value))))
    if name in ("to_type", "name"):
        return True
    defaults = _DEFAULTS.get(name, ())
    if isinstance(value, list):
        return all(item in defaults for item in value)
    return value in defaults


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_value(item) for item in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _info(info: TensorInfo, sizes: Sizes) -> str:
    shape = sizes.get(info.name, info.shape)
    return f"{str(info.dtype).removeprefix('torch.')}{size_text(shape)}"


def type_text(kind: str) -> str:
    """Return the short name of a TensorRT type: fp32, fp16, bf16, int8."""
    return _TYPES.get(kind, kind.lower())


def torch_type_text(dtype: torch.dtype) -> str:
    """Return the short name of a torch dtype."""
    return _TORCH_TYPES.get(dtype, str(dtype).removeprefix("torch."))


def tensor_text(kind: str, sizes: Sequence[int | str] | None) -> str:
    """Return a type and sizes as a picture shows them: "fp32[batch, 3, 224, 224]".

    Args:
        kind: TensorRT's name of the type, or its short one.
        sizes: the sizes or their names; None where even their number is unknown.
    """
    return f"{type_text(kind)}{size_text(sizes)}"


def size_text(shape: Sequence[int | str] | None) -> str:
    """Return a shape as "[-1, 3, 8, 8]" or "[batch, 3, 4*h, 4*w]"."""
    return "[?]" if shape is None else f"[{', '.join(map(str, shape))}]"


def short_line(line: str) -> str:
    """Return the user's line with its file as others may see it, without this machine's paths.

    A file below the working directory or a directory that Python imports from is named from
    there, any other by its last two parts.
    """
    return re.sub(
        r"(?<![\w.])(?:[A-Za-z]:)?[/\\][^\n:]*(?=:\d)", lambda match: _short_path(match[0]), line
    )


def _short_path(file: str) -> str:
    roots = [os.path.join(root, "") for root in (os.getcwd(), *filter(None, sys.path))]
    # Everything lies in the root directory, so that says nothing.
    near = [root for root in roots if file.startswith(root) and root.count(os.sep) > 1]
    if near:
        return file.removeprefix(max(near, key=len)).replace(os.sep, "/")
    parts = re.split(r"[/\\]", file)
    packages = [at for at, part in enumerate(parts) if part in ("site-packages", "dist-packages")]
    return "/".join(parts[packages[-1] + 1 :] if packages else ["...", *parts[-2:]])
