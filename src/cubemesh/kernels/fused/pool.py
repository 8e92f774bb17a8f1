"""Max and average pooling by kernels, or PyTorch's own.

Max pooling stores the argmax of each window in a byte: on a GPU by `triton/pool.py`; on a CPU by
`cpu/cpu_kernels.cpp`, with an optional ReLU. Average pooling has kernels on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.kernels.cpu import cpu_kernels
from cubemesh.kernels.fused.batch_norm import channels_last

Pair = tuple[int, int]
MOST_CELLS = 255
"""Of a window: its argmax is stored in a byte, where 255 means none."""
BLOCK = 4096
"""Values of a program."""


class FusedMaxPool(nn.Module):
    """`nn.MaxPool2d`, then a ReLU with `relu`."""

    def __init__(self, pool: nn.MaxPool2d, *, relu: bool = False) -> None:
        super().__init__()
        self.pool, self.relu = pool, relu
        self.kernels = False
        """Whether it runs as kernels: for channels-last arrays, where they measured faster."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, channels, out_height, out_width)."""
        if not self.kernels:
            own: Tensor = self.pool(x)
            return F.relu(own) if self.relu else own
        result: Tensor = _Pool.apply(x, self)  # type: ignore[no-untyped-call]
        return result

    @property
    def usable(self) -> bool:
        """Whether the kernels support it."""
        kernel = _pair(self.pool.kernel_size)
        return _pair(self.pool.dilation) == (1, 1) and kernel[0] * kernel[1] < MOST_CELLS


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, op: FusedMaxPool) -> Tensor:
        x, pool = channels_last(x), op.pool
        batch, channels = x.shape[:2]
        size = pooled_size(x, pool)
        y = image((batch, channels, *size), x.dtype, x.device)
        argmax = image((batch, channels, *size), torch.uint8, x.device)
        ctx.save_for_backward(argmax)
        ctx.op, ctx.shape, ctx.dtype = op, x.shape, x.dtype
        if x.device.type == "cpu":
            cpu_kernels.pool_forward(x, y, argmax, _window(pool), op.relu)
        else:
            from cubemesh.kernels.triton.pool import max_pool_forward_kernel

            launch(max_pool_forward_kernel, (x, x, y, argmax), y, x.shape[2:], size, pool, False)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (argmax,) = ctx.saved_tensors
        dx = image(ctx.shape, ctx.dtype, grad_output.device)
        grad_output, op = channels_last(grad_output), ctx.op
        if grad_output.device.type == "cpu":
            cpu_kernels.pool_backward(grad_output, argmax, dx, _window(op.pool))
        else:
            from cubemesh.kernels.triton.pool import max_pool_backward_kernel

            arrays = (grad_output, argmax, dx)
            launch(max_pool_backward_kernel, arrays, dx, ctx.shape[2:], argmax.shape[2:], op.pool)
        return dx, None


class FusedAveragePool(nn.Module):
    """`nn.AvgPool2d`."""

    def __init__(self, pool: nn.AvgPool2d) -> None:
        super().__init__()
        self.pool = pool
        self.kernels = False
        """Whether it runs as kernels: for channels-last arrays, where they measured faster."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, channels, out_height, out_width)."""
        if not self.kernels:
            own: Tensor = self.pool(x)
            return own
        result: Tensor = _AveragePool.apply(x, self.pool)  # type: ignore[no-untyped-call]
        return result

    @property
    def usable(self) -> bool:
        """Whether the kernels support it: all windows count as many values."""
        pool = self.pool
        return pool.count_include_pad and not pool.ceil_mode and pool.divisor_override is None


class _AveragePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: nn.AvgPool2d) -> Tensor:
        from cubemesh.kernels.triton.pool import average_pool_forward_kernel

        x = channels_last(x)
        size = pooled_size(x, pool)
        ctx.pool, ctx.shape, ctx.size, ctx.dtype = pool, x.shape, size, x.dtype
        y = image((*x.shape[:2], *size), x.dtype, x.device)
        launch(average_pool_forward_kernel, (x, y), y, x.shape[2:], size, pool)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        from cubemesh.kernels.triton.pool import average_pool_backward_kernel

        dx = image(ctx.shape, ctx.dtype, grad_output.device)
        arrays = (channels_last(grad_output), dx)
        launch(average_pool_backward_kernel, arrays, dx, ctx.shape[2:], ctx.size, ctx.pool)
        return dx, None


def pooled_size(x: Tensor, pool: nn.MaxPool2d | nn.AvgPool2d) -> torch.Size:
    """Height and width of the pooled `x`."""
    pooled: Tensor = pool.forward(torch.empty(1, 1, *x.shape[2:], device="meta"))
    return pooled.shape[2:]


def launch(
    kernel: Any,
    arrays: tuple[Tensor, ...],
    output: Tensor,
    size: tuple[int, ...],
    out_size: tuple[int, ...],
    pool: nn.MaxPool2d | nn.AvgPool2d,
    *more: bool,
) -> None:
    """Launch a kernel of `triton/pool.py`: one program per block of rows of `output`, whose
    channels are a multiple of 16."""
    channels = output.shape[1]
    rows = output.numel() // channels
    cols = max(c for c in (16, 32, 64) if channels % c == 0)
    block = BLOCK // cols
    grid = (-(-rows // block), channels // cols)
    sizes = (rows, channels, *size, *out_size, *_window(pool), *more)
    kernel[grid](*arrays, *sizes, block, cols, num_warps=8)


def _window(pool: nn.MaxPool2d | nn.AvgPool2d) -> tuple[int, ...]:
    """Kernel, stride and padding, two each."""
    return (*_pair(pool.kernel_size), *_pair(pool.stride), *_pair(pool.padding))


def image(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialized channels-last array."""
    return torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last)


def _pair(size: int | Pair) -> Pair:
    return (size, size) if isinstance(size, int) else size
