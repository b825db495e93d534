"""The converters that come with t2t, one file for each family of operators."""

from __future__ import annotations

import importlib
import sys

from t2t.registry import supported_operators

__all__ = ["FAMILIES", "import_for_packages", "supported_operators"]

# Importing a family registers its converters.
FAMILIES = (
    "activation",
    "attention",
    "bitwise",
    "comparison",
    "concat",
    "convolution",
    "elementwise",
    "factories",
    "indexing",
    "linear",
    "norm",
    "pooling",
    "powers",
    "quantization",
    "recurrent",
    "reduction",
    "resize",
    "scattering",
    "sorting",
    "unary",
    "views",
)

for _family in FAMILIES:
    importlib.import_module(f"{__name__}.{_family}")

# What other packages bring along has converters where they are loaded.
_PACKAGES = {"modelopt.torch.quantization.tensor_quant": "modelopt"}


def import_for_packages() -> None:
    """Register the converters of what those packages define that are loaded by now."""
    for package, family in _PACKAGES.items():
        if package in sys.modules:
            importlib.import_module(f"{__name__}.{family}")
