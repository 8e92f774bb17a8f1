"""A 1×1 convolution and the batch normalisation after it as one operation, on a CPU.

    result = relu(norm(conv(x)) + residual)        the last two at will

Apart, the normalisation reads what the convolution has just written to take its sums; in the
backward pass it writes a gradient that the convolution reads twice. `conv_batch_norm.cpp` does both
while the rows lie in the cache. It takes float32 in channels-last, channels in multiples of 32,
and is used where it was measured to be faster than the two apart, each in its own fastest way.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.batch_norm import (
    FusedNorm,
    Readers,
    as_rows,
    for_each_reader,
    two_at_most,
)
from cubemesh.frameworks.pytorch.fused.conv import FusedConv
from cubemesh.kernels.cpu.compiler import declared_library
from cubemesh.kernels.cpu.cpu_kernels import HostNorm, address, usable

SOURCE = Path(__file__).with_name("conv_batch_norm.cpp")
PANEL = 32
"""Channels that are multiplied at once."""

_P, _L, _I, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_ARGUMENTS: dict[str, list[Any]] = {
    "product_norm_floats": [_L, _L, _L, _I, _I],
    "product_norm_forward": [*[_P] * 13, _L, _L, _L, _F, _F, _I, _I],
    "product_norm_backward": [*[_P] * 16, _L, _L, _L, _I, _I],
}


@cache
def library() -> ctypes.CDLL:
    """The kernels, compiled for this CPU. OSError where that is not possible."""
    found = declared_library(SOURCE, _ARGUMENTS)
    found.product_norm_floats.restype = ctypes.c_long
    return found


def takes(op: nn.Module, x: Tensor) -> bool:
    """Whether a layer is a convolution that could be computed so, on arrays like x."""
    if not isinstance(op, FusedConv) or op.rectifies or not usable(x):
        return False
    conv = op.conv
    return (
        conv.kernel_size == conv.stride == (1, 1)
        and conv.padding == (0, 0)
        and conv.groups == 1
        and conv.bias is None
        and conv.in_channels % PANEL == conv.out_channels % PANEL == 0
    )


class ConvNorm(nn.Module):
    """The two as one for inputs of `shape`, and apart for any other."""

    def __init__(self, conv: FusedConv, norm: FusedNorm, shape: torch.Size) -> None:
        super().__init__()
        self.conv, self.norm, self.shape = conv, norm, shape
        made = torch.Size((shape[0], conv.conv.out_channels, *shape[2:]))
        self.kernels = HostNorm(shape=made, adds=norm.adds, rectifies=norm.rectifies)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Readers:
        """(batch, channels, height, width), and (batch, filters, height, width) → the latter, for
        each reader."""
        if x.shape != self.shape:
            apart: Readers = self.norm(self.conv(x), residual)
            return apart
        norm = self.norm.norm
        results: Readers = _ConvNorm.apply(  # type: ignore[no-untyped-call]
            x, residual, self.conv.conv.weight, norm.weight, norm.bias, self
        )
        return results


class _ConvNorm(torch.autograd.Function):
    """Both passes, as autograd sees them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        filters: Tensor,
        weight: Tensor,
        bias: Tensor,
        op: ConvNorm,
    ) -> Readers:
        norm, threads = op.norm.norm, torch.get_num_threads()
        x, residual = as_rows(x), None if residual is None else as_rows(residual)
        y = torch.empty(op.kernels.shape, memory_format=torch.channels_last)
        result, bits = torch.empty_like(y), op.kernels.bits(y)
        mean, rstd = torch.empty_like(weight), torch.empty_like(weight)
        sizes = _sizes(x, filters)
        work = torch.empty(library().product_norm_floats(*sizes, False, threads))
        arrays = (
            x, filters, residual, y, result, bits, weight, bias, norm.running_mean,
            norm.running_var, mean, rstd, work,
        )  # fmt: skip
        library().product_norm_forward(
            *map(address, arrays), *sizes, norm.eps, norm.momentum, op.norm.rectifies, threads
        )
        ctx.save_for_backward(x, filters, y, bits, weight, bias, mean, rstd)
        ctx.op = op
        return for_each_reader(result, op.norm.readers)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        x, filters, y, bits, weight, bias, mean, rstd = ctx.saved_tensors
        norm, threads = ctx.op.norm, torch.get_num_threads()
        one, *other = two_at_most(slopes)
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        dfilters = torch.empty_like(filters)
        dresidual = torch.empty_like(y) if norm.adds else None
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        sizes = _sizes(x, filters)
        work = torch.empty(library().product_norm_floats(*sizes, True, threads))
        arrays = (
            one, other[0] if other else None, x, filters, y, bits, weight, bias, mean, rstd,
            dx, dfilters, dresidual, dweight, dbias, work,
        )  # fmt: skip
        library().product_norm_backward(*map(address, arrays), *sizes, norm.rectifies, threads)
        return dx, dresidual, dfilters, dweight, dbias, None


def _sizes(x: Tensor, filters: Tensor) -> tuple[int, int, int]:
    """Rows, channels of the input, filters."""
    return x.numel() // x.shape[1], filters.shape[1], filters.shape[0]
