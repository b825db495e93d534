"""From a finished network to a plan."""

from t2t.building.builder import (
    Profile,
    Range,
    build,
    built_for,
    check_capabilities,
    check_dla,
    check_quantized,
    create_builder,
    quantized_types,
)

__all__ = [
    "Profile",
    "Range",
    "build",
    "built_for",
    "check_capabilities",
    "check_dla",
    "check_quantized",
    "create_builder",
    "quantized_types",
]
