"""A max pooling with kernels of its own (`pool_kernels.py`), or PyTorch's where it has none."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused_norm import as_rows

Pair = tuple[int, int]
MOST_CELLS = 255
"""Of a window: the winner's place is kept in a byte, and 255 is nobody's."""
BLOCK = 4096
"""Values of a program."""


class FusedPool(nn.Module):
    """The largest value under each window, as `nn.MaxPool2d` finds it."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool
        self.kernels = False
        """Whether it runs as kernels of its own: for channels-last arrays on a GPU with Triton."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, channels, out_height, out_width)."""
        if not self.kernels:
            own: Tensor = self.pool(x)
            return own
        result: Tensor = _Pool.apply(x, self.pool)  # type: ignore[no-untyped-call]
        return result

    @property
    def usable(self) -> bool:
        """Whether the kernels can do it."""
        kernel = _pair(self.pool.kernel_size)
        return _pair(self.pool.dilation) == (1, 1) and kernel[0] * kernel[1] < MOST_CELLS


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: nn.MaxPool2d) -> Tensor:
        from cubemesh.frameworks.pytorch.pool_kernels import forward_kernel

        x = as_rows(x)
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
        ctx.pool, ctx.shape, ctx.dtype = pool, x.shape, x.dtype
        _launch(forward_kernel, (x, y, winner), y, x.shape[2:], size, pool)
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        from cubemesh.frameworks.pytorch.pool_kernels import backward_kernel

        (winner,) = ctx.saved_tensors
        dx = _image(ctx.shape, ctx.dtype, slope.device)
        given = (as_rows(slope), winner, dx)
        _launch(backward_kernel, given, dx, ctx.shape[2:], winner.shape[2:], ctx.pool)
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
    window = (*_pair(pool.kernel_size), *_pair(pool.stride), *_pair(pool.padding))
    grid = (-(-rows // block), channels // cols)
    kernel[grid](*arrays, rows, channels, *size, *out_size, *window, block, cols, num_warps=8)


def _image(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last)


def _pair(size: int | Pair) -> Pair:
    return (size, size) if isinstance(size, int) else size
