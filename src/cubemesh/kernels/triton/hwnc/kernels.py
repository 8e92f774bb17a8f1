# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Convolutions and pools of inference in Triton, in fp16 or 8-bit integers.

Arrays are in the layout HWNC: (height, width, batch, channels). The samples of one pixel are the
rows of a dense matrix, so a convolution is, for each pixel of the result, a sum of matrix products
over the taps that lie inside the image. Borders need no masks: whole taps are left out.

8-bit values are signed: x = scale · (q − zero). Sums of products are exact in 32 bits; what the
zero point adds to them depends on the taps inside the image alone, and is added from `tap_sums`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _first_tap(at, dilation):
    """The first tap inside the image, where tap 0 is at `at`."""
    return tl.maximum((dilation - 1 - at) // dilation, 0)


@triton.jit
def _end_tap(at, size, taps, dilation):
    """One more than the last tap inside an image of `size` pixels."""
    return tl.minimum((size - 1 - at + dilation) // dilation, taps)


@triton.jit
def _stored(value, inverse_scale, zero, dtype: tl.constexpr):
    """fp32 values as they are stored: rounded to even in 8 bits."""
    if dtype == tl.int8:
        value = value * inverse_scale + zero
        value = tl.minimum(tl.maximum(value, -128.0), 127.0)
        return ((value + 12582912.0) - 12582912.0).to(tl.int8)
    return value.to(dtype)


@triton.jit
def _loaded(at, scale, zero):
    """Stored values as fp32."""
    value = tl.load(at)
    if value.dtype == tl.int8:
        return (value.to(tl.float32) - zero) * scale
    return value.to(tl.float32)


@triton.jit
def _finish(
    total, y, residual, scales, biases, row, y_row, residual_row, cols,
    residual_scale, residual_zero, inverse_scale, zero,
    has_residual: tl.constexpr, relu: tl.constexpr,
):  # fmt: skip
    """Scale a sum of products, add bias and residual, apply ReLU, and store it."""
    value = total.to(tl.float32)
    if total.dtype == tl.int32:
        value = value * tl.load(scales + cols)[None, :]
    value += tl.load(biases + cols)[None, :]
    if has_residual:
        at = residual + row[:, None] * residual_row + cols[None, :]
        value += _loaded(at, residual_scale, residual_zero)
    if relu:
        value = tl.maximum(value, 0.0)
    at = y + row[:, None] * y_row + cols[None, :]
    tl.store(at, _stored(value, inverse_scale, zero, y.dtype.element_ty))


_GEOMETRY = (
    *("height", "width", "out_width", "kernel_h", "kernel_w", "stride_h", "stride_w"),
    *("pad_h", "pad_w", "dilation_h", "dilation_w"),
)


@triton.jit(do_not_specialize=_GEOMETRY)
def conv_by_taps_kernel(
    x, weights, y, residual, scales, biases, tap_sums,
    batch, x_row, y_row, residual_row, height, width, out_width, in_channels, out_channels,
    x_zero, residual_scale, residual_zero, inverse_scale, zero,
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
    has_residual: tl.constexpr, relu: tl.constexpr,
    block_n: tl.constexpr, block_c: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """y from x and the weights (kernel_h · kernel_w, out_channels, in_channels).

    A program computes `block_n` samples of one pixel and `block_c` channels. Taps and blocks of
    input channels are one loop, so that the loads of one tap overlap the products of another.
    """
    blocks_c = out_channels // block_c
    blocks_n = batch // block_n
    program = tl.program_id(0)
    part_c, program = program % blocks_c, program // blocks_c
    part_n, pixel = program % blocks_n, program // blocks_n
    top = pixel // out_width * stride_h - pad_h
    left = pixel % out_width * stride_w - pad_w
    first_h = _first_tap(top, dilation_h)
    first_w = _first_tap(left, dilation_w)
    end_h = _end_tap(top, height, kernel_h, dilation_h)
    taps_h = end_h - first_h
    taps_w = _end_tap(left, width, kernel_w, dilation_w) - first_w
    rows = part_n * block_n + tl.arange(0, block_n)
    cols = part_c * block_c + tl.arange(0, block_c)
    k = tl.arange(0, block_k)
    x_block = rows[:, None] * x_row + k[None, :]
    w_block = cols[:, None] * in_channels + k[None, :]
    blocks_k = in_channels // block_k
    if x.dtype.element_ty == tl.int8:
        total = tl.zeros([block_n, block_c], tl.int32)
    else:
        total = tl.zeros([block_n, block_c], tl.float32)
    pixel_size = batch.to(tl.int64) * x_row
    for number in range(taps_h * taps_w * blocks_k):
        tap, part_k = number // blocks_k, number % blocks_k
        tap_h, tap_w = first_h + tap // taps_w, first_w + tap % taps_w
        h, w = top + tap_h * dilation_h, left + tap_w * dilation_w
        source = x + (h * width + w) * pixel_size + part_k * block_k
        matrix = weights + (tap_h * kernel_w + tap_w) * (out_channels * in_channels)
        a = tl.load(source + x_block)
        b = tl.load(matrix + part_k * block_k + w_block)
        total = tl.dot(a, tl.trans(b), total, out_dtype=total.dtype)
    if x.dtype.element_ty == tl.int8:
        inside = tl.zeros([block_c], tl.int32)
        if taps_h * taps_w == kernel_h * kernel_w:
            inside = tl.load(tap_sums + kernel_h * kernel_w * out_channels + cols)
        else:
            for tap in range(taps_h * taps_w):
                at = (first_h + tap // taps_w) * kernel_w + first_w + tap % taps_w
                inside += tl.load(tap_sums + at * out_channels + cols)
        total -= (inside * x_zero)[None, :]
    start = pixel.to(tl.int64) * batch
    _finish(
        total, y + start * y_row, residual + start * residual_row, scales, biases, rows, y_row,
        residual_row, cols, residual_scale, residual_zero, inverse_scale, zero, has_residual, relu,
    )  # fmt: skip


@triton.jit
def conv_by_rows_kernel(
    x, weights, y, residual, scales, biases, tap_sums,
    rows, x_row, y_row, residual_row, out_channels,
    x_zero, residual_scale, residual_zero, inverse_scale, zero,
    has_residual: tl.constexpr, relu: tl.constexpr,
    block_n: tl.constexpr, block_c: tl.constexpr, in_channels: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """A 1×1 convolution of stride 1: a product of `rows` = height · width · batch rows.

    A program holds the weights of `block_c` channels and streams blocks of rows past them.
    """
    blocks_c = out_channels // block_c
    program, programs = tl.program_id(0), tl.num_programs(0)
    part_c, first = program % blocks_c, program // blocks_c
    cols = part_c * block_c + tl.arange(0, block_c)
    k = tl.arange(0, in_channels)
    b = tl.trans(tl.load(weights + cols[:, None] * in_channels + k[None, :]))
    inner = tl.arange(0, block_n)
    if x.dtype.element_ty == tl.int8:
        inside = tl.load(tap_sums + cols) * x_zero
    for block in tl.range(first, rows // block_n, programs // blocks_c, num_stages=stages):
        start = block.to(tl.int64) * block_n
        a = tl.load(x + start * x_row + inner[:, None] * x_row + k[None, :])
        if x.dtype.element_ty == tl.int8:
            total = tl.dot(a, b, out_dtype=tl.int32) - inside[None, :]
        else:
            total = tl.dot(a, b, out_dtype=tl.float32)
        _finish(
            total, y + start * y_row, residual + start * residual_row, scales, biases, inner,
            y_row, residual_row, cols, residual_scale, residual_zero, inverse_scale, zero,
            has_residual, relu,
        )  # fmt: skip


@triton.jit(do_not_specialize=(*_GEOMETRY[:9], "divisor"))
def pool_kernel(
    x, y, batch, channels, x_row, y_row, height, width, out_width,
    scale, x_zero, inverse_scale, zero,
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, divisor,
    average: tl.constexpr, relu: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """The maximum or mean of each window. `divisor`: of a mean; 0 for the number of pixels inside
    the image. A window of one pixel copies, and converts between scales."""
    blocks_c = tl.cdiv(channels, block_c)
    blocks_n = batch // block_n
    program = tl.program_id(0)
    part_c, program = program % blocks_c, program // blocks_c
    part_n, pixel = program % blocks_n, program // blocks_n
    top = pixel // out_width * stride_h - pad_h
    left = pixel % out_width * stride_w - pad_w
    first_h, first_w = tl.maximum(top, 0), tl.maximum(left, 0)
    end_h, end_w = tl.minimum(top + kernel_h, height), tl.minimum(left + kernel_w, width)
    rows = part_n * block_n + tl.arange(0, block_n)
    cols = part_c * block_c + tl.arange(0, block_c)
    keep = (cols < channels)[None, :]
    x_block = rows[:, None] * x_row + cols[None, :]
    pixel_size = batch.to(tl.int64) * x_row
    if average:
        found = tl.zeros([block_n, block_c], tl.float32)
    else:
        found = tl.full([block_n, block_c], float("-inf"), tl.float32)
    for h in range(first_h, end_h):
        for w in range(first_w, end_w):
            here = tl.load(x + (h * width + w) * pixel_size + x_block, mask=keep).to(tl.float32)
            if average:
                found += here
            else:
                found = tl.maximum(found, here, propagate_nan=tl.PropagateNan.ALL)
    count = (end_h - first_h) * (end_w - first_w) if average else 1
    if x.dtype.element_ty == tl.int8:
        found = (found - x_zero * count) * scale
    if average:
        found = found / tl.where(divisor == 0, count, divisor)
    if relu:
        found = tl.maximum(found, 0.0)
    at = y + pixel.to(tl.int64) * batch * y_row + rows[:, None] * y_row + cols[None, :]
    tl.store(at, _stored(found, inverse_scale, zero, y.dtype.element_ty), mask=keep)


@triton.jit
def add_kernel(
    x, other, y, channels, x_row, other_row, y_row,
    scale, x_zero, other_scale, other_zero, inverse_scale, zero,
    relu: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """The sum of two arrays, row by row."""
    rows = tl.program_id(0).to(tl.int64) * block_n + tl.arange(0, block_n)
    for start in range(0, channels, block_c):
        cols = start + tl.arange(0, block_c)
        keep = (cols < channels)[None, :]
        a = tl.load(x + rows[:, None] * x_row + cols[None, :], mask=keep).to(tl.float32)
        b = tl.load(other + rows[:, None] * other_row + cols[None, :], mask=keep).to(tl.float32)
        if x.dtype.element_ty == tl.int8:
            a = (a - x_zero) * scale
        if other.dtype.element_ty == tl.int8:
            b = (b - other_zero) * other_scale
        value = a + b
        if relu:
            value = tl.maximum(value, 0.0)
        at = y + rows[:, None] * y_row + cols[None, :]
        tl.store(at, _stored(value, inverse_scale, zero, y.dtype.element_ty), mask=keep)


@triton.jit
def unfold_columns_kernel(
    x, y, batch, channels, height, width, out_width, stride, pad, inverse_scale, zero,
    taps: tl.constexpr, y_row: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """The network's input, (batch, channels, height, width) in fp32, as (height, out_width, batch,
    y_row): channel c at tap t of the window of a column is at t · channels + c, and pixels outside
    the image are 0. A convolution with few channels then reads the `taps` pixels as one.

    A program goes along one row of pixels, so that the windows that overlap are in the L1 cache."""
    program = tl.program_id(0)
    blocks_n = batch // block_n
    part_n, h = program % blocks_n, program // blocks_n
    rows = part_n * block_n + tl.arange(0, block_n)
    place = tl.arange(0, y_row)
    tap, channel = place // channels, place % channels
    images = x + rows.to(tl.int64)[:, None] * (channels * height * width)
    lines = images + ((channel * height + h) * width + tap)[None, :]
    for out in range(out_width):
        left = out * stride - pad
        inside = (tap < taps) & (tap + left >= 0) & (tap + left < width)
        value = tl.load(lines + left, mask=inside[None, :], other=0.0)
        pixel = ((h * out_width + out).to(tl.int64) * batch + rows) * y_row
        target = y + pixel[:, None] + place[None, :]
        tl.store(target, _stored(value, inverse_scale, zero, y.dtype.element_ty))
