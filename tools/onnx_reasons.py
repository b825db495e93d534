"""Why a case of ONNX does not agree: each reason is found by an experiment, not asserted."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import onnx
import torch

from t2t.reference import Program, capture
from tools.onnx_cases import Case, arrays, compare, parse, results

__all__ = ["explain"]

_Reason = tuple[str, str] | None


def explain(case: Case) -> tuple[str, str]:
    """Return (reason, evidence) for a parsed case that does not agree; ("", "") where none fits."""
    parsed = parse(case.model)
    assert parsed is not None
    network, _parser = parsed
    program = capture(network)
    for experiment in _EXPERIMENTS:
        found = experiment(case, program)
        if found is not None:
            return found
    return "", ""


def _default_not_taken(case: Case, _: Program) -> _Reason:
    """Write out the defaults of ONNX's attributes: does the case agree now?"""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    added = []
    for node in model.graph.node:
        given = {attribute.name for attribute in node.attribute}
        for name, value in onnx.defs.get_schema(node.op_type).attributes.items():
            if name not in given and value.default_value.name:
                node.attribute.append(value.default_value)
                added.append(
                    f"{node.op_type}.{name}={onnx.helper.get_attribute_value(value.default_value)}"
                )
    parsed = parse(model)
    if not added or parsed is None:
        return None
    try:
        compare(case, results(case, capture(parsed[0])))
    except AssertionError:
        return None
    return (
        "the parser takes another default than ONNX's",
        f"the same model with {', '.join(added)} written out agrees",
    )


def _input_dropped(_: Case, program: Program) -> _Reason:
    used = {name for layer in program.layers for name in layer.inputs}
    unused = [info.name for info in program.inputs if info.name not in used]
    if not unused:
        return None
    return "the parser drops an input", f"no layer of the network reads {', '.join(unused)}"


def _attribute_dropped(case: Case, program: Program) -> _Reason:
    """Take attributes away one at a time: is the network the same without?"""
    before = _fingerprint(program)
    dropped = []
    for index, node in enumerate(case.model.graph.node):
        for attribute in node.attribute:
            default = onnx.defs.get_schema(node.op_type).attributes[attribute.name].default_value
            if _value(attribute) == _value(default):
                continue
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            kept = [other for other in node.attribute if other.name != attribute.name]
            del model.graph.node[index].attribute[:]
            model.graph.node[index].attribute.extend(kept)
            parsed = parse(model)
            if parsed is not None and _fingerprint(capture(parsed[0])) == before:
                dropped.append(f"{attribute.name}={_value(attribute)}")
    if not dropped:
        return None
    return "the parser drops an attribute", f"the network is the same without {', '.join(dropped)}"


def _value(attribute: onnx.AttributeProto) -> object:
    if not attribute.name:
        return None
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _fingerprint(program: Program) -> tuple[str, list[bytes]]:
    state = program.to_state()
    weights = [value for value in state.values() if isinstance(value, torch.Tensor)]
    raw = [value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for value in weights]
    rows = json.loads(str(state["program"]))
    return json.dumps(rows["layers"], sort_keys=True), raw


def _random(_: Case, program: Program) -> _Reason:
    drawn = [
        layer.attributes["operation"]
        for layer in program.layers
        if layer.kind == "FILL" and layer.attributes["operation"].startswith("RANDOM")
    ]
    if not drawn:
        return None
    return "random numbers", f"the network draws from {drawn[0]}, which has no seed"


def _type_changed(case: Case, program: Program) -> _Reason:
    """Look for integers that the network has as integers of another range."""
    graph = case.model.graph
    entries = {
        entry.name: entry.type.tensor_type.elem_type for entry in (*graph.input, *graph.output)
    }
    changed = []
    for info in (*program.inputs, *program.outputs):
        model = onnx.TensorProto.DataType.Name(entries.get(info.name, 0)).lower()
        network = str(info.dtype).removeprefix("torch.")
        if model.startswith("uint") and network != model:
            changed.append(f"{info.name} is {model} in the model, {network} in the network")
    return ("the parser changes a type", "; ".join(changed)) if changed else None


