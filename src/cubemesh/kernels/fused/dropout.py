"""Dropout on a CPU by a counter-based generator (Philox), sixteen numbers at a time.

PyTorch's CPU generator draws numbers sequentially on one thread: 18 ns each on a Xeon at 2.5 GHz,
longer than a layer of a small network takes otherwise. Here each number is a function of its index
and of a key (`cpu/cpu_kernels.cpp`), drawn again in the backward pass; only the key comes from
PyTorch's generator, so that a seed and a resumed training reproduce the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.kernels.cpu import cpu_kernels

KEYS = 2**62


class FusedDropout(nn.Module):
    """`nn.Dropout`, by the kernel where that measured faster; `own` is PyTorch's."""

    def __init__(self, own: nn.Dropout) -> None:
        super().__init__()
        self.own = own
        self.kernels = False
        """Whether it runs as the kernel."""

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
        return cpu_kernels.dropout(x, ctx.key, rate)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        if grad_output.stride() != ctx.strides:  # a number belongs to an index in memory
            grad_output = torch.empty_strided(grad_output.shape, ctx.strides).copy_(grad_output)
        return cpu_kernels.dropout(grad_output, ctx.key, ctx.rate), None


def usable(x: Tensor) -> bool:
    """Whether the kernel accepts an array: fp32, without gaps or overlaps."""
    formats = [torch.contiguous_format, *([torch.channels_last] if x.dim() == 4 else [])]
    return x.dtype == torch.float32 and any(x.is_contiguous(memory_format=f) for f in formats)
