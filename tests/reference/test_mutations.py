"""Whoever ignores an attribute, an optional input or a weight of a layer fails some row.

Each is changed in turn to what another row has there; a row must then come out wrong.
"""

import functools
import json
from collections import defaultdict
from dataclasses import replace

import pytest

from t2t.errors import T2TError
from t2t.reference import KINDS, Layer, Program
from tests.reference.all_rows import ROWS
from tests.reference.rows import Row, same, wanted

# What a layer only repeats: its output's type says it, or another attribute does.
REPEATED = {
    ("CAST", "to_type"): "the output's type",
    ("FILL", "to_type"): "the output's type",
    ("QUANTIZE", "to_type"): "the output's type",
    ("DEQUANTIZE", "to_type"): "the output's type",
    ("DYNAMIC_QUANTIZE", "to_type"): "the output's type",
    ("DYNAMIC_QUANTIZE", "scale_type"): "the second output's type",
    ("NMS", "indices_type"): "the output's type",
    ("NON_ZERO", "indices_type"): "the output's type",
    ("QUANTIZE", "block_shape"): "the scale's shape",
    ("DEQUANTIZE", "block_shape"): "the scale's shape",
    ("ATTENTION_INPUT", "name"): "a name",
    ("CUMULATIVE", "op"): "there is one operation",
    ("KV_CACHE_UPDATE", "cache_mode"): "there is one mode",
    ("ATTENTION_INPUT", "query_form"): "packed sequences are refused: test_refusals.py",
    ("ATTENTION_INPUT", "key_value_form"): "packed sequences are refused: test_refusals.py",
    ("CONDITIONAL_INPUT", "conditional"): "its tensors say what it belongs to",
    ("NORMALIZATION", "is_v2"): "the scale's shape",
}
# The length of a loop's output is its trip count; lengths of padded queries are not used.
REPEATED_INPUTS = {("LOOP_OUTPUT", "1"), ("ATTENTION_INPUT", "5")}
# Kinds whose attributes rows here cannot show, and where they are shown.
ELSEWHERE = {
    "ASSERTION": "test_refusals.py",
    "CONDITION": "no attribute of its own",
    "PLUGIN_V3": "tests/test_plugins.py, as TensorRT-RTX has no such layer",
}

# A count taken for a condition would keep its loop running for ever.
ENDLESS = ("WHILE",)


@functools.cache
def programs() -> list[tuple[Row, Program]]:
    return [(row, row.program()) for row in ROWS]


@functools.cache
def values_seen() -> dict[tuple[str, str], list]:
    seen = defaultdict(dict)
    for _, program in programs():
        for layer in program.layers:
            for name, value in layer.attributes.items():
                seen[layer.kind, name][json.dumps(value)] = value
    return {key: list(values.values()) for key, values in seen.items()}


def fails(row: Row, program: Program, layer: Layer, **changes: object) -> bool:
    layers = [replace(layer, **changes) if other is layer else other for other in program.layers]
    tensors = row.tensors(1)
    try:
        mutant = Program(program.inputs, program.outputs, layers, program.version)
        results = mutant.run(tensors)
    except (T2TError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return True
    pairs = zip(results.values(), wanted(row, tensors), strict=True)
    return not all(same(got, want, row) for got, want in pairs)


def is_killed(kind: str, name: str) -> bool:
    for row, program in programs():
        for layer in program.layers:
            if layer.kind != kind or name not in layer.attributes:
                continue
            for value in values_seen()[kind, name]:
                if value == layer.attributes[name] or value in ENDLESS:
                    continue
                if fails(row, program, layer, attributes={**layer.attributes, name: value}):
                    return True
    return False


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ELSEWHERE])
def test_no_attribute_is_ignored(kind: str) -> None:
    names = {name for seen, name in values_seen() if seen == kind}
    assert any(layer.kind == kind for _, program in programs() for layer in program.layers)
    ignored = [name for name in names if (kind, name) not in REPEATED and not is_killed(kind, name)]
    assert not ignored, f"{kind}: no row fails when these are ignored"


def test_no_weight_and_no_optional_input_is_ignored() -> None:
    survivors = set()
    killed = set()
    for row, program in programs():
        for layer in program.layers:
            for name in layer.weights:
                rest = {key: value for key, value in layer.weights.items() if key != name}
                hit = fails(row, program, layer, weights=rest)
                (killed if hit else survivors).add((layer.kind, name))
            for position in range(1, len(layer.inputs)):
                less = [*layer.inputs[:position], None, *layer.inputs[position + 1 :]]
                hit = fails(row, program, layer, inputs=tuple(less))
                (killed if hit else survivors).add((layer.kind, str(position)))
    assert survivors - killed == REPEATED_INPUTS
