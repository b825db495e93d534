"""A module is left as it was: what its forward pass may change, noted before and put back after."""

from t2t.isolation.preserve import (
    Interrupts,
    SavedMemory,
    eager,
    preserved,
    preserved_torch_state,
    uninterrupted,
)
from t2t.isolation.snapshot import (
    ATTRIBUTE,
    Change,
    Path,
    Snapshot,
    render,
    storage_key,
    without_modes,
)

__all__ = [
    "ATTRIBUTE",
    "Change",
    "Interrupts",
    "Path",
    "SavedMemory",
    "Snapshot",
    "eager",
    "preserved",
    "preserved_torch_state",
    "render",
    "storage_key",
    "uninterrupted",
    "without_modes",
]
