"""CPU kernels of `cpu_kernels.cpp`: batch normalization, max pooling, dropout.

All but dropout take channels-last fp32 arrays with channels in multiples of 16.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.kernels.cpu.compiler import declared_library
from cubemesh.kernels.fused.batch_norm import SavedForBackward

SOURCE = Path(__file__).with_suffix(".cpp")
LANES = 16
"""Channels computed at once."""

_P, _L, _I, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_WINDOW = [_L, _L, *[_I] * 10]
_ARGUMENTS = {
    "batch_norm_forward": [*[_P] * 10, _L, _L, _F, _F, _I, _I],
    "batch_norm_backward": [*[_P] * 12, _L, _L, _I, _I],
    "pool_forward": [*[_P] * 3, *_WINDOW, _I, _I],
    "pool_backward": [*[_P] * 3, *_WINDOW, _I],
    "dropout": [_P, _P, _L, ctypes.c_uint64, ctypes.c_uint32, _F, _I],
}


@cache
def library() -> ctypes.CDLL:
    """The kernels, compiled for this CPU. OSError where that is impossible."""
    return declared_library(SOURCE, _ARGUMENTS)


def usable(x: Tensor) -> bool:
    """Whether the kernels accept an array."""
    return (
        x.dim() == 4
        and x.dtype == torch.float32
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[1] % LANES == 0
    )


@dataclass(frozen=True, kw_only=True)
class CpuBatchNorm:
    """Both passes of a fused batch normalization; see `BatchNormKernels`."""

    shape: torch.Size
    add: bool
    relu: bool

    def __str__(self) -> str:
        return "kernels for a CPU"

    def bits(self, like: Tensor) -> Tensor | None:
        """Room for the ReLU mask, one bit per value, if it must be saved."""
        if not (self.add and self.relu):
            return None
        return torch.empty(like.numel() // LANES, dtype=torch.int16)

    def forward(
        self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d
    ) -> tuple[Tensor, SavedForBackward]:
        """See `BatchNormKernels`."""
        y, bits = torch.empty_like(x), self.bits(x)
        mean, rstd = torch.empty_like(norm.weight), torch.empty_like(norm.weight)
        arrays = (
            x, residual, y, bits, norm.weight, norm.bias, norm.running_mean, norm.running_var,
            mean, rstd,
        )  # fmt: skip
        library().batch_norm_forward(
            *map(address, arrays), *_rows(x), norm.eps, norm.momentum,
            self.relu, torch.get_num_threads(),
        )  # fmt: skip
        return y, (mean, rstd) if bits is None else (mean, rstd, bits)

    def backward(
        self,
        grad_outputs: tuple[Tensor, ...],
        x: Tensor,
        affine: tuple[Tensor, Tensor],
        saved: SavedForBackward,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """See `BatchNormKernels`."""
        weight, bias = affine
        dx, dresidual = torch.empty_like(x), torch.empty_like(x) if self.add else None
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        other = grad_outputs[1] if len(grad_outputs) > 1 else None
        bits = saved[2] if len(saved) > 2 else None
        arrays = (
            grad_outputs[0], other, x, bits, weight, bias, saved[0], saved[1], dx, dresidual,
            dweight, dbias,
        )  # fmt: skip
        library().batch_norm_backward(
            *map(address, arrays), *_rows(x),
            self.relu, torch.get_num_threads(),
        )  # fmt: skip
        return dx, dresidual, dweight, dbias


def pool_forward(x: Tensor, y: Tensor, argmax: Tensor, window: Any, relu: bool) -> None:
    """y and argmax; `window` is kernel, stride and padding, two each."""
    library().pool_forward(
        *map(address, (x, y, argmax)), *_sizes(x, y), *window, relu, torch.get_num_threads()
    )


def pool_backward(grad_output: Tensor, argmax: Tensor, dx: Tensor, window: Any) -> None:
    """The gradient of the input."""
    library().pool_backward(
        *map(address, (grad_output, argmax, dx)),
        *_sizes(dx, argmax),
        *window,
        torch.get_num_threads(),
    )


def dropout(x: Tensor, key: int, rate: float) -> Tensor:
    """x / (1 − rate), with a fraction `rate` of the values, drawn by `key`, set to 0. x has any
    layout without gaps."""
    y = torch.empty_like(x)
    dropped = min(round(rate * 2**32), 2**32 - 1)
    library().dropout(
        *map(address, (x, y)), x.numel(), key, dropped, 1 / (1 - rate), torch.get_num_threads()
    )
    return y


def address(array: Tensor | None) -> int | None:
    """The pointer to an array, for a kernel; null for None."""
    return None if array is None else array.data_ptr()


def _rows(x: Tensor) -> tuple[int, int]:
    """Rows, channels."""
    return x.numel() // x.shape[1], x.shape[1]


def _sizes(x: Tensor, y: Tensor) -> tuple[int, ...]:
    """Batch, channels, height and width of x, height and width of y."""
    return (*x.shape, *y.shape[2:])
