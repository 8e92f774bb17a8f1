# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Mean of arrays from several GPUs in Triton: one pass over each."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
"""Values of a program."""


def average_into(mine: Tensor, others: Tensor) -> None:
    """Replace `mine` (n,) by its mean with the rows of `others` (rows, n)."""
    if mine.numel():
        grid = (-(-mine.numel() // BLOCK),)
        average_of_ranks_kernel[grid](mine, others, mine.numel(), rows=len(others), block=BLOCK)


@triton.jit
def average_of_ranks_kernel(mine, others, n, rows: tl.constexpr, block: tl.constexpr):
    """See `average_into`; summed in fp32, or in fp64 where that is the dtype."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < n
    dtype = mine.dtype.element_ty
    sum_dtype = tl.float64 if dtype == tl.float64 else tl.float32
    total = tl.load(mine + at, mask=inside).to(sum_dtype)
    for _ in tl.static_range(rows):
        total += tl.load(others + at, mask=inside).to(sum_dtype)
        others += n
    tl.store(mine + at, (total / (rows + 1)).to(dtype), mask=inside)
