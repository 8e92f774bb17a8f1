"""Fused 1×1 convolution and batch normalization on a CPU.

    result = relu(norm(conv(x)) + residual)        residual and ReLU optional

Unfused, the normalization reads the convolution's result again for its sums, and in the backward
pass it writes a gradient that the convolution reads twice. `conv_batch_norm.cpp` does both while
the rows are in the cache. fp32, channels-last, channels in multiples of 32; used where it measured
faster than the two separately, each in its own fastest way.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.kernels.cpu.compiler import declared_library
from cubemesh.kernels.cpu.cpu_kernels import CpuBatchNorm, address, usable
from cubemesh.kernels.fused.batch_norm import (
    FusedBatchNorm,
    Readers,
    channels_last,
    once_per_reader,
    two_at_most,
)
from cubemesh.kernels.fused.conv import FusedConv

SOURCE = Path(__file__).with_name("conv_batch_norm.cpp")
PANEL = 32
"""Channels multiplied at once."""

_P, _L, _I, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_ARGUMENTS: dict[str, list[Any]] = {
    "conv_batch_norm_floats": [_L, _L, _L, _I, _I],
    "conv_batch_norm_forward": [*[_P] * 13, _L, _L, _L, _F, _F, _I, _I],
    "conv_batch_norm_backward": [*[_P] * 16, _L, _L, _L, _I, _I],
}


@cache
def library() -> ctypes.CDLL:
    """The kernels, compiled for this CPU. OSError where that is impossible."""
    return declared_library(SOURCE, _ARGUMENTS, conv_batch_norm_floats=ctypes.c_long)


def supports(op: nn.Module, x: Tensor) -> bool:
    """Whether the kernels support a layer, on arrays like x."""
    if not isinstance(op, FusedConv) or op.relu or not usable(x):
        return False
    conv = op.conv
    return (
        conv.kernel_size == conv.stride == (1, 1)
        and conv.padding == (0, 0)
        and conv.groups == 1
        and conv.bias is None
        and conv.in_channels % PANEL == conv.out_channels % PANEL == 0
    )


class FusedConvBatchNorm(nn.Module):
    """Both as one for inputs of `shape`, separately for any other."""

    def __init__(self, conv: FusedConv, norm: FusedBatchNorm, shape: torch.Size) -> None:
        super().__init__()
        self.conv, self.norm, self.shape = conv, norm, shape
        shape_out = torch.Size((shape[0], conv.conv.out_channels, *shape[2:]))
        self.kernels = CpuBatchNorm(shape=shape_out, add=norm.add, relu=norm.relu)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Readers:
        """(batch, channels, height, width), and (batch, filters, height, width) → the latter,
        once per reader."""
        if x.shape != self.shape:
            separate: Readers = self.norm(self.conv(x), residual)
            return separate
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
        op: FusedConvBatchNorm,
    ) -> Readers:
        norm, threads = op.norm.norm, torch.get_num_threads()
        x, residual = channels_last(x), None if residual is None else channels_last(residual)
        y = torch.empty(op.kernels.shape, memory_format=torch.channels_last)
        result, bits = torch.empty_like(y), op.kernels.bits(y)
        mean, rstd = torch.empty_like(weight), torch.empty_like(weight)
        sizes = _sizes(x, filters)
        work = torch.empty(library().conv_batch_norm_floats(*sizes, False, threads))
        arrays = (
            x, filters, residual, y, result, bits, weight, bias, norm.running_mean,
            norm.running_var, mean, rstd, work,
        )  # fmt: skip
        library().conv_batch_norm_forward(
            *map(address, arrays), *sizes, norm.eps, norm.momentum, op.norm.relu, threads
        )
        ctx.save_for_backward(x, filters, y, bits, weight, bias, mean, rstd)
        ctx.op = op
        return once_per_reader(result, op.norm.readers)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        x, filters, y, bits, weight, bias, mean, rstd = ctx.saved_tensors
        norm, threads = ctx.op.norm, torch.get_num_threads()
        one, *other = two_at_most(grad_outputs)
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        dfilters = torch.empty_like(filters)
        dresidual = torch.empty_like(y) if norm.add else None
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        sizes = _sizes(x, filters)
        work = torch.empty(library().conv_batch_norm_floats(*sizes, True, threads))
        arrays = (
            one, other[0] if other else None, x, filters, y, bits, weight, bias, mean, rstd,
            dx, dfilters, dresidual, dweight, dbias, work,
        )  # fmt: skip
        library().conv_batch_norm_backward(*map(address, arrays), *sizes, norm.relu, threads)
        return dx, dresidual, dfilters, dweight, dbias, None


def _sizes(x: Tensor, filters: Tensor) -> tuple[int, int, int]:
    """Rows, channels of the input, filters."""
    return x.numel() // x.shape[1], filters.shape[1], filters.shape[0]
