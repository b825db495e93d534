"""Running sums along a dimension."""

from __future__ import annotations

import torch

from t2t.converters._arguments import positive_dim
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["cumsum"]


@converter("aten::cumsum", precision="sensitive")
def cumsum(
    net: Network, self: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> NetworkTensor:
    """Convert the running sum along a dimension; of integers and bools it is int64."""
    x = net.tensor(self, dtype or net.output.dtype)
    if self.ndim == 0:
        return x
    return net.add_cumulative(x, positive_dim(dim, self.ndim))
