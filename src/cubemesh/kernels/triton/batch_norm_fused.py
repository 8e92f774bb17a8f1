# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Batch normalisation, a sum and a ReLU in one Triton kernel, forward and backward.

The array is a matrix of rows (batch, height, width) by channels, as it lies in channels-last. A
normalisation needs every row of a channel twice: for its statistics, then to be normalised. One
launch does both, and reads memory once, where a slice of channels fits into the registers of the
GPU:

    channels │ slice 0 │ slice 1 │ …          a slice: `block_cols` channels
    rows     │ part 0  │         │            a part: `block_rows` rows, one program
             │ part 1  │         │
    each part:  load ─ sums ─ add to the slice's sums ─ meet ─ normalise what was loaded ─ store

The parts of a slice meet at a counter in memory. Programs take their part from a ticket, so that
those of a slice start before those of the next, and a slice may have as many parts as fit on the
GPU at once but no more, or they would wait for ever. Nothing is set back after a launch: the ticket
counts on, and with it the launches. Each launch adds to one of two sets of sums and clears the
other for the next. Larger arrays take two launches (`apart_kernels.py`).

Sums are taken in float32, of the differences from the channel's first value: a mean far from zero
costs no digits. What a ReLU let through is recomputed from the input, or, after a sum, kept as one
bit a value.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _take_part(counters, parts, slices):
    """(launch, slice, part): the next that nobody has taken."""
    ticket = tl.atomic_add(counters, 1)
    launch = ticket // (parts * slices)
    within = (ticket - launch * (parts * slices)).to(tl.int32)
    return launch, within // parts, within % parts


@triton.jit
def _meet(arrived, target):
    """Wait until all parts of the slice are here, and see what they added."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < target:
        pass
    tl.debug_barrier()


@triton.jit
def at_least_zero(value):
    """What is no number stays none, as in PyTorch: a loss must show that a network diverges."""
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def load(pointer, at, keep, even: tl.constexpr):
    """A tile, zero where its rows are past the end."""
    if even:
        return tl.load(pointer + at)
    return tl.load(pointer + at, mask=keep, other=0.0)


@triton.jit
def store(pointer, at, value, keep, even: tl.constexpr):
    """A tile, but for rows past the end, in the array's type."""
    value = value.to(pointer.dtype.element_ty)
    if even:
        tl.store(pointer + at, value)
    else:
        tl.store(pointer + at, value, mask=keep)


