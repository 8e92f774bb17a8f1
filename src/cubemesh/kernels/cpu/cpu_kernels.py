"""The kernels of `host_kernels.cpp` as operations on arrays of a CPU.

Those that know of channels take float32 in channels-last, whose channels are a multiple of 16.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.batch_norm import Kept
from cubemesh.kernels.cpu.compiler import declared_library

SOURCE = Path(__file__).with_suffix(".cpp")
LANES = 16
"""Channels that are computed at once."""

_P, _L, _I, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_WINDOW = [_L, _L, *[_I] * 10]
_ARGUMENTS = {
    "norm_forward": [*[_P] * 10, _L, _L, _F, _F, _I, _I],
    "norm_backward": [*[_P] * 12, _L, _L, _I, _I],
    "pool_forward": [*[_P] * 3, *_WINDOW, _I, _I],
    "pool_backward": [*[_P] * 3, *_WINDOW, _I],
    "dropout": [_P, _P, _L, ctypes.c_uint64, ctypes.c_uint32, _F, _I],
}


@cache
def library() -> ctypes.CDLL:
    """The kernels, compiled for this CPU. OSError where that is not possible."""
    return declared_library(SOURCE, _ARGUMENTS)


def usable(x: Tensor) -> bool:
    """Whether the kernels can take an array."""
    return (
        x.dim() == 4
        and x.dtype == torch.float32
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[1] % LANES == 0
    )


@dataclass(frozen=True, kw_only=True)
class HostNorm:
    """Both passes of a batch normalisation with what follows it; see `NormKernels`."""

    shape: torch.Size
    adds: bool
    rectifies: bool

    def another(self) -> HostNorm:
        """The same for another layer: nothing is kept from call to call."""
        return self

    def __str__(self) -> str:
        return "kernels for a CPU"

    def bits(self, like: Tensor) -> Tensor | None:
        """Room for one bit a value, where it is kept what the ReLU let through."""
        if not (self.adds and self.rectifies):
            return None
        return torch.empty(like.numel() // LANES, dtype=torch.int16)

    def forward(
        self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d
    ) -> tuple[Tensor, Kept]:
        """See `NormKernels`."""
        y, bits = torch.empty_like(x), self.bits(x)
        mean, rstd = torch.empty_like(norm.weight), torch.empty_like(norm.weight)
        arrays = (
            x, residual, y, bits, norm.weight, norm.bias, norm.running_mean, norm.running_var,
            mean, rstd,
        )  # fmt: skip
        library().norm_forward(
            *map(address, arrays), *_rows(x), norm.eps, norm.momentum,
            self.rectifies, torch.get_num_threads(),
        )  # fmt: skip
        return y, (mean, rstd) if bits is None else (mean, rstd, bits)

    def backward(
        self, slopes: tuple[Tensor, ...], x: Tensor, norm: tuple[Tensor, Tensor], kept: Kept
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """See `NormKernels`."""
        weight, bias = norm
        dx, dresidual = torch.empty_like(x), torch.empty_like(x) if self.adds else None
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        other = slopes[1] if len(slopes) > 1 else None
        bits = kept[2] if len(kept) > 2 else None
        arrays = (
            slopes[0], other, x, bits, weight, bias, kept[0], kept[1], dx, dresidual, dweight, dbias
        )  # fmt: skip
        library().norm_backward(
            *map(address, arrays), *_rows(x),
            self.rectifies, torch.get_num_threads(),
        )  # fmt: skip
        return dx, dresidual, dweight, dbias


def pool_forward(x: Tensor, y: Tensor, winner: Tensor, window: Any, rectifies: bool) -> None:
    """y and the winners' places; `window` is kernel, stride and padding, two each."""
    library().pool_forward(
        *map(address, (x, y, winner)), *_sizes(x, y), *window, rectifies, torch.get_num_threads()
    )


def pool_backward(slope: Tensor, winner: Tensor, dx: Tensor, window: Any) -> None:
    """The gradient of what was pooled."""
    library().pool_backward(
        *map(address, (slope, winner, dx)), *_sizes(dx, winner), *window, torch.get_num_threads()
    )


def dropout(x: Tensor, key: int, rate: float) -> Tensor:
    """x / (1 − rate), and 0 in the place of a share `rate` of its values, which `key` draws; x may
    lie as it likes, and has no gaps."""
    y = torch.empty_like(x)
    dropped = min(round(rate * 2**32), 2**32 - 1)
    library().dropout(
        *map(address, (x, y)), x.numel(), key, dropped, 1 / (1 - rate), torch.get_num_threads()
    )
    return y


def address(array: Tensor | None) -> int | None:
    """Where an array lies, for a kernel; None, a null pointer, for none."""
    return None if array is None else array.data_ptr()


def _rows(x: Tensor) -> tuple[int, int]:
    """Rows, channels."""
    return x.numel() // x.shape[1], x.shape[1]


def _sizes(x: Tensor, y: Tensor) -> tuple[int, ...]:
    """Batch, channels, height, width, and those of what is made."""
    return (*x.shape, *y.shape[2:])
