# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Max and average pooling in Triton. The forward pass of max pooling stores the argmax of each
window, one byte per result.

Arrays are channels-last: a matrix of rows (batch, height, width) by channels. Of equal values the
first is the argmax, as in PyTorch. The backward pass writes each gradient once, from the few
windows that cover its cell. With `bias_relu` a bias and a ReLU come before the pooling; a result of
zero has no argmax (255), since no gradient passes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def max_pool_forward_kernel(
    x, bias, y, argmax, rows, channels, height, width, out_height, out_width,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, stride_h: tl.constexpr,
    stride_w: tl.constexpr, pad_h: tl.constexpr, pad_w: tl.constexpr,
    bias_relu: tl.constexpr, block_rows: tl.constexpr, block_cols: tl.constexpr,
):  # fmt: skip
    """y and argmax (rows = batch · out_height · out_width) from x; the bias and its sum are rounded
    to the type of x."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    cols = tl.program_id(1) * block_cols + tl.arange(0, block_cols)
    image, within = row // (out_height * out_width), row % (out_height * out_width)
    top = within // out_width * stride_h - pad_h
    left = within % out_width * stride_w - pad_w
    best = tl.full([block_rows, block_cols], float("-inf"), tl.float32)
    place = tl.zeros([block_rows, block_cols], tl.int32)
    dtype = x.dtype.element_ty
    if bias_relu:
        added = tl.load(bias + cols).to(dtype).to(tl.float32)[None, :]
    for i in tl.static_range(kernel_h):
        for j in tl.static_range(kernel_w):
            h, w = top + i, left + j
            inside = (row < rows) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
            at = ((image * height + h) * width + w)[:, None] * channels + cols[None, :]
            value = tl.load(x + at, mask=inside[:, None], other=float("-inf")).to(tl.float32)
            if bias_relu:
                value = (value + added).to(dtype).to(tl.float32)
            wins = (value > best) | (value != value)
            best = tl.where(wins, value, best)
            place = tl.where(wins, i * kernel_w + j, place)
    if bias_relu:
        place = tl.where(best <= 0, 255, place)
        best = tl.where(best <= 0, 0.0, best)
    at = row[:, None] * channels + cols[None, :]
    keep = (row < rows)[:, None]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=keep)
    tl.store(argmax + at, place.to(tl.uint8), mask=keep)


@triton.jit
def max_pool_backward_kernel(
    grad_output, argmax, dx, rows, channels, height, width, out_height, out_width,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, stride_h: tl.constexpr,
    stride_w: tl.constexpr, pad_h: tl.constexpr, pad_w: tl.constexpr,
    block_rows: tl.constexpr, block_cols: tl.constexpr,
):  # fmt: skip
    """dx (rows = batch · height · width) from the gradient of y and the argmax."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    cols = tl.program_id(1) * block_cols + tl.arange(0, block_cols)
    image, within = row // (height * width), row % (height * width)
    h, w = within // width + pad_h, within % width + pad_w
    total = tl.zeros([block_rows, block_cols], tl.float32)
    for i in tl.static_range((kernel_h + stride_h - 1) // stride_h):
        for j in tl.static_range((kernel_w + stride_w - 1) // stride_w):
            out_h, out_w = h // stride_h - i, w // stride_w - j
            place_h, place_w = h - out_h * stride_h, w - out_w * stride_w
            covers = (row < rows) & (out_h >= 0) & (out_h < out_height) & (place_h < kernel_h)
            covers &= (out_w >= 0) & (out_w < out_width) & (place_w < kernel_w)
            at = ((image * out_height + out_h) * out_width + out_w)[:, None] * channels
            at += cols[None, :]
            won = tl.load(argmax + at, mask=covers[:, None], other=255).to(tl.int32)
            grad = tl.load(grad_output + at, mask=covers[:, None], other=0.0).to(tl.float32)
            place = (place_h * kernel_w + place_w)[:, None]
            total += tl.where(won == place, grad, 0.0)
    at = row[:, None] * channels + cols[None, :]
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=(row < rows)[:, None])


@triton.jit
def average_pool_forward_kernel(
    x, y, rows, channels, height, width, out_height, out_width,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, stride_h: tl.constexpr,
    stride_w: tl.constexpr, pad_h: tl.constexpr, pad_w: tl.constexpr,
    block_rows: tl.constexpr, block_cols: tl.constexpr,
):  # fmt: skip
    """y (rows = batch · out_height · out_width) from x; padding counts as zeros."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    cols = tl.program_id(1) * block_cols + tl.arange(0, block_cols)
    image, within = row // (out_height * out_width), row % (out_height * out_width)
    top = within // out_width * stride_h - pad_h
    left = within % out_width * stride_w - pad_w
    total = tl.zeros([block_rows, block_cols], tl.float32)
    for i in tl.static_range(kernel_h):
        for j in tl.static_range(kernel_w):
            h, w = top + i, left + j
            inside = (row < rows) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
            at = ((image * height + h) * width + w)[:, None] * channels + cols[None, :]
            total += tl.load(x + at, mask=inside[:, None], other=0.0).to(tl.float32)
    at = row[:, None] * channels + cols[None, :]
    mean = total / (kernel_h * kernel_w)
    tl.store(y + at, mean.to(y.dtype.element_ty), mask=(row < rows)[:, None])


@triton.jit
def average_pool_backward_kernel(
    grad_output, dx, rows, channels, height, width, out_height, out_width,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, stride_h: tl.constexpr,
    stride_w: tl.constexpr, pad_h: tl.constexpr, pad_w: tl.constexpr,
    block_rows: tl.constexpr, block_cols: tl.constexpr,
):  # fmt: skip
    """dx (rows = batch · height · width) from the gradient of y: the sum over the windows that
    cover a cell."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    cols = tl.program_id(1) * block_cols + tl.arange(0, block_cols)
    image, within = row // (height * width), row % (height * width)
    h, w = within // width + pad_h, within % width + pad_w
    total = tl.zeros([block_rows, block_cols], tl.float32)
    for i in tl.static_range((kernel_h + stride_h - 1) // stride_h):
        for j in tl.static_range((kernel_w + stride_w - 1) // stride_w):
            out_h, out_w = h // stride_h - i, w // stride_w - j
            covers = (row < rows) & (out_h >= 0) & (out_h < out_height)
            covers &= (out_w >= 0) & (out_w < out_width)
            covers &= (h - out_h * stride_h < kernel_h) & (w - out_w * stride_w < kernel_w)
            at = ((image * out_height + out_h) * out_width + out_w)[:, None] * channels
            at += cols[None, :]
            total += tl.load(grad_output + at, mask=covers[:, None], other=0.0).to(tl.float32)
    at = row[:, None] * channels + cols[None, :]
    mean = total / (kernel_h * kernel_w)
    tl.store(dx + at, mean.to(dx.dtype.element_ty), mask=(row < rows)[:, None])
