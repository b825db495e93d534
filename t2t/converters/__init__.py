"""The converters that come with t2t, one file for each family of operators."""

from __future__ import annotations

import importlib

from t2t.registry import supported_operators

__all__ = ["FAMILIES", "supported_operators"]

# Importing a family registers its converters.
FAMILIES = (
    "activation",
    "attention",
    "batch_norm",
    "bitwise",
    "casts",
    "comparison",
    "concat",
    "convolution",
    "cumulative",
    "division",
    "dropout",
    "einsum",
    "elementwise",
    "embedding_bag",
    "factories",
    "grid_sample",
    "indexing",
    "linear",
    "minmax",
    "norm",
    "padding",
    "pooling",
    "powers",
    "quantiles",
    "quantization",
    "recurrent",
    "reduction",
    "resize",
    "scattering",
    "softmax",
    "sorting",
    "unary",
    "views",
)

for _family in FAMILIES:
    importlib.import_module(f"{__name__}.{_family}")
