"""The converters that come with t2t, one file for each family of operators."""

from __future__ import annotations

import importlib

from t2t.registry import supported_operators

__all__ = ["FAMILIES", "supported_operators"]

# Importing a family registers its converters.
FAMILIES = (
    "activation",
    "attention",
    "bags",
    "batch_norm",
    "bitwise",
    "casts",
    "comparison",
    "composed",
    "convolution",
    "cumulative",
    "division",
    "dropout",
    "einsum",
    "elementwise",
    "extrema",
    "factories",
    "grouped",
    "indexing",
    "joining",
    "linear",
    "norm",
    "order",
    "padding",
    "pooling",
    "powers",
    "quantiles",
    "quantization",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "scattering",
    "shuffle",
    "softmax",
    "statistics",
    "unary",
    "views",
)

for _family in FAMILIES:
    importlib.import_module(f"{__name__}.{_family}")