@triton.jit
def _store_bits(mask, passed, row, first_col, rows, channels, block_cols: tl.constexpr):
    """One bit a value, eight channels a byte."""
    place = tl.arange(0, 8)
    bits = tl.reshape(passed.to(tl.int32), [passed.shape[0], block_cols // 8, 8])
    packed = tl.sum(bits << place[None, None, :], axis=2)
    col = first_col // 8 + tl.arange(0, block_cols // 8)
    at = row[:, None] * (channels // 8) + col[None, :]
    tl.store(mask + at, packed.to(tl.uint8), mask=(row < rows)[:, None])


@triton.jit
def _load_bits(mask, row, first_col, rows, channels, block_cols: tl.constexpr):
    """What `_store_bits` kept, a truth value each."""
    place = tl.arange(0, 8)
    col = first_col // 8 + tl.arange(0, block_cols // 8)
    at = row[:, None] * (channels // 8) + col[None, :]
    packed = tl.load(mask + at, mask=(row < rows)[:, None], other=0).to(tl.int32)
    bits = (packed[:, :, None] >> place[None, None, :]) & 1
    return tl.reshape(bits, [row.shape[0], block_cols]) != 0


@triton.jit
def finish(
    value, residual, y, mask, row, cols, first_col, rows, channels, scale, shift,
    block_cols: tl.constexpr, even: tl.constexpr, adds: tl.constexpr, rectifies: tl.constexpr,
):  # fmt: skip
    """Normalise, add, rectify and store one tile."""
    keep = (row < rows)[:, None]
    at = row[:, None] * channels + cols[None, :]
    result = value.to(tl.float32) * scale[None, :] + shift[None, :]
    if adds:
        result += load(residual, at, keep, even).to(tl.float32)
    if rectifies:
        if adds:
            _store_bits(mask, result > 0, row, first_col, rows, channels, block_cols)
        result = at_least_zero(result)
    store(y, at, result, keep, even)


@triton.jit
def moments(total, squares, pivot, rows, epsilon):
    """Mean, variance and 1 / standard deviation from sums of differences from `pivot`, and of their
    squares."""
    away = total / rows
    variance = at_least_zero(squares / rows - away * away)
    return away + pivot, variance, 1.0 / tl.sqrt(variance + epsilon)


@triton.jit
def slope_terms(total, product, mean, rstd, scale, rows):
    """(a, b) of dx = scale · (slope − total / rows − normalised · product / rows)
    = slope · scale + x · a + b, where `total` sums slopes and `product` slopes times normalised."""
    by_value = -scale * rstd * product / rows
    return by_value, -scale * total / rows - mean * by_value


@triton.jit
def keep_statistics(
    saved_mean, saved_rstd, running_mean, running_variance, cols, mean, rstd, variance, momentum,
    unbiased,
):  # fmt: skip
    """Of a slice: for the backward pass, and in the running ones."""
    tl.store(saved_mean + cols, mean)
    tl.store(saved_rstd + cols, rstd)
    before = tl.load(running_mean + cols)
    tl.store(running_mean + cols, before + momentum * (mean - before))
    before = tl.load(running_variance + cols)
    tl.store(running_variance + cols, before + momentum * (variance * unbiased - before))


@triton.jit(do_not_specialize=["rows", "parts", "slices"])
def batch_norm_forward_kernel(
    x, residual, y, mask, weight, bias, running_mean, running_variance, saved_mean, saved_rstd,
    sums, counters, rows, channels, parts, slices, epsilon, momentum, unbiased,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr, adds: tl.constexpr,
    rectifies: tl.constexpr,
):  # fmt: skip
    """y = relu(norm(x) + residual), with the statistics saved and the running ones updated.
    `unbiased` is rows / (rows − 1)."""
    launch, which, part = _take_part(counters, parts, slices)
    own, other = sums + (launch % 2) * 2 * channels, sums + (launch + 1) % 2 * 2 * channels
    first_col = which * block_cols
    cols = first_col + tl.arange(0, block_cols)
    row = part * block_rows + tl.arange(0, block_rows)
    pivot = tl.load(x + cols).to(tl.float32)
    keep = (row < rows)[:, None]
    value = load(x, row[:, None] * channels + cols[None, :], keep, even)
    away = value.to(tl.float32) - pivot[None, :]
    if not even:
        away = tl.where(keep, away, 0.0)
    total, squares = tl.sum(away, 0), tl.sum(away * away, 0)
    tl.atomic_add(own + cols, total, sem="relaxed")
    tl.atomic_add(own + channels + cols, squares, sem="relaxed")
    scale, shift = tl.load(weight + cols), tl.load(bias + cols)
    _meet(counters + 1 + which, (launch + 1) * parts)
    total = tl.load(own + cols, volatile=True)
    squares = tl.load(own + channels + cols, volatile=True)
    mean, variance, rstd = moments(total, squares, pivot, rows, epsilon)
    scale *= rstd
    shift -= mean * scale
    finish(
        value, residual, y, mask, row, cols, first_col, rows, channels, scale, shift,
        block_cols, even, adds, rectifies,
    )  # fmt: skip
    if part == 0:
        keep_statistics(
            saved_mean, saved_rstd, running_mean, running_variance, cols, mean, rstd, variance,
            momentum, unbiased,
        )  # fmt: skip
        nothing = tl.zeros([block_cols], tl.float32)  # and not 0 · mean, which may be no number
        tl.store(other + cols, nothing)
        tl.store(other + channels + cols, nothing)


@triton.jit
def gradient(
    first, second, value, mask, row, cols, first_col, rows, channels, scale, shift,
    block_cols: tl.constexpr, even: tl.constexpr, sums_two: tl.constexpr, adds: tl.constexpr,
    rectifies: tl.constexpr,
):  # fmt: skip
    """What comes back to one tile of the normalised value, in the arrays' own type."""
    keep = (row < rows)[:, None]
    at = row[:, None] * channels + cols[None, :]
    slope = load(first, at, keep, even)
    if sums_two:
        other = load(second, at, keep, even)
        slope = (slope.to(tl.float32) + other.to(tl.float32)).to(first.dtype.element_ty)
    if rectifies:
        if adds:
            passed = _load_bits(mask, row, first_col, rows, channels, block_cols)
        else:
            passed = value.to(tl.float32) * scale[None, :] + shift[None, :] > 0
        slope = tl.where(passed, slope, 0.0).to(first.dtype.element_ty)
    return slope


@triton.jit(do_not_specialize=["rows", "parts", "slices"])
def batch_norm_backward_kernel(
    first, second, x, mask, weight, bias, saved_mean, saved_rstd, dx, dresidual, dweight, dbias,
    sums, counters, rows, channels, parts, slices,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr,
    sums_two: tl.constexpr, adds: tl.constexpr, rectifies: tl.constexpr,
):  # fmt: skip
    """The gradients of the forward kernel, where `first`, and `second` with `sums_two`, are what
    its readers gave back."""
    launch, which, part = _take_part(counters, parts, slices)
    own, other = sums + (launch % 2) * 2 * channels, sums + (launch + 1) % 2 * 2 * channels
    first_col = which * block_cols
    cols = first_col + tl.arange(0, block_cols)
    row = part * block_rows + tl.arange(0, block_rows)
    mean, rstd = tl.load(saved_mean + cols), tl.load(saved_rstd + cols)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    keep = (row < rows)[:, None]
    at = row[:, None] * channels + cols[None, :]
    value = load(x, at, keep, even)
    slope = gradient(
        first, second, value, mask, row, cols, first_col, rows, channels, scale, shift,
        block_cols, even, sums_two, adds, rectifies,
    )  # fmt: skip
    if adds:
        store(dresidual, at, slope, keep, even)
    wide = slope.to(tl.float32)
    total = tl.sum(wide, 0)
    product = tl.sum(wide * (value.to(tl.float32) - mean[None, :]), 0)
    tl.atomic_add(own + cols, total, sem="relaxed")
    tl.atomic_add(own + channels + cols, product, sem="relaxed")
    _meet(counters + 1 + which, (launch + 1) * parts)
    total = tl.load(own + cols, volatile=True)
    product = tl.load(own + channels + cols, volatile=True) * rstd
    by_value, constant = slope_terms(total, product, mean, rstd, scale, rows)
    result = slope.to(tl.float32) * scale[None, :] + constant[None, :]
    store(dx, at, result + value.to(tl.float32) * by_value[None, :], keep, even)
    if part == 0:
        tl.store(dbias + cols, total)
        tl.store(dweight + cols, product)
        nothing = tl.zeros([block_cols], tl.float32)  # and not 0 · mean, which may be no number
        tl.store(other + cols, nothing)
        tl.store(other + channels + cols, nothing)
