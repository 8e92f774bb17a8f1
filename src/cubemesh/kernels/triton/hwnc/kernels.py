# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Convolutions and pools of inference in Triton, in fp16 or 8-bit integers.

Arrays are in the layout HWNC: (height, width, batch, channels). The samples of one pixel are the
rows of a dense matrix, so a convolution is, for each pixel of the result, a sum of matrix products
over the taps that lie inside the image. Borders need no masks: whole taps are left out.

8-bit values are signed: x = scale · (q − zero). Sums of products are exact in 32 bits. Scales, zero
points and biases are folded into one multiplier and one offset for each channel; the offset counts
the zero point of the input for all taps, and `tap_sums` takes back those outside the image.
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
def _stored(value, dtype: tl.constexpr):
    """fp32 values as they are stored: in 8 bits rounded to even, from −128 to 127."""
    if dtype == tl.int8:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .s32 a, b, c, d, high;
            cvt.rni.s32.f32 a, $1;
            cvt.rni.s32.f32 b, $2;
            cvt.rni.s32.f32 c, $3;
            cvt.rni.s32.f32 d, $4;
            cvt.pack.sat.s8.s32.b32 high, d, c, 0;
            cvt.pack.sat.s8.s32.b32 $0, b, a, high;
            }
            """,
            "=r,f,f,f,f",
            [value],
            dtype=tl.int8,
            is_pure=True,
            pack=4,
        )
    return value.to(dtype)


@triton.jit
def _larger(one, other):
    """The maximum of stored values; a NaN remains one."""
    if one.dtype == tl.int8:  # as 16 bits, two at a time
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b, c, d;
            prmt.b32 a, $1, 0, 0x9180;
            prmt.b32 b, $2, 0, 0x9180;
            prmt.b32 c, $1, 0, 0xB3A2;
            prmt.b32 d, $2, 0, 0xB3A2;
            max.s16x2 a, a, b;
            max.s16x2 c, c, d;
            prmt.b32 $0, a, c, 0x6420;
            }
            """,
            "=r,r,r",
            [one, other],
            dtype=tl.int8,
            is_pure=True,
            pack=4,
        )
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _wait():
    """Wait for the results of the kernels before. Weights may be read earlier."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def _let_next_begin():
    """Let the programs of the next kernel begin where there is space. Done early they crowd on few
    multiprocessors."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _scaled(total, multipliers, cols):
    """A sum of products as real numbers in units of the result."""
    value = total.to(tl.float32)
    if total.dtype == tl.int32:
        value = value * tl.load(multipliers + cols)[None, :]
    return value


@triton.jit
def _finish(
    value, y, residual, offsets, row, y_row, residual_row, cols, residual_multiplier, low, keep,
    has_residual: tl.constexpr, clamp: tl.constexpr,
):  # fmt: skip
    """Add offset and residual to a scaled sum, clamp it from below, and store the rows of `keep`,
    or all where it is None."""
    value += tl.load(offsets + cols)[None, :]
    if has_residual:
        at = residual + row[:, None] * residual_row + cols[None, :]
        added = tl.load(at) if keep is None else tl.load(at, mask=keep[:, None], other=0)
        value += added.to(tl.float32) * residual_multiplier
    if clamp:
        value = tl.maximum(value, low)
    at = y + row[:, None] * y_row + cols[None, :]
    if keep is None:
        tl.store(at, _stored(value, y.dtype.element_ty))
    else:
        tl.store(at, _stored(value, y.dtype.element_ty), mask=keep[:, None])


_GEOMETRY = (
    *("height", "width", "out_width", "kernel_h", "kernel_w", "stride_h", "stride_w"),
    *("pad_h", "pad_w", "dilation_h", "dilation_w"),
)


_PROJECTION = ("p_width", "p_stride_h", "p_stride_w")


