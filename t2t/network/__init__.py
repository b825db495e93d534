"""The network under construction: the only caller of INetworkDefinition's add_* methods."""

from __future__ import annotations

from t2t.network.layers import Layers
from t2t.network.loops import Loop, Loops
from t2t.network.movement import Movement
from t2t.network.tensors import NetworkTensor, Operation, TensorLike, axes_mask, member, shape

__all__ = [
    "Loop",
    "Network",
    "NetworkTensor",
    "Operation",
    "TensorLike",
    "axes_mask",
    "member",
    "shape",
]


class Network(Layers, Movement, Loops):
    """Builds a TensorRT network: one method per layer kind, under TensorRT's own names.

    Layers take torch tensors (traced ones, or constants), network tensors and numbers. Every layer
    is checked as it is added, and named after the module and operator that made it.
    """
