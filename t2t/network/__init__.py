"""The network under construction: the only caller of INetworkDefinition's add_* methods."""

from __future__ import annotations

from t2t.network.arithmetic import Arithmetic, axes_mask, member
from t2t.network.boundary import Boundary
from t2t.network.core import NetworkTensor, Operation, TensorLike, shape
from t2t.network.loops import Loop, Loops
from t2t.network.movement import Movement
from t2t.network.quantization import Quantization
from t2t.network.windows import Windows

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


class Network(Arithmetic, Windows, Quantization, Movement, Loops, Boundary):
    """Builds a TensorRT network: one method per layer kind, under TensorRT's own names.

    Layers take torch tensors (traced ones, or constants), network tensors and numbers. Every layer
    is checked as it is added, and named after the module and operator that made it.
    """
