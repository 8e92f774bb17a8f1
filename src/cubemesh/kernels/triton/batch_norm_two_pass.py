# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Batch normalisation, a sum and a ReLU in two Triton kernels each way: sums, then what needs them.

For arrays too large to stay in registers (`norm_kernels.py`) nothing is gained by one launch: the
second reading comes from memory either way, and programs that wait for one another keep fewer
transfers in flight than two plain kernels, which run at the memory's rate.

    forward     x ─ sums              │  x (+ residual) ─ normalised, rectified
    backward    slopes, x ─ sums      │  slopes, x ─ gradient of x
                (─ gradient of residual: their sum, where the ReLU let it through)

`sums` are five arrays of one float32 a channel, cleared before: of the differences from a value
near the channel's mean, of their squares, that value; of slopes, of slopes times differences from
the mean. The second kernel begins where the first one ended: that lies in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cubemesh.kernels.triton.batch_norm_fused import (
    finish,
    gradient,
    keep_statistics,
    load,
    moments,
    slope_terms,
    store,
)


@triton.jit
def _place(
    rows, channels, tiles, parts, block_rows: tl.constexpr, block_cols: tl.constexpr,
    reverse: tl.constexpr,
):  # fmt: skip
    """(part, first column, columns, rows of the first tile, number of tiles) of this program."""
    slices = channels // block_cols
    which, part = tl.program_id(0) % slices, tl.program_id(0) // slices
    if reverse:
        part = parts - 1 - part
    first_col = which * block_cols
    first_row = part * (tiles * block_rows)
    count = tl.minimum(tiles, (rows - first_row + block_rows - 1) // block_rows)
    row = first_row + tl.arange(0, block_rows)
    return part, first_col, first_col + tl.arange(0, block_cols), row, count


@triton.jit(do_not_specialize=["rows", "tiles", "parts"])
def batch_norm_sums_kernel(
    x, sums, rows, channels, tiles, parts,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr,
):  # fmt: skip
    """Of x, into `sums`."""
    part, _, cols, row, count = _place(
        rows, channels, tiles, parts, block_rows, block_cols, reverse=False
    )
    pivot = tl.load(x + cols).to(tl.float32)
    sum_of = tl.zeros([block_rows, block_cols], tl.float32)
    square_of = tl.zeros([block_rows, block_cols], tl.float32)
    for tile in range(count):
        now = row + tile * block_rows
        keep = (now < rows)[:, None]
        value = load(x, now[:, None] * channels + cols[None, :], keep, even)
        away = value.to(tl.float32) - pivot[None, :]
        if not even:
            away = tl.where(keep, away, 0.0)
        sum_of += away
        square_of += away * away
    tl.atomic_add(sums + cols, tl.sum(sum_of, 0), sem="relaxed")
    tl.atomic_add(sums + channels + cols, tl.sum(square_of, 0), sem="relaxed")
    if part == 0:
        tl.store(sums + 2 * channels + cols, pivot)


@triton.jit(do_not_specialize=["rows", "tiles", "parts"])
def batch_norm_apply_kernel(
    x, residual, y, mask, weight, bias, running_mean, running_variance, saved_mean, saved_rstd,
    sums, rows, channels, tiles, parts, epsilon, momentum, unbiased,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr, adds: tl.constexpr,
    rectifies: tl.constexpr,
):  # fmt: skip
    """y = relu(norm(x) + residual) by known sums, with the statistics saved and the running ones
    updated. `unbiased` is rows / (rows − 1)."""
    part, first_col, cols, row, count = _place(
        rows, channels, tiles, parts, block_rows, block_cols, reverse=True
    )
    total, squares = tl.load(sums + cols), tl.load(sums + channels + cols)
    pivot = tl.load(sums + 2 * channels + cols)
    mean, variance, rstd = moments(total, squares, pivot, rows, epsilon)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    for tile in range(count):
        now = row + (count - 1 - tile) * block_rows
        keep = (now < rows)[:, None]
        value = load(x, now[:, None] * channels + cols[None, :], keep, even)
        finish(
            value, residual, y, mask, now, cols, first_col, rows, channels, scale, shift,
            block_cols, even, adds, rectifies,
        )  # fmt: skip
    if part == 0:
        keep_statistics(
            saved_mean, saved_rstd, running_mean, running_variance, cols, mean, rstd, variance,
            momentum, unbiased,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "tiles", "parts"])
def batch_norm_slope_sums_kernel(
    first, second, x, mask, weight, bias, saved_mean, saved_rstd, dresidual, sums,
    rows, channels, tiles, parts,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr,
    sums_two: tl.constexpr, adds: tl.constexpr, rectifies: tl.constexpr,
):  # fmt: skip
    """Of the slopes, into `sums`; and the gradient of the residual, where one was added."""
    _, first_col, cols, row, count = _place(
        rows, channels, tiles, parts, block_rows, block_cols, reverse=False
    )
    mean = tl.load(saved_mean + cols)
    scale = tl.load(weight + cols) * tl.load(saved_rstd + cols)
    shift = tl.load(bias + cols) - mean * scale
    sum_of = tl.zeros([block_rows, block_cols], tl.float32)
    product_of = tl.zeros([block_rows, block_cols], tl.float32)
    for tile in range(count):
        now = row + tile * block_rows
        keep = (now < rows)[:, None]
        at = now[:, None] * channels + cols[None, :]
        value = load(x, at, keep, even)
        slope = gradient(
            first, second, value, mask, now, cols, first_col, rows, channels, scale, shift,
            block_cols, even, sums_two, adds, rectifies,
        )  # fmt: skip
        if adds:
            store(dresidual, at, slope, keep, even)
        wide = slope.to(tl.float32)
        sum_of += wide
        product_of += wide * (value.to(tl.float32) - mean[None, :])
    tl.atomic_add(sums + 3 * channels + cols, tl.sum(sum_of, 0), sem="relaxed")
    tl.atomic_add(sums + 4 * channels + cols, tl.sum(product_of, 0), sem="relaxed")


@triton.jit(do_not_specialize=["rows", "tiles", "parts"])
def batch_norm_slope_kernel(
    first, second, x, mask, weight, bias, saved_mean, saved_rstd, dx, dresidual, dweight, dbias,
    sums, rows, channels, tiles, parts,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr,
    sums_two: tl.constexpr, adds: tl.constexpr, rectifies: tl.constexpr,
):  # fmt: skip
    """The gradients of x, weight and bias by known sums; of slopes, or of `dresidual`, which has
    them already where a residual was added."""
    part, first_col, cols, row, count = _place(
        rows, channels, tiles, parts, block_rows, block_cols, reverse=True
    )
    mean, rstd = tl.load(saved_mean + cols), tl.load(saved_rstd + cols)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    total = tl.load(sums + 3 * channels + cols)
    product = tl.load(sums + 4 * channels + cols) * rstd
    by_value, constant = slope_terms(total, product, mean, rstd, scale, rows)
    for tile in range(count):
        now = row + (count - 1 - tile) * block_rows
        keep = (now < rows)[:, None]
        at = now[:, None] * channels + cols[None, :]
        value = load(x, at, keep, even)
        if adds:
            slope = load(dresidual, at, keep, even)
        else:
            slope = gradient(
                first, second, value, mask, now, cols, first_col, rows, channels, scale, shift,
                block_cols, even, sums_two, adds, rectifies,
            )  # fmt: skip
        result = slope.to(tl.float32) * scale[None, :] + constant[None, :]
        store(dx, at, result + value.to(tl.float32) * by_value[None, :], keep, even)
    if part == 0:
        tl.store(dbias + cols, total)
        tl.store(dweight + cols, product)
