"""Products of groups of rows with a matrix each, as mixtures of experts have them; histograms."""

from __future__ import annotations

from typing import Any

import torch

from t2t.converters.linear import product
from t2t.errors import UnsupportedArgumentError, require
from t2t.network import Network, NetworkTensor
from t2t.registry import converter

__all__ = ["grouped_mm", "histc"]


def _function_meta(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    # torch's own shape function knows half precision only.
    return _meta(mat_a, mat_b, offs, bias, out_dtype)


def _meta(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    del bias
    dtype = out_dtype or self.dtype
    if self.dim() == 2 and mat2.dim() == 2:
        groups = [] if offs is None else [offs.shape[0]]
        return self.new_empty((*groups, self.shape[0], mat2.shape[1]), dtype=dtype)
    batch = self.shape[:-2] if mat2.dim() == 3 else ()
    return self.new_empty((*batch, self.shape[-2], mat2.shape[-1]), dtype=dtype)


def grouped_mm(
    net: Network,
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert (rows, k) by (groups, k, n) to (rows, n).

    ``offs`` says where each group of rows ends. Rows behind the last group, which torch leaves
    undefined, are zeros. Every row is multiplied with every matrix, as the groups' sizes depend on
    the data: time and memory grow with the number of groups.
    """
    del out_dtype  # It is the output's.
    require("bias", bias, None, "torch does not define it")
    if mat_a.dim() == mat_b.dim() == 3 and offs is None:
        return product(net, mat_a, mat_b)
    if (mat_a.dim(), mat_b.dim()) != (2, 3) or offs is None:
        raise UnsupportedArgumentError(
            f"mat_a of rank {mat_a.dim()}, mat_b of rank {mat_b.dim()}: supported: 2 and 3 with "
            "offs, 3 and 3 without"
        )
    rows, groups = mat_a.shape[0], mat_b.shape[0]
    every = net.add_matrix_multiply(mat_a, mat_b, dtype=net.output.dtype)
    row = net.add_linspace([rows], 0, 1, torch.int32)
    end = net.unsqueeze(net.tensor(offs, torch.int32), [1])
    before = net.add_cast(net.add_elementwise(end, row, "GREATER"), torch.int32)
    # A row belongs to the first group that ends behind it.
    earlier = net.add_slice(before, [-1, 0], [groups, rows], mode="FILL", fill=0)
    chosen = net.unsqueeze(net.add_elementwise(before, earlier, "GREATER"), [2])
    return net.add_reduce(net.add_select(chosen, every, 0.0), "SUM", 0, keep_dims=False)


if hasattr(torch.nn.functional, "grouped_mm"):  # PyTorch 2.10 and newer
    converter("torch.nn.functional.grouped_mm", precision="compute", meta=_function_meta)(
        grouped_mm
    )


@converter("aten::_grouped_mm", precision="compute", meta=_meta)
def grouped_mm_operator(
    net: Network,
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> NetworkTensor:
    """Convert the operator behind the function."""
    return grouped_mm(net, self, mat2, offs=offs, bias=bias, out_dtype=out_dtype)


@converter("aten::histc", precision="sensitive")
def histc(
    net: Network, self: torch.Tensor, bins: int = 100, min: Any = 0, max: Any = 0
) -> NetworkTensor:
    """Convert any shape to (bins,): how many elements are in each; those outside count nowhere."""
    if min == max:
        raise UnsupportedArgumentError(
            f"min={min}, max={max}: the bins would depend on the data; give bounds"
        )
    dtype = net.output.dtype
    x = net.reshape(self, (1, -1))
    low, high = (net.tensor(float(bound), torch.float32, 2) for bound in (min, max))
    x = net.tensor(x, torch.float32)
    place = net.add_elementwise(net.add_elementwise(x, low, "SUB"), float(bins), "PROD")
    place = net.add_elementwise(place, float(max - min), "DIV")
    # The greatest element belongs to the last bin.
    place = net.add_elementwise(net.add_unary(place, "FLOOR"), float(bins - 1), "MIN")
    bin_number = torch.arange(bins, dtype=torch.float32).unsqueeze(1)
    hit = net.add_elementwise(place, bin_number, "EQUAL")
    outside = net.add_elementwise(x, high, "GREATER")
    inside = net.add_unary(outside, "NOT")
    counted = net.add_elementwise(hit, inside, "AND")
    total = net.add_reduce(net.tensor(counted, torch.float32), "SUM", 1, keep_dims=False)
    return net.tensor(total, dtype)
