# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Triton kernels of batch normalization with residual add and ReLU, forward and backward.

The array is a matrix of rows (batch, height, width) by channels, as stored in channels-last. Batch
normalization reads its input twice: for the statistics, then to normalize.

    two launches   forward    x ─ sums of each channel          │  x (+ residual) ─ result
                   backward   gradients, x ─ sums (─ dresidual) │  gradients, x ─ dx
    one launch     both readings in one: the array stays in registers in between

Two launches work for any array. `sums` are five fp32 values per channel, zeroed before: the sum of
x − pivot, of its square, the pivot (a value near the channel's mean); the sum of the gradients, and
of gradients · (x − mean). The second kernel goes through the tiles in reverse: the last tiles of
the first are still in the L2 cache.

One launch reads memory once, where a slice of channels fits into the registers of the GPU:

    channels │ slice 0 │ slice 1 │ …          a slice: `block_cols` channels
    rows     │ part 0  │         │            a part: `block_rows` rows, one program
             │ part 1  │         │
    each part:  load ─ sums ─ atomic add ─ barrier of the slice ─ normalize from registers ─ store

Programs draw their part from an atomic ticket, so that the parts of one slice start before those of
the next. A slice may have as many parts as the GPU runs at once and no more, or the barrier never
completes. Nothing is reset after a launch: ticket and barriers count on. Each launch adds to one of
two sets of sums and zeroes the other for the next.

Sums are fp32, of differences from the pivot: a mean far from zero costs no digits. The ReLU mask is
recomputed from the input, or, after a residual add, stored as one bit per value.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _relu(value):
    """ReLU that propagates NaN, as PyTorch's does."""
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _load(pointer, at, in_bounds, even: tl.constexpr):
    """A tile; 0 in rows past the end."""
    if even:
        return tl.load(pointer + at)
    return tl.load(pointer + at, mask=in_bounds, other=0.0)


@triton.jit
def _store(pointer, at, value, in_bounds, even: tl.constexpr):
    """Store a tile in the dtype of the array, without rows past the end."""
    value = value.to(pointer.dtype.element_ty)
    if even:
        tl.store(pointer + at, value)
    else:
        tl.store(pointer + at, value, mask=in_bounds)


@triton.jit
def _store_bits(relu_bits, positive, row, first_col, rows, channels, block_cols: tl.constexpr):
    """Pack the ReLU mask: one bit per value, eight channels per byte."""
    place = tl.arange(0, 8)
    bits = tl.reshape(positive.to(tl.int32), [positive.shape[0], block_cols // 8, 8])
    packed = tl.sum(bits << place[None, None, :], axis=2)
    col = first_col // 8 + tl.arange(0, block_cols // 8)
    at = row[:, None] * (channels // 8) + col[None, :]
    tl.store(relu_bits + at, packed.to(tl.uint8), mask=(row < rows)[:, None])


@triton.jit
def _load_bits(relu_bits, row, first_col, rows, channels, block_cols: tl.constexpr):
    """The inverse of `_store_bits`, as booleans."""
    place = tl.arange(0, 8)
    col = first_col // 8 + tl.arange(0, block_cols // 8)
    at = row[:, None] * (channels // 8) + col[None, :]
    packed = tl.load(relu_bits + at, mask=(row < rows)[:, None], other=0).to(tl.int32)
    bits = (packed[:, :, None] >> place[None, None, :]) & 1
    return tl.reshape(bits, [row.shape[0], block_cols]) != 0


@triton.jit
def _write_result(
    value, residual, y, relu_bits, row, cols, first_col, rows, channels, scale, shift,
    block_cols: tl.constexpr, even: tl.constexpr, add: tl.constexpr, relu: tl.constexpr,
):  # fmt: skip
    """Normalize, add, apply ReLU and store one tile."""
    in_bounds = (row < rows)[:, None]
    at = row[:, None] * channels + cols[None, :]
    result = value.to(tl.float32) * scale[None, :] + shift[None, :]
    if add:
        result += _load(residual, at, in_bounds, even).to(tl.float32)
    if relu:
        if add:
            _store_bits(relu_bits, result > 0, row, first_col, rows, channels, block_cols)
        result = _relu(result)
    _store(y, at, result, in_bounds, even)


@triton.jit
def _moments(total, squares, pivot, rows, epsilon):
    """Mean, variance and 1 / standard deviation from sums of differences from `pivot`, and of their
    squares."""
    diff = total / rows
    variance = _relu(squares / rows - diff * diff)
    return diff + pivot, variance, 1.0 / tl.sqrt(variance + epsilon)


@triton.jit
def _dx_terms(total, product, mean, rstd, scale, rows):
    """(a, b) of dx = scale · (grad − total / rows − normalized · product / rows)
    = grad · scale + x · a + b; `total` is the sum of grad, `product` of grad · normalized."""
    by_value = -scale * rstd * product / rows
    return by_value, -scale * total / rows - mean * by_value


@triton.jit
def _store_statistics(
    saved_mean, saved_rstd, running_mean, running_variance, cols, mean, rstd, variance, momentum,
    unbiased,
):  # fmt: skip
    """Save the statistics of a slice for the backward pass and update the running ones."""
    tl.store(saved_mean + cols, mean)
    tl.store(saved_rstd + cols, rstd)
    before = tl.load(running_mean + cols)
    tl.store(running_mean + cols, before + momentum * (mean - before))
    before = tl.load(running_variance + cols)
    tl.store(running_variance + cols, before + momentum * (variance * unbiased - before))


@triton.jit
def _masked_gradient(
    dy, second_dy, value, relu_bits, row, cols, first_col, rows, channels, scale, shift,
    block_cols: tl.constexpr, even: tl.constexpr, two_gradients: tl.constexpr,
    add: tl.constexpr, relu: tl.constexpr,
):  # fmt: skip
    """The gradient before the ReLU for one tile, in the dtype of the arrays: the sum of one or two
    gradients of the result, 0 where the ReLU was."""
    in_bounds = (row < rows)[:, None]
    at = row[:, None] * channels + cols[None, :]
    grad = _load(dy, at, in_bounds, even)
    if two_gradients:
        second = _load(second_dy, at, in_bounds, even)
        grad = (grad.to(tl.float32) + second.to(tl.float32)).to(dy.dtype.element_ty)
    if relu:
        if add:
            positive = _load_bits(relu_bits, row, first_col, rows, channels, block_cols)
        else:
            positive = value.to(tl.float32) * scale[None, :] + shift[None, :] > 0
        grad = tl.where(positive, grad, 0.0).to(dy.dtype.element_ty)
    return grad


@triton.jit
def _place(
    rows, channels, tiles, parts, block_rows: tl.constexpr, block_cols: tl.constexpr,
    reverse: tl.constexpr,
):  # fmt: skip
    """(part, first column, columns, rows of the first tile, number of tiles) of this program."""
    slices = channels // block_cols
    slice_index, part = tl.program_id(0) % slices, tl.program_id(0) // slices
    if reverse:
        part = parts - 1 - part
    first_col = slice_index * block_cols
    first_row = part * (tiles * block_rows)
    count = tl.minimum(tiles, (rows - first_row + block_rows - 1) // block_rows)
    row = first_row + tl.arange(0, block_rows)
    return part, first_col, first_col + tl.arange(0, block_cols), row, count


@triton.jit(do_not_specialize=["rows", "tiles", "parts"])
def batch_norm_stats_kernel(
    x, sums, rows, channels, tiles, parts,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr,
):  # fmt: skip
    """First launch forward: sums of x − pivot and its square, into `sums`."""
    part, _, cols, row, count = _place(
        rows, channels, tiles, parts, block_rows, block_cols, reverse=False
    )
    pivot = tl.load(x + cols).to(tl.float32)
    total = tl.zeros([block_rows, block_cols], tl.float32)
    squares = tl.zeros([block_rows, block_cols], tl.float32)
    for tile in range(count):
        now = row + tile * block_rows
        in_bounds = (now < rows)[:, None]
        value = _load(x, now[:, None] * channels + cols[None, :], in_bounds, even)
        diff = value.to(tl.float32) - pivot[None, :]
        if not even:
            diff = tl.where(in_bounds, diff, 0.0)
        total += diff
        squares += diff * diff
    tl.atomic_add(sums + cols, tl.sum(total, 0), sem="relaxed")
    tl.atomic_add(sums + channels + cols, tl.sum(squares, 0), sem="relaxed")
    if part == 0:
        tl.store(sums + 2 * channels + cols, pivot)


@triton.jit(do_not_specialize=["rows", "tiles", "parts"])
def batch_norm_apply_kernel(
    x, residual, y, relu_bits, weight, bias, running_mean, running_variance, saved_mean, saved_rstd,
    sums, rows, channels, tiles, parts, epsilon, momentum, unbiased,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr, add: tl.constexpr,
    relu: tl.constexpr,
):  # fmt: skip
    """Second launch forward: y = relu(norm(x) + residual) from `sums`; saves the statistics and
    updates the running ones. `unbiased` is rows / (rows − 1)."""
    part, first_col, cols, row, count = _place(
        rows, channels, tiles, parts, block_rows, block_cols, reverse=True
    )
    total, squares = tl.load(sums + cols), tl.load(sums + channels + cols)
    pivot = tl.load(sums + 2 * channels + cols)
    mean, variance, rstd = _moments(total, squares, pivot, rows, epsilon)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    for tile in range(count):
        now = row + (count - 1 - tile) * block_rows
        in_bounds = (now < rows)[:, None]
        value = _load(x, now[:, None] * channels + cols[None, :], in_bounds, even)
        _write_result(
            value, residual, y, relu_bits, now, cols, first_col, rows, channels, scale, shift,
            block_cols, even, add, relu,
        )  # fmt: skip
    if part == 0:
        _store_statistics(
            saved_mean, saved_rstd, running_mean, running_variance, cols, mean, rstd, variance,
            momentum, unbiased,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "tiles", "parts"])
def batch_norm_backward_reduce_kernel(
    dy, second_dy, x, relu_bits, weight, bias, saved_mean, saved_rstd, dresidual, sums,
    rows, channels, tiles, parts,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr,
    two_gradients: tl.constexpr, add: tl.constexpr, relu: tl.constexpr,
):  # fmt: skip
    """First launch backward: sums of the gradients, into `sums`; with a residual, its gradient."""
    _, first_col, cols, row, count = _place(
        rows, channels, tiles, parts, block_rows, block_cols, reverse=False
    )
    mean = tl.load(saved_mean + cols)
    scale = tl.load(weight + cols) * tl.load(saved_rstd + cols)
    shift = tl.load(bias + cols) - mean * scale
    total = tl.zeros([block_rows, block_cols], tl.float32)
    product = tl.zeros([block_rows, block_cols], tl.float32)
    for tile in range(count):
        now = row + tile * block_rows
        in_bounds = (now < rows)[:, None]
        at = now[:, None] * channels + cols[None, :]
        value = _load(x, at, in_bounds, even)
        grad = _masked_gradient(
            dy, second_dy, value, relu_bits, now, cols, first_col, rows, channels, scale, shift,
            block_cols, even, two_gradients, add, relu,
        )  # fmt: skip
        if add:
            _store(dresidual, at, grad, in_bounds, even)
        grad_fp32 = grad.to(tl.float32)
        total += grad_fp32
        product += grad_fp32 * (value.to(tl.float32) - mean[None, :])
    tl.atomic_add(sums + 3 * channels + cols, tl.sum(total, 0), sem="relaxed")
    tl.atomic_add(sums + 4 * channels + cols, tl.sum(product, 0), sem="relaxed")


@triton.jit(do_not_specialize=["rows", "tiles", "parts"])
def batch_norm_backward_apply_kernel(
    dy, second_dy, x, relu_bits, weight, bias, saved_mean, saved_rstd, dx, dresidual, dweight,
    dbias, sums, rows, channels, tiles, parts,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr,
    two_gradients: tl.constexpr, add: tl.constexpr, relu: tl.constexpr,
):  # fmt: skip
    """Second launch backward: the gradients of x, weight and bias from `sums`. With a residual,
    `dresidual` already holds the masked gradient."""
    part, first_col, cols, row, count = _place(
        rows, channels, tiles, parts, block_rows, block_cols, reverse=True
    )
    mean, rstd = tl.load(saved_mean + cols), tl.load(saved_rstd + cols)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    total = tl.load(sums + 3 * channels + cols)
    product = tl.load(sums + 4 * channels + cols) * rstd
    by_value, constant = _dx_terms(total, product, mean, rstd, scale, rows)
    for tile in range(count):
        now = row + (count - 1 - tile) * block_rows
        in_bounds = (now < rows)[:, None]
        at = now[:, None] * channels + cols[None, :]
        value = _load(x, at, in_bounds, even)
        if add:
            grad = _load(dresidual, at, in_bounds, even)
        else:
            grad = _masked_gradient(
                dy, second_dy, value, relu_bits, now, cols, first_col, rows, channels, scale, shift,
                block_cols, even, two_gradients, add, relu,
            )  # fmt: skip
        result = grad.to(tl.float32) * scale[None, :] + constant[None, :]
        _store(dx, at, result + value.to(tl.float32) * by_value[None, :], in_bounds, even)
    if part == 0:
        tl.store(dbias + cols, total)
        tl.store(dweight + cols, product)


# One launch


@triton.jit
def _next_part(counters, parts, slices):
    """(launch, slice, part) of the next ticket."""
    ticket = tl.atomic_add(counters, 1)
    launch = ticket // (parts * slices)
    within = (ticket - launch * (parts * slices)).to(tl.int32)
    return launch, within // parts, within % parts


@triton.jit
def _slice_barrier(arrived, target):
    """Wait until all parts of the slice have added their sums."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < target:
        pass
    tl.debug_barrier()


@triton.jit(do_not_specialize=["rows", "parts", "slices"])
def batch_norm_forward_one_launch_kernel(
    x, residual, y, relu_bits, weight, bias, running_mean, running_variance, saved_mean, saved_rstd,
    sums, counters, rows, channels, parts, slices, epsilon, momentum, unbiased,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr, add: tl.constexpr,
    relu: tl.constexpr,
):  # fmt: skip
    """Both launches of the forward pass in one."""
    launch, slice_index, part = _next_part(counters, parts, slices)
    own, other = sums + (launch % 2) * 2 * channels, sums + (launch + 1) % 2 * 2 * channels
    first_col = slice_index * block_cols
    cols = first_col + tl.arange(0, block_cols)
    row = part * block_rows + tl.arange(0, block_rows)
    pivot = tl.load(x + cols).to(tl.float32)
    in_bounds = (row < rows)[:, None]
    value = _load(x, row[:, None] * channels + cols[None, :], in_bounds, even)
    diff = value.to(tl.float32) - pivot[None, :]
    if not even:
        diff = tl.where(in_bounds, diff, 0.0)
    total, squares = tl.sum(diff, 0), tl.sum(diff * diff, 0)
    tl.atomic_add(own + cols, total, sem="relaxed")
    tl.atomic_add(own + channels + cols, squares, sem="relaxed")
    scale, shift = tl.load(weight + cols), tl.load(bias + cols)
    _slice_barrier(counters + 1 + slice_index, (launch + 1) * parts)
    total = tl.load(own + cols, volatile=True)
    squares = tl.load(own + channels + cols, volatile=True)
    mean, variance, rstd = _moments(total, squares, pivot, rows, epsilon)
    scale *= rstd
    shift -= mean * scale
    _write_result(
        value, residual, y, relu_bits, row, cols, first_col, rows, channels, scale, shift,
        block_cols, even, add, relu,
    )  # fmt: skip
    if part == 0:
        _store_statistics(
            saved_mean, saved_rstd, running_mean, running_variance, cols, mean, rstd, variance,
            momentum, unbiased,
        )  # fmt: skip
        zeros = tl.zeros([block_cols], tl.float32)  # and not 0 · mean, which may be NaN
        tl.store(other + cols, zeros)
        tl.store(other + channels + cols, zeros)


@triton.jit(do_not_specialize=["rows", "parts", "slices"])
def batch_norm_backward_one_launch_kernel(
    dy, second_dy, x, relu_bits, weight, bias, saved_mean, saved_rstd, dx, dresidual, dweight,
    dbias, sums, counters, rows, channels, parts, slices,
    block_rows: tl.constexpr, block_cols: tl.constexpr, even: tl.constexpr,
    two_gradients: tl.constexpr, add: tl.constexpr, relu: tl.constexpr,
):  # fmt: skip
    """Both launches of the backward pass in one."""
    launch, slice_index, part = _next_part(counters, parts, slices)
    own, other = sums + (launch % 2) * 2 * channels, sums + (launch + 1) % 2 * 2 * channels
    first_col = slice_index * block_cols
    cols = first_col + tl.arange(0, block_cols)
    row = part * block_rows + tl.arange(0, block_rows)
    mean, rstd = tl.load(saved_mean + cols), tl.load(saved_rstd + cols)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    in_bounds = (row < rows)[:, None]
    at = row[:, None] * channels + cols[None, :]
    value = _load(x, at, in_bounds, even)
    grad = _masked_gradient(
        dy, second_dy, value, relu_bits, row, cols, first_col, rows, channels, scale, shift,
        block_cols, even, two_gradients, add, relu,
    )  # fmt: skip
    if add:
        _store(dresidual, at, grad, in_bounds, even)
    grad_fp32 = grad.to(tl.float32)
    total = tl.sum(grad_fp32, 0)
    product = tl.sum(grad_fp32 * (value.to(tl.float32) - mean[None, :]), 0)
    tl.atomic_add(own + cols, total, sem="relaxed")
    tl.atomic_add(own + channels + cols, product, sem="relaxed")
    _slice_barrier(counters + 1 + slice_index, (launch + 1) * parts)
    total = tl.load(own + cols, volatile=True)
    product = tl.load(own + channels + cols, volatile=True) * rstd
    by_value, constant = _dx_terms(total, product, mean, rstd, scale, rows)
    result = grad.to(tl.float32) * scale[None, :] + constant[None, :]
    _store(dx, at, result + value.to(tl.float32) * by_value[None, :], in_bounds, even)
    if part == 0:
        tl.store(dbias + cols, total)
        tl.store(dweight + cols, product)
        zeros = tl.zeros([block_cols], tl.float32)  # and not 0 · mean, which may be NaN
        tl.store(other + cols, zeros)
        tl.store(other + channels + cols, zeros)
