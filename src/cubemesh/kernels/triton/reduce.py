# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The mean of arrays that came from several GPUs, in Triton: one pass over each."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def average_of_ranks_kernel(mine, others, n, rows: tl.constexpr, block: tl.constexpr):
    """mine (n,) becomes its mean with the rows of others (rows, n); summed in float32, or in
    float64 where that is their type."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < n
    kind = mine.dtype.element_ty
    wide = tl.float64 if kind == tl.float64 else tl.float32
    total = tl.load(mine + at, mask=inside).to(wide)
    for _ in tl.static_range(rows):
        total += tl.load(others + at, mask=inside).to(wide)
        others += n
    tl.store(mine + at, (total / (rows + 1)).to(kind), mask=inside)
