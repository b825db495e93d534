"""A module is left as it was: what its forward pass may change, noted before and put back after."""

from t2t.isolation.preserve import (
    Interrupts,
    SavedMemory,
    eager,
    preserved,
    preserved_torch_state,
    uninterrupted,
)
from t2t.isolation.snapshot import Change, Snapshot, storage_key

__all__ = [
    "Change",
    "Interrupts",
    "SavedMemory",
    "Snapshot",
    "eager",
    "preserved",
    "preserved_torch_state",
    "storage_key",
    "uninterrupted",
]
