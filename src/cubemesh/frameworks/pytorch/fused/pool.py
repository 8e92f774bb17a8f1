"""A max pooling with kernels of its own, or PyTorch's where it has none.

On a GPU they are those of `pool_kernels.py`, on a CPU those of `host_kernels.cpp`, which can also
rectify the result. They keep one byte for each value, the place of the winner in its window.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.batch_norm import as_rows
from cubemesh.kernels.cpu import cpu_kernels as host_kernels

Pair = tuple[int, int]
MOST_CELLS = 255
"""Of a window: the winner's place is kept in a byte, and 255 is nobody's."""
BLOCK = 4096
"""Values of a program."""


class FusedPool(nn.Module):
    """The largest value under each window, as `nn.MaxPool2d` finds it, then rectified at will."""

    def __init__(self, pool: nn.MaxPool2d, *, rectifies: bool = False) -> None:
        super().__init__()
        self.pool, self.rectifies = pool, rectifies
        self.kernels = False
        """Whether it runs as kernels of its own: for channels-last arrays, where they were found
        to be faster."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, channels, out_height, out_width)."""
        if not self.kernels:
            own: Tensor = self.pool(x)
            return F.relu(own) if self.rectifies else own
        result: Tensor = _Pool.apply(x, self)  # type: ignore[no-untyped-call]
        return result

    @property
    def usable(self) -> bool:
        """Whether the kernels can do it."""
        kernel = _pair(self.pool.kernel_size)
        return _pair(self.pool.dilation) == (1, 1) and kernel[0] * kernel[1] < MOST_CELLS


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, op: FusedPool) -> Tensor:
        x, pool = as_rows(x), op.pool
        batch, channels = x.shape[:2]
        size = F.max_pool2d(
            torch.empty(1, 1, *x.shape[2:], device="meta"),
            pool.kernel_size,
            pool.stride,
            pool.padding,
            ceil_mode=pool.ceil_mode,
        ).shape[2:]
        y = _image((batch, channels, *size), x.dtype, x.device)
        winner = _image((batch, channels, *size), torch.uint8, x.device)
        ctx.save_for_backward(winner)
        ctx.op, ctx.shape, ctx.dtype = op, x.shape, x.dtype
        if x.device.type == "cpu":
            host_kernels.pool_forward(x, y, winner, _window(pool), op.rectifies)
        else:
            from cubemesh.kernels.triton.pool import max_pool_forward_kernel

            _launch(max_pool_forward_kernel, (x, y, winner), y, x.shape[2:], size, pool)
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (winner,) = ctx.saved_tensors
        dx = _image(ctx.shape, ctx.dtype, slope.device)
        slope, op = as_rows(slope), ctx.op
        if slope.device.type == "cpu":
            host_kernels.pool_backward(slope, winner, dx, _window(op.pool))
        else:
            from cubemesh.kernels.triton.pool import max_pool_backward_kernel

            given = (slope, winner, dx)
            _launch(max_pool_backward_kernel, given, dx, ctx.shape[2:], winner.shape[2:], op.pool)
        return dx, None


def _launch(
    kernel: Any,
    arrays: tuple[Tensor, ...],
    made: Tensor,
    size: tuple[int, ...],
    out_size: tuple[int, ...],
    pool: nn.MaxPool2d,
) -> None:
    """One program for each block of the rows of `made`; its channels are a multiple of 16."""
    channels = made.shape[1]
    rows = made.numel() // channels
    cols = max(c for c in (16, 32, 64) if channels % c == 0)
    block = BLOCK // cols
    grid = (-(-rows // block), channels // cols)
    kernel[grid](
        *arrays, rows, channels, *size, *out_size, *_window(pool), block, cols, num_warps=8
    )


def _window(pool: nn.MaxPool2d) -> tuple[int, ...]:
    """Kernel, stride and padding, two each."""
    return (*_pair(pool.kernel_size), *_pair(pool.stride), *_pair(pool.padding))


def _image(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last)


def _pair(size: int | Pair) -> Pair:
    return (size, size) if isinstance(size, int) else size
