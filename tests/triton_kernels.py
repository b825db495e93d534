"""Kernels for tests; importing this needs Triton."""

import triton
import triton.language as tl


@triton.jit
def scale_kernel(x, y, count, factor, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    tl.store(y + place, tl.load(x + place, mask=inside) * factor, mask=inside)
