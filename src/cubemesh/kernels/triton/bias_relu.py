# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Bias and ReLU after a convolution in Triton, on channels-last arrays: a matrix of rows (batch,
height, width) by channels.

Forward in place, in one pass. Backward in one pass: the gradient of the convolution's result is
written and its columns are added up for the bias, as one partial sum per program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192
"""Values that a program holds at once."""
WARPS = 8
PROGRAMS = 1024
"""Of a backward pass at most, about: each adds up several blocks of rows."""


def bias_relu(x: Tensor, bias: Tensor) -> None:
    """Replace x (batch, channels, height, width) by relu(x + bias); the bias and the sum are
    rounded to the type of x."""
    channels = x.shape[1]
    rows, cols = x.numel() // channels, block_cols(channels)
    block = BLOCK // cols
    grid = (-(-rows // block), channels // cols)
    bias_relu_kernel[grid](x, bias, rows, channels, block, cols, num_warps=WARPS)


def relu_backward(grad_output: Tensor, y: Tensor, dx: Tensor) -> Tensor:
    """Write into `dx` the gradient of what relu made `y` of; its sum over each channel."""
    return _sums(grad_output, y, dx, -1)


def argmax_sums(grad_output: Tensor, argmax: Tensor, none: int) -> Tensor:
    """The sum over each channel of `grad_output` where `argmax` is not `none`."""
    return _sums(grad_output, argmax, grad_output, none)


def _sums(grad_output: Tensor, kept: Tensor, dx: Tensor, none: int) -> Tensor:
    channels = grad_output.shape[1]
    rows, cols = grad_output.numel() // channels, block_cols(channels)
    block = BLOCK // cols
    blocks = -(-rows // block)
    each = -(-blocks * (channels // cols) // PROGRAMS)
    programs = -(-blocks // each)
    partial = torch.empty((programs, channels), dtype=torch.float32, device=grad_output.device)
    relu_backward_kernel[(programs, channels // cols)](
        grad_output, kept, dx, partial, rows, channels, each, none, none < 0, block, cols,
        num_warps=WARPS,
    )  # fmt: skip
    return partial.sum(0)


def block_cols(channels: int) -> int:
    """Channels of a program, which divide all; these are a multiple of 16."""
    return max(c for c in (16, 32, 64) if channels % c == 0)


@triton.jit
def bias_relu_kernel(x, bias, rows, channels, block_rows: tl.constexpr, block_cols: tl.constexpr):
    """See `bias_relu`."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    cols = tl.program_id(1) * block_cols + tl.arange(0, block_cols)
    dtype = x.dtype.element_ty
    added = tl.load(bias + cols).to(dtype).to(tl.float32)
    at = row[:, None] * channels + cols[None, :]
    inside = (row < rows)[:, None]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + added[None, :]
    value = tl.where(value <= 0, 0.0, value)  # a NaN remains
    tl.store(x + at, value.to(dtype), mask=inside)


@triton.jit
def relu_backward_kernel(
    grad_output, kept, dx, partial, rows, channels, each, none,
    relu: tl.constexpr, block_rows: tl.constexpr, block_cols: tl.constexpr,
):  # fmt: skip
    """The partial sums of `each` blocks of rows of dx; with `relu` dx is written, and `kept` is the
    result of the ReLU, else the argmax of a pooling."""
    first = tl.program_id(0).to(tl.int64) * each * block_rows
    cols = tl.program_id(1) * block_cols + tl.arange(0, block_cols)
    total = tl.zeros([block_rows, block_cols], tl.float32)
    for number in range(each):
        row = first + number * block_rows + tl.arange(0, block_rows)
        at = row[:, None] * channels + cols[None, :]
        inside = (row < rows)[:, None]
        grad = tl.load(grad_output + at, mask=inside, other=0.0)
        found = tl.load(kept + at, mask=inside, other=0)
        if relu:
            grad = tl.where(found > 0, grad, 0.0)
            tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=inside)
        else:
            grad = tl.where(found == none, 0.0, grad)
        total += grad.to(tl.float32)
    at = tl.program_id(0) * channels + cols
    tl.store(partial + at, tl.sum(total, 0))