def _other_size(case: Case, program: Program) -> _Reason:
    """Compare ONNX's sizes with those that TensorRT itself infers."""
    expected = {
        entry.name: tuple(value.shape)
        for entry, value in zip(case.model.graph.output, arrays(case.data_sets[0][1]), strict=True)
    }
    differing = [
        f"TensorRT infers {info.shape} for {info.name}, ONNX expects {expected[info.name]}"
        for info in program.outputs
        if -1 not in info.shape and info.shape != expected[info.name]
    ]
    if not differing:
        return None
    modes = {layer.attributes.get("padding_mode") for layer in program.layers} - {None}
    rule = f" (padding mode {', '.join(sorted(modes))})" if modes else ""
    return "TensorRT's own rule for the output's size", "; ".join(differing) + rule


def _other_order(case: Case, program: Program) -> _Reason:
    if not any(layer.kind == "NMS" for layer in program.layers):
        return None
    for (_, expected), found in zip(case.data_sets, results(case, program), strict=True):
        rows = [sorted(map(tuple, value.tolist())) for value in (arrays(expected)[0], found[0])]
        if rows[0] != rows[1]:
            return None
    return (
        "TensorRT's own order of the result",
        "the same rows; INMSLayer sorts by batch and falling score, ONNX by batch and class",
    )


def _rounding(case: Case, program: Program) -> _Reason:
    """Measure the difference in steps of the output's type."""
    steps = 0.0
    for (_, expected), found in zip(case.data_sets, results(case, program), strict=True):
        for want, got in zip(arrays(expected), found, strict=True):
            if want.shape != got.shape or want.dtype != np.float16:
                return None
            spacing = np.spacing(np.abs(want)).astype(np.float64)
            difference = np.abs(want.astype(np.float64) - got.astype(np.float64))
            steps = max(steps, float((difference / spacing).max()))
    if not 0 < steps <= 2:
        return None
    return (
        "rounding of halves",
        f"at most {steps:.0f} steps of float16 apart: the network rounds after every layer",
    )


def _corners(case: Case, program: Program) -> _Reason:
    """Replace ONNX's fractional output size by the whole one that TensorRT's formula uses."""
    resizes = [layer for layer in program.layers if layer.kind == "RESIZE"]
    if not any(la.attributes["coordinate_transformation"] == "ALIGN_CORNERS" for la in resizes):
        return None
    scales = [scale for layer in resizes for scale in layer.attributes["scales"] or ()]
    sizes = [n * s for n, s in zip(arrays(case.data_sets[0][0])[0].shape, scales, strict=False)]
    broken = [f"{size:g}" for size in sizes if size != int(size)]
    if not broken:
        return None
    return (
        "TensorRT's own formula for aligned corners",
        f"ONNX divides by the fractional sizes {', '.join(broken)} less one, IResizeLayer "
        "(operator page Resize, ALIGN_CORNERS) by the whole size of the output less one",
    )


def _cancelled(case: Case, program: Program) -> _Reason:
    """Measure the difference against the largest value: is it float32's rounding of a sum?"""
    worst = 0.0
    for (_, expected), found in zip(case.data_sets, results(case, program), strict=True):
        for want, got in zip(arrays(expected), found, strict=True):
            if want.shape != got.shape or want.dtype != np.float32 or not want.size:
                return None
            scale = float(np.abs(want).max()) * float(np.finfo(np.float32).eps)
            worst = max(worst, float(np.abs(want - got).max()) / scale)
    if not worst < 32:
        return None
    return (
        "rounding of sums that cancel",
        f"at most {worst:.0f} roundings of the largest value apart; ONNX's atol of {case.atol:g} "
        "asks for more where the sum is 0",
    )


_EXPERIMENTS: tuple[Callable[[Case, Program], _Reason], ...] = (
    _random,
    _default_not_taken,
    _type_changed,
    _rounding,
    _attribute_dropped,
    _input_dropped,
    _other_size,
    _other_order,
    _corners,
    _cancelled,
)
