# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""1×1 convolution as a Triton matrix product that computes batch normalization's sums.

In channels-last such a convolution is a product of matrices, rows (batch, height, width) by
channels. A batch normalization after it reads the result twice: for its sums, then to normalize.
The first reading is saved if the product adds up its columns before it stores them:

    x (rows, K)  ·  w (channels, K)ᵀ  =  y (rows, channels)  ─ sums of each channel
                                         y  ─ normalize ─ add ─ ReLU ─ result

Sums are fp32, of the rounded values' differences from the channel's running mean: after some steps
a mean far from zero costs no digits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _fold(tile, bands: tl.constexpr):
    """(rows, columns) → (bands, 8, columns): sums of the rows that one thread holds. A warp holds
    16 rows of a tensor core's result, each thread two of them, 8 apart."""
    rows: tl.constexpr = tile.shape[0]
    split = tl.reshape(tile, [rows // (16 * bands), bands, 2, 8, tile.shape[1]])
    return tl.sum(tl.sum(split, 2), 0)


@triton.jit(do_not_specialize=["rows", "row_tiles", "parts"])
def conv1x1_bn_stats_kernel(
    x, w, y, running_mean, sums, rows, channels, row_tiles, parts, depth: tl.constexpr,
    block_rows: tl.constexpr, block_cols: tl.constexpr, block_depth: tl.constexpr,
    even: tl.constexpr, bands: tl.constexpr,
):  # fmt: skip
    """y = x · wᵀ by tensor descriptors of x, w and y; adds to `sums` as `batch_norm_stats_kernel`
    does. `bands` is the number of warps."""
    slices = channels // block_cols
    slice_index, part = tl.program_id(0) % slices, tl.program_id(0) // slices
    first_col = slice_index * block_cols
    cols = first_col + tl.arange(0, block_cols)
    pivot = tl.load(running_mean + cols)
    pivot = tl.where(tl.abs(pivot) < 1e15, pivot, 0.0)  # the square of more overflows fp32
    total = tl.zeros([bands, 8, block_cols], tl.float32)
    squares = tl.zeros([bands, 8, block_cols], tl.float32)
    for tile in tl.range(part, row_tiles, parts, flatten=True):
        first_row = tile * block_rows
        product = tl.zeros([block_rows, block_cols], tl.float32)
        for at in tl.range(0, depth, block_depth):
            left = x.load([first_row, at])
            right = w.load([first_col, at])
            product = tl.dot(left, right.T, product)
        value = product.to(y.dtype)
        y.store([first_row, first_col], value)
        diff = value.to(tl.float32) - pivot[None, :]
        if not even:
            row = first_row + tl.arange(0, block_rows)
            diff = tl.where((row < rows)[:, None], diff, 0.0)
        total += _fold(diff, bands)
        squares += _fold(diff * diff, bands)
    tl.atomic_add(sums + cols, tl.sum(tl.sum(total, 0), 0), sem="relaxed")
    tl.atomic_add(sums + channels + cols, tl.sum(tl.sum(squares, 0), 0), sem="relaxed")
    if part == 0:
        tl.store(sums + 2 * channels + cols, pivot)
