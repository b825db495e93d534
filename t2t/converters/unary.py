"""Functions of one number."""

from __future__ import annotations

from typing import Any

from t2t.network import Network, NetworkTensor
from t2t.network.core import TensorLike
from t2t.registry import converter

__all__: list[str] = []


def _register(operation: str, *names: str, precision: Any = "follow") -> None:
    """Let a torch function be one layer; integers are computed in torch's result type."""

    @converter(*names, precision=precision)
    def unary(net: Network, self: TensorLike) -> NetworkTensor:
        """Convert any shape to the same shape."""
        return net.add_unary(net.tensor(self, net.output.dtype), operation)


_register("EXP", "aten::exp", precision="sensitive")
_register("LOG", "aten::log", precision="sensitive")
_register("SQRT", "aten::sqrt", precision="sensitive")
_register("RECIP", "aten::reciprocal", precision="sensitive")
