"""Dropout on a CPU whose numbers are drawn sixteen at a time, and again for the backward pass.

PyTorch's generator for a CPU draws one number after the other, on one thread: 18 ns each on a Xeon
at 2.5 GHz, which is longer than a small network's layer takes otherwise. Here each number is a
function of its place and of a key (`host_kernels.cpp`), and the key alone comes from PyTorch's
generator: a seed draws the same as before it was seeded again, and a training goes on where it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.kernels.cpu import cpu_kernels as host_kernels

KEYS = 2**62


class FusedDropout(nn.Module):
    """Zeros in the place of a share of the values, the others scaled up; `own` is PyTorch's."""

    def __init__(self, own: nn.Dropout) -> None:
        super().__init__()
        self.own = own
        self.kernels = False
        """Whether it draws its numbers itself."""

    def forward(self, x: Tensor) -> Tensor:
        """Unchanged in shape."""
        if not (self.kernels and self.own.training and 0 < self.own.p < 1 and usable(x)):
            own: Tensor = self.own(x)
            return own
        result: Tensor = _Dropout.apply(x, self.own.p)  # type: ignore[no-untyped-call]
        return result


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        ctx.key, ctx.rate = int(torch.randint(KEYS, ())), rate
        ctx.strides = x.stride()
        return host_kernels.dropout(x, ctx.key, rate)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        if slope.stride() != ctx.strides:  # a number belongs to a place in memory
            slope = torch.empty_strided(slope.shape, ctx.strides).copy_(slope)
        return host_kernels.dropout(slope, ctx.key, ctx.rate), None


def usable(x: Tensor) -> bool:
    """Whether the kernel can take an array: float32, without gaps or overlaps."""
    formats = [torch.contiguous_format, *([torch.channels_last] if x.dim() == 4 else [])]
    return x.dtype == torch.float32 and any(x.is_contiguous(memory_format=f) for f in formats)