@triton.jit(do_not_specialize=(*_GEOMETRY, *_PROJECTION))
def conv_by_taps_kernel(
    x, weights, y, residual, multipliers, offsets,
    p, p_weights, p_multipliers, p_row, p_width, p_channels, p_stride_h, p_stride_w,
    tap_sums, batch, x_row, y_row, residual_row, height, width, out_width, in_channels,
    out_channels, x_zero, residual_multiplier, low,
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
    has_residual: tl.constexpr, has_projection: tl.constexpr, clamp: tl.constexpr,
    across: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """y from x and the weights (kernel_h · kernel_w, out_channels, in_channels).

    A program computes `block_n` samples of one pixel and `block_c` channels. Taps and blocks of
    input channels are one loop, so that the loads of one tap overlap the products of another.
    `across`: the input channels of a tap are so many each of neighboring pixels. A projection of
    another array `p`, a 1×1 convolution with its own stride, is added.
    """
    _wait()
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
    if across:
        x_block = rows[:, None] * across + (k // across * (batch * across) + k % across)[None, :]
        k_step = batch * block_k
    else:
        x_block = rows[:, None] * x_row + k[None, :]
        k_step = block_k
    w_block = cols[:, None] * in_channels + k[None, :]
    blocks_k = in_channels // block_k
    if x.dtype.element_ty == tl.int8:
        total = tl.zeros([block_n, block_c], tl.int32)
    else:
        total = tl.zeros([block_n, block_c], tl.float32)
    pixel_size = tl.cast(batch, tl.int64) * x_row
    for number in range(taps_h * taps_w * blocks_k):
        tap, part_k = number // blocks_k, number % blocks_k
        tap_h, tap_w = first_h + tap // taps_w, first_w + tap % taps_w
        h, w = top + tap_h * dilation_h, left + tap_w * dilation_w
        source = x + (h * width + w) * pixel_size + part_k * k_step
        matrix = weights + (tap_h * kernel_w + tap_w) * (out_channels * in_channels)
        a = tl.load(source + x_block)
        b = tl.load(matrix + part_k * block_k + w_block)
        total = tl.dot(a, tl.trans(b), total, out_dtype=total.dtype)
    if x.dtype.element_ty == tl.int8:  # noqa: SIM102 (known at compile time, unlike the next)
        if taps_h * taps_w != kernel_h * kernel_w:
            outside = tl.load(tap_sums + kernel_h * kernel_w * out_channels + cols)
            for tap in range(taps_h * taps_w):
                at = (first_h + tap // taps_w) * kernel_w + first_w + tap % taps_w
                outside -= tl.load(tap_sums + at * out_channels + cols)
            total += (outside * x_zero)[None, :]
    if has_projection:
        other = total
        if x.dtype.element_ty == tl.int8:
            other = tl.zeros([block_n, block_c], tl.int32)
        h, w = pixel // out_width * p_stride_h, pixel % out_width * p_stride_w
        p_block = p + (h * p_width + w) * (tl.cast(batch, tl.int64) * p_row) + rows[:, None] * p_row
        p_block += k[None, :]
        w_block = cols[:, None] * p_channels + k[None, :]
        for part_k in range(p_channels // block_k):
            a = tl.load(p_block + part_k * block_k)
            b = tl.load(p_weights + part_k * block_k + w_block)
            other = tl.dot(a, tl.trans(b), other, out_dtype=other.dtype)
        if x.dtype.element_ty == tl.int8:
            value = _scaled(total, multipliers, cols) + _scaled(other, p_multipliers, cols)
        else:
            value = other
    else:
        value = _scaled(total, multipliers, cols)
    _let_next_begin()
    start = pixel.to(tl.int64) * batch
    _finish(
        value, y + start * y_row, residual + start * residual_row, offsets, rows,
        y_row, residual_row, cols, residual_multiplier, low, None, has_residual, clamp,
    )  # fmt: skip


@triton.jit(do_not_specialize=(*_GEOMETRY, *_PROJECTION, "rows", "splits"))
def conv_by_pixels_kernel(
    x, weights, y, residual, multipliers, offsets,
    p, p_weights, p_multipliers, p_row, p_width, p_channels, p_stride_h, p_stride_w,
    border, partial, arrived, rows, splits, batch, x_row, y_row, residual_row, height, width,
    out_width, in_channels, out_channels, residual_multiplier, low,
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
    has_residual: tl.constexpr, has_projection: tl.constexpr, clamp: tl.constexpr,
    across: tl.constexpr, line_pixels: tl.constexpr, padded: tl.constexpr, split: tl.constexpr,
    block_n: tl.constexpr, block_c: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """The convolution of `conv_by_taps_kernel` for any batch: the rows of a product, `rows` in all,
    are samples of several pixels. Taps outside the image read `border`, the stored 0.

    With `split`, `splits` programs share the taps and input channels of a block. Each writes its
    sum to `partial`; the last to arrive adds them in order and sets `arrived` to 0 again.
    """
    blocks_c = out_channels // block_c
    blocks_n = tl.cdiv(rows, block_n)
    program = tl.program_id(0)
    part_c, program = program % blocks_c, program // blocks_c
    part_n, part = program % blocks_n, program // blocks_n
    row = part_n * block_n + tl.arange(0, block_n)
    keep = row < rows
    inner = tl.minimum(row, rows - 1)
    pixel, sample = inner // batch, inner % batch
    out_h, out_w = pixel // out_width, pixel % out_width
    top, left = out_h * stride_h - pad_h, out_w * stride_w - pad_w
    cols = part_c * block_c + tl.arange(0, block_c)
    k = tl.arange(0, block_k)
    k_at = k
    k_step = block_k
    if across:
        pixel_k = k // across
        k_at = (pixel_k // line_pixels * width + pixel_k % line_pixels) * (batch * across)
        k_at += k % across
        if block_k >= across * line_pixels:
            k_step = block_k // (across * line_pixels) * width * batch * across
        else:
            k_step = batch * block_k
    w_block = cols[:, None] * in_channels + k[None, :]
    blocks_k = in_channels // block_k
    steps = kernel_h * kernel_w * blocks_k
    first, last = 0, steps
    p_first, p_last = 0, 0
    if has_projection:
        p_last = p_channels // block_k
    if split:
        share = tl.cdiv(steps + p_last, splits)
        first, end = part * share, part * share + share
        p_first = tl.maximum(first - steps, 0)
        p_last = tl.minimum(tl.maximum(end - steps, 0), p_last)
        last = tl.minimum(end, steps)
    if x.dtype.element_ty == tl.int8:
        total = tl.zeros([block_n, block_c], tl.int32)
    else:
        total = tl.zeros([block_n, block_c], tl.float32)
    _wait()
    for number in range(first, last):
        tap, part_k = number // blocks_k, number % blocks_k
        tap_h, tap_w = tap // kernel_w, tap % kernel_w
        h, w = top + tap_h * dilation_h, left + tap_w * dilation_w
        source = x + ((h * width + w) * batch + sample) * x_row + part_k * k_step
        if padded:
            inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
            source = tl.where(inside, source, border)
        matrix = weights + tap * (out_channels * in_channels)
        a = tl.load(source[:, None] + k_at[None, :])
        b = tl.load(matrix + part_k * block_k + w_block)
        total = tl.dot(a, tl.trans(b), total, out_dtype=total.dtype)
    if has_projection:
        other = total
        if x.dtype.element_ty == tl.int8:
            other = tl.zeros([block_n, block_c], tl.int32)
        h, w = out_h * p_stride_h, out_w * p_stride_w
        p_block = p + (((h * p_width + w) * batch + sample) * p_row)[:, None] + k[None, :]
        w_block = cols[:, None] * p_channels + k[None, :]
        for part_k in range(p_first, p_last):
            a = tl.load(p_block + part_k * block_k)
            b = tl.load(p_weights + part_k * block_k + w_block)
            other = tl.dot(a, tl.trans(b), other, out_dtype=other.dtype)
        if x.dtype.element_ty == tl.int8:
            value = _scaled(total, multipliers, cols) + _scaled(other, p_multipliers, cols)
        else:
            value = other
    else:
        value = _scaled(total, multipliers, cols)
    _let_next_begin()
    if split:
        blocks = blocks_n * blocks_c
        block = part_n * blocks_c + part_c
        at = tl.arange(0, block_n)[:, None] * block_c + tl.arange(0, block_c)[None, :]
        at += partial + block * (block_n * block_c)
        tl.store(at + part * blocks * (block_n * block_c), value)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + block, 1)
        if before == splits - 1:
            value = tl.load(at)
            for other_part in range(1, splits):
                value += tl.load(at + other_part * blocks * (block_n * block_c))
            _finish(
                value, y, residual, offsets, row, y_row, residual_row, cols, residual_multiplier,
                low, keep, has_residual, clamp,
            )  # fmt: skip
            tl.store(arrived + block, 0)
    else:
        _finish(
            value, y, residual, offsets, row, y_row, residual_row, cols, residual_multiplier, low,
            keep, has_residual, clamp,
        )  # fmt: skip


@triton.jit(do_not_specialize=("width", "out_width", "stride_h", "stride_w", *_PROJECTION))
def conv_by_rows_kernel(
    x, weights, y, residual, multipliers, offsets,
    p, p_weights, p_multipliers, p_row, p_width, p_channels: tl.constexpr, p_stride_h, p_stride_w,
    rows, batch, x_row, y_row, residual_row, out_channels, width, out_width, stride_h, stride_w,
    residual_multiplier, low,
    has_residual: tl.constexpr, has_projection: tl.constexpr, clamp: tl.constexpr,
    strided: tl.constexpr, p_strided: tl.constexpr,
    block_n: tl.constexpr, block_c: tl.constexpr, in_channels: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """A 1×1 convolution without padding: a product of `rows` = height · width · batch rows of the
    result. A program holds the weights of `block_c` channels, and those of the projection, and
    streams blocks of rows past them."""
    blocks_c = out_channels // block_c
    program, programs = tl.program_id(0), tl.num_programs(0)
    part_c, first = program % blocks_c, program // blocks_c
    cols = part_c * block_c + tl.arange(0, block_c)
    k = tl.arange(0, in_channels)
    b = tl.trans(tl.load(weights + cols[:, None] * in_channels + k[None, :]))
    inner = tl.arange(0, block_n)
    x_block = inner[:, None] * x_row + k[None, :]
    if has_projection:
        p_k = tl.arange(0, p_channels)
        p_b = tl.trans(tl.load(p_weights + cols[:, None] * p_channels + p_k[None, :]))
        p_block = inner[:, None] * p_row + p_k[None, :]
    _wait()
    for block in tl.range(first, rows // block_n, programs // blocks_c, num_stages=stages):
        start = block.to(tl.int64) * block_n
        source = start
        if strided:
            pixel = start // batch
            h, w = pixel // out_width * stride_h, pixel % out_width * stride_w
            source = (h * width + w) * batch + start % batch
        a = tl.load(x + source * x_row + x_block)
        if x.dtype.element_ty == tl.int8:
            total = tl.dot(a, b, out_dtype=tl.int32)
        else:
            total = tl.dot(a, b, out_dtype=tl.float32)
        if has_projection:
            source = start
            if p_strided:
                pixel = start // batch
                h, w = pixel // out_width * p_stride_h, pixel % out_width * p_stride_w
                source = (h * p_width + w) * batch + start % batch
            a = tl.load(p + source * p_row + p_block)
            if x.dtype.element_ty == tl.int8:
                other = tl.dot(a, p_b, out_dtype=tl.int32)
                value = _scaled(total, multipliers, cols) + _scaled(other, p_multipliers, cols)
            else:
                value = tl.dot(a, p_b, total, out_dtype=tl.float32)
        else:
            value = _scaled(total, multipliers, cols)
        _finish(
            value, y + start * y_row, residual + start * residual_row, offsets,
            inner, y_row, residual_row, cols, residual_multiplier, low, None, has_residual, clamp,
        )  # fmt: skip
    _let_next_begin()


@triton.jit(do_not_specialize=("width", "out_width", "segment"))
def conv_by_lines_kernel(
    x, weights, y, multipliers, offsets, batch, y_row, out_channels, width, out_width, segment, low,
    clamp: tl.constexpr, x_row: tl.constexpr, lines: tl.constexpr, line_pixels: tl.constexpr,
    samples: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """A convolution with stride 1 of few channels, without padding: windows of `lines` lines of 2
    or 4 pixels, which are the input channels of `conv_by_taps_kernel`. A program goes along
    `segment` pixels of a line of the result, or of neighboring lines with `samples` samples each.
    It reads each pixel of its lines once, and adds its products to the results of all windows in
    which it is."""
    blocks_c = out_channels // block_c
    blocks_n = batch // samples
    segments = out_width // segment
    program = tl.program_id(0)
    part_c, program = program % blocks_c, program // blocks_c
    part_n, program = program % blocks_n, program // blocks_n
    first, h = program % segments * segment, program // segments * (block_n // samples)
    cols = part_c * block_c + tl.arange(0, block_c)
    k = tl.arange(0, lines * x_row)
    line_k, channel = k // x_row, k % x_row
    w_block = line_k * (out_channels * line_pixels * x_row) + channel
    w_block = cols[:, None] * (line_pixels * x_row) + w_block[None, :]
    b0 = tl.trans(tl.load(weights + w_block))
    b1 = tl.trans(tl.load(weights + x_row + w_block))
    if line_pixels == 4:
        b2 = tl.trans(tl.load(weights + 2 * x_row + w_block))
        b3 = tl.trans(tl.load(weights + 3 * x_row + w_block))
    inner = tl.arange(0, block_n)
    line, sample = inner // samples, part_n * samples + inner % samples
    x_line = (line_k * width * batch).to(tl.int64) * x_row + channel
    x_block = (((h + line) * width).to(tl.int64) * batch + sample) * x_row
    x_block = x_block[:, None] + x_line[None, :]
    y_block = (((h + line) * out_width).to(tl.int64) * batch + sample) * y_row
    y_block = y_block[:, None] + cols[None, :]
    dtype: tl.constexpr = tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32
    t0 = tl.zeros([block_n, block_c], dtype)  # of the window that ends at this pixel
    t1 = tl.zeros([block_n, block_c], dtype)
    t2 = tl.zeros([block_n, block_c], dtype)
    offset = tl.load(offsets + cols)[None, :]
    if dtype == tl.int32:
        multiplier = tl.load(multipliers + cols)[None, :]
    _wait()
    end = first + (segment + line_pixels - 1 + 3) // 4 * 4
    for w in tl.range(first, end, num_stages=stages, loop_unroll_factor=4):
        a = tl.load(x + (tl.minimum(w, width - 1) * batch).to(tl.int64) * x_row + x_block)
        if line_pixels == 4:
            t0 = tl.dot(a, b3, t0, out_dtype=dtype)
            t1 = tl.dot(a, b2, t1, out_dtype=dtype)
            t2 = tl.dot(a, b1, t2, out_dtype=dtype)
        else:
            t0 = tl.dot(a, b1, t0, out_dtype=dtype)
        t3 = tl.dot(a, b0, out_dtype=dtype)
        out_w = w - (line_pixels - 1)
        value = t0.to(tl.float32)
        if dtype == tl.int32:
            value *= multiplier
        value += offset
        if clamp:
            value = tl.maximum(value, low)
        at = y + (out_w * batch).to(tl.int64) * y_row + y_block
        written = (out_w >= first) & (out_w < first + segment)
        tl.store(at, _stored(value, y.dtype.element_ty), mask=written)
        if line_pixels == 4:
            t0, t1, t2 = t1, t2, t3
        else:
            t0 = t3
    _let_next_begin()


@triton.jit
def _channel(words, number: tl.constexpr, dtype: tl.constexpr):
    """One of the channels in words of 32 bits: four of int8, two of fp16."""
    if dtype == tl.int8:
        found = (words >> (8 * number)).to(tl.int8)
    else:
        found = (words >> (16 * number)).to(tl.int16).to(dtype, bitcast=True)
    return found


@triton.jit(do_not_specialize=("pixels", "width", "out_width", "stride_h", "stride_w"))
def conv_by_windows_kernel(
    x, weights, y, residual, multipliers, offsets,
    pixels, batch, y_row, residual_row, out_channels, width, out_width, stride_h, stride_w,
    residual_multiplier, low,
    has_residual: tl.constexpr, clamp: tl.constexpr, line_pixels: tl.constexpr,
    planes: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr, in_channels: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """A convolution of an image with rows of 4 channels and its border: `in_channels` are those of
    a whole window, `line_pixels` of each of its lines. Weights are (4, out_channels, pixels of a
    window), of which only the first `planes` are not 0. The channels of a pixel are loaded as
    words, so that neighboring samples are neighboring words. A program holds the weights and goes
    along neighboring pixels, whose windows overlap in the L1 cache."""
    blocks_c = out_channels // block_c
    program, programs = tl.program_id(0) // blocks_c, tl.num_programs(0) // blocks_c
    part_c = tl.program_id(0) % blocks_c
    cols = part_c * block_c + tl.arange(0, block_c)
    window: tl.constexpr = in_channels // 4
    k = tl.arange(0, window)
    w_block = cols[:, None] * window + k[None, :]
    plane = out_channels * window
    b0 = tl.trans(tl.load(weights + w_block))
    if planes > 1:
        b1 = tl.trans(tl.load(weights + plane + w_block))
    if planes > 2:
        b2 = tl.trans(tl.load(weights + 2 * plane + w_block))
    if planes > 3:
        b3 = tl.trans(tl.load(weights + 3 * plane + w_block))
    _wait()
    dtype: tl.constexpr = x.dtype.element_ty
    sum_dtype: tl.constexpr = tl.int32 if dtype == tl.int8 else tl.float32
    pixel_words: tl.constexpr = 1 if dtype == tl.int8 else 2
    words = x.to(tl.pointer_type(tl.int32))
    inner = tl.arange(0, block_n)
    x_block = inner[:, None] + ((k // line_pixels * width + k % line_pixels) * batch)[None, :]
    x_block *= pixel_words
    blocks = batch // block_n * pixels
    share = tl.cdiv(blocks, programs)
    last = tl.minimum((program + 1) * share, blocks)
    for block in tl.range(program * share, last, num_stages=stages):
        part_n, pixel = block // pixels, block % pixels
        h, w = pixel // out_width * stride_h, pixel % out_width * stride_w
        source = (h * width + w).to(tl.int64) * batch + part_n * block_n
        a = tl.load(words + source * pixel_words + x_block)
        total = tl.dot(_channel(a, 0, dtype), b0, out_dtype=sum_dtype)
        if planes > 1:
            total = tl.dot(_channel(a, 1, dtype), b1, total, out_dtype=sum_dtype)
        if pixel_words > 1:
            if planes > 2:
                a = tl.load(words + source * pixel_words + 1 + x_block)
                total = tl.dot(_channel(a, 0, dtype), b2, total, out_dtype=sum_dtype)
            if planes > 3:
                total = tl.dot(_channel(a, 1, dtype), b3, total, out_dtype=sum_dtype)
        else:
            if planes > 2:
                total = tl.dot(_channel(a, 2, dtype), b2, total, out_dtype=sum_dtype)
            if planes > 3:
                total = tl.dot(_channel(a, 3, dtype), b3, total, out_dtype=sum_dtype)
        start = pixel.to(tl.int64) * batch + part_n * block_n
        _finish(
            _scaled(total, multipliers, cols), y + start * y_row, residual + start * residual_row,
            offsets, inner, y_row, residual_row, cols, residual_multiplier, low, None,
            has_residual, clamp,
        )  # fmt: skip
    _let_next_begin()


@triton.jit
def _pixel(x, h, w, height, width, batch, sample, x_row, cols, keep):
    """Channels of a pixel, or of the nearest one at the border of the image."""
    h = tl.minimum(tl.maximum(h, 0), height - 1)
    w = tl.minimum(tl.maximum(w, 0), width - 1)
    source = ((h * width + w).to(tl.int64) * batch + sample) * x_row
    return tl.load(x + source[:, None] + cols[None, :], mask=keep)


@triton.jit(do_not_specialize=("rows", "height", "width", "out_width", *_GEOMETRY[5:9]))
def max_pool_kernel(
    x, y, rows, batch, channels, x_row, y_row, height, width, out_width,
    stride_h, stride_w, pad_h, pad_w, multiplier, offset, low,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, as_stored: tl.constexpr, clamp: tl.constexpr,
    block_n: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """The maximum of each window, for blocks of `rows`, samples of neighboring pixels. Pixels
    outside the image are replaced by those at its border, which are in the window too. `as_stored`:
    x and y have the same scale. A window of one pixel copies, and converts between scales."""
    _wait()
    blocks_c = tl.cdiv(channels, block_c)
    part_c, part_n = tl.program_id(0) % blocks_c, tl.program_id(0) // blocks_c
    row = part_n * block_n + tl.arange(0, block_n)
    pixel, sample = row // batch, row % batch
    top = pixel // out_width * stride_h - pad_h
    left = pixel % out_width * stride_w - pad_w
    cols = part_c * block_c + tl.arange(0, block_c)
    keep = (row < rows)[:, None] & (cols < channels)[None, :]
    found = _pixel(x, top, left, height, width, batch, sample, x_row, cols, keep)
    for i in tl.static_range(kernel_h):
        for j in tl.static_range(kernel_w):
            if i + j > 0:
                here = _pixel(x, top + i, left + j, height, width, batch, sample, x_row, cols, keep)
                found = _larger(found, here)
    _let_next_begin()
    at = y + (row.to(tl.int64) * y_row)[:, None] + cols[None, :]
    if as_stored:
        tl.store(at, found, mask=keep)
    else:
        value = found.to(tl.float32) * multiplier + offset
        if clamp:
            value = tl.maximum(value, low)
        tl.store(at, _stored(value, y.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=(*_GEOMETRY[:9], "divisor"))
def average_pool_kernel(
    x, y, batch, channels, x_row, y_row, height, width, out_width,
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, divisor, x_zero, multiplier, offset, low,
    clamp: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr, block_t: tl.constexpr,
):  # fmt: skip
    """The mean of each window. `divisor`: 0 for the number of pixels inside the image. `block_t`
    pixels of a window are read at once."""
    _wait()
    blocks_c = tl.cdiv(channels, block_c)
    blocks_n = batch // block_n
    program = tl.program_id(0)
    part_c, program = program % blocks_c, program // blocks_c
    part_n, pixel = program % blocks_n, program // blocks_n
    top = pixel // out_width * stride_h - pad_h
    left = pixel % out_width * stride_w - pad_w
    first_h, first_w = tl.maximum(top, 0), tl.maximum(left, 0)
    taps_h = tl.minimum(top + kernel_h, height) - first_h
    taps_w = tl.minimum(left + kernel_w, width) - first_w
    rows = part_n * block_n + tl.arange(0, block_n)
    cols = part_c * block_c + tl.arange(0, block_c)
    keep = (cols < channels)[None, :]
    x_block = rows[:, None] * x_row + cols[None, :]
    pixel_size = tl.cast(batch, tl.int64) * x_row
    count = taps_h * taps_w
    if x.dtype.element_ty == tl.int8:
        total = tl.zeros([block_n, block_c], tl.int32)
    else:
        total = tl.zeros([block_n, block_c], tl.float32)
    if block_t == 1:
        for tap in tl.range(count, num_stages=4):
            pixel_in = (first_h + tap // taps_w) * width + first_w + tap % taps_w
            total += tl.load(x + pixel_in * pixel_size + x_block, mask=keep).to(total.dtype)
    else:
        for start in range(0, count, block_t):
            tap = start + tl.arange(0, block_t)
            pixel_in = (first_h + tap // taps_w) * width + first_w + tap % taps_w
            at = (pixel_in * pixel_size)[:, None, None] + x_block[None, :, :]
            wanted = (tap < count)[:, None, None] & keep[None, :, :]
            total += tl.sum(tl.load(x + at, mask=wanted, other=0).to(total.dtype), 0)
    _let_next_begin()
    value = (total.to(tl.float32) - x_zero * count) / tl.where(divisor == 0, count, divisor)
    value = value * multiplier + offset
    if clamp:
        value = tl.maximum(value, low)
    at = y + pixel.to(tl.int64) * batch * y_row + rows[:, None] * y_row + cols[None, :]
    tl.store(at, _stored(value, y.dtype.element_ty), mask=keep)


@triton.jit
def add_kernel(
    x, other, y, channels, x_row, other_row, y_row, multiplier, other_multiplier, offset, low,
    clamp: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """The sum of two arrays, row by row."""
    _wait()
    rows = tl.program_id(0).to(tl.int64) * block_n + tl.arange(0, block_n)
    for start in range(0, channels, block_c):
        cols = start + tl.arange(0, block_c)
        keep = (cols < channels)[None, :]
        a = tl.load(x + rows[:, None] * x_row + cols[None, :], mask=keep)
        b = tl.load(other + rows[:, None] * other_row + cols[None, :], mask=keep)
        value = a.to(tl.float32) * multiplier + b.to(tl.float32) * other_multiplier + offset
        if clamp:
            value = tl.maximum(value, low)
        at = y + rows[:, None] * y_row + cols[None, :]
        tl.store(at, _stored(value, y.dtype.element_ty), mask=keep)
    _let_next_begin()


@triton.jit
def _image_plane(
    x, lines, width, h, w, inside, channel, channels, plane,
):  # fmt: skip
    """A channel of some pixels of a line of the network's input, 0 outside the image."""
    at = (lines + channel * plane + h * width)[None, :] + w[:, None]
    return tl.load(x + at, mask=(inside & (channel < channels))[:, None], other=0.0)


@triton.jit
def _image_channels(x, lines, height, width, h, cols, left, fold: tl.constexpr, channel, channels):
    """A channel of blocks of `fold` × `fold` pixels: (pixels, samples), or (…, rows, columns)."""
    plane = height * width
    if fold == 1:
        w = cols - left
        inside = (w >= 0) & (w < width) & (h >= 0) & (h < height)
        found = _image_plane(x, lines, width, h, w, inside, channel, channels, plane)
    else:
        w = cols * 2 - left
        above, below = (h >= 0) & (h < height), (h + 1 >= 0) & (h + 1 < height)
        one, two = (w >= 0) & (w < width), (w + 1 >= 0) & (w + 1 < width)
        p00 = _image_plane(x, lines, width, h, w, one & above, channel, channels, plane)
        p01 = _image_plane(x, lines, width, h, w + 1, two & above, channel, channels, plane)
        p10 = _image_plane(x, lines, width, h + 1, w, one & below, channel, channels, plane)
        p11 = _image_plane(x, lines, width, h + 1, w + 1, two & below, channel, channels, plane)
        found = tl.join(tl.join(p00, p10), tl.join(p01, p11))
    return found


@triton.jit(
    do_not_specialize=("channels", "height", "width", "out_height", "out_width", "top", "left")
)
def image_kernel(
    x, y, batch, channels, height, width, out_height, out_width, top, left, multiplier, zero,
    fold: tl.constexpr, block_n: tl.constexpr, block_w: tl.constexpr,
):  # fmt: skip
    """The network's input, (batch, channels, height, width) in fp32, as (out_height, out_width,
    batch, fold · fold · 4): blocks of pixels, with the first pixel of the image at `top` and `left`
    and 0 around it."""
    _wait()
    row: tl.constexpr = fold * fold * 4
    blocks_w = tl.cdiv(out_width, block_w)
    blocks_n = batch // block_n
    program = tl.program_id(0)
    part_w, program = program % blocks_w, program // blocks_w
    part_n, out_h = program % blocks_n, program // blocks_n
    rows = part_n * block_n + tl.arange(0, block_n)
    cols = part_w * block_w + tl.arange(0, block_w)
    h = out_h * fold - top
    lines = rows.to(tl.int64) * channels * (height * width)
    c0 = _image_channels(x, lines, height, width, h, cols, left, fold, 0, channels)
    c1 = _image_channels(x, lines, height, width, h, cols, left, fold, 1, channels)
    c2 = _image_channels(x, lines, height, width, h, cols, left, fold, 2, channels)
    c3 = _image_channels(x, lines, height, width, h, cols, left, fold, 3, channels)
    _let_next_begin()
    four = tl.join(tl.join(c0, c2), tl.join(c1, c3)).reshape([block_w, block_n * row])
    value = _stored(four * multiplier + zero, y.dtype.element_ty)
    place = part_n * (block_n * row) + tl.arange(0, block_n * row)
    line = (out_h * out_width + cols).to(tl.int64) * (batch * row)
    tl.store(y + line[:, None] + place[None, :], value, mask=(cols < out_width)[:, None])
