# mypy: disable-error-code="no-untyped-call"
"""Launches of the kernels on arrays in the layout HWNC, and the tilings that a tuner tries.

Geometry is passed at run time: one compiled kernel serves all layers with the same tiling.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

LEAST_BATCH = 16
"""Batch sizes are multiples of this: the least number of rows of a matrix product."""
LEAST_CHANNELS = 32
"""Channels of arrays that convolutions read and write are multiples of this."""
MOST_HELD = 512
"""Most input channels whose weights one program holds."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """An array of a network: (height, width, batch, channels), as the first `channels` of rows."""

    array: Tensor
    """From its first element on."""
    height: int
    width: int
    channels: int
    row: int
    """Elements between the rows: an array can be a slice of a concatenation."""
    scale: float = 1.0
    zero: int = 0
    """Of 8-bit values."""

    @property
    def to_stored(self) -> tuple[float, float]:
        """What stored values are made with."""
        return 1.0 / self.scale, float(self.zero)

    @property
    def to_real(self) -> tuple[float, float]:
        """What stored values are read with."""
        return self.scale, float(self.zero)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Windows of a convolution or pool: height and width of each."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    """At the top and the left."""
    dilation: tuple[int, int] = (1, 1)

    @property
    def is_one_pixel(self) -> bool:
        """Whether each pixel of the result depends on the same one of the input."""
        return self == Window()


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Weights of a convolution on the device."""

    weights: Tensor
    """(taps, output channels, input channels)"""
    scales: Tensor
    """Of the sums of 8-bit products; unused in fp16."""
    biases: Tensor
    tap_sums: Tensor
    """(taps + 1, output channels): sums of the 8-bit weights of each tap, and of all."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a convolution is cut into programs."""

    block_n: int
    block_c: int
    block_k: int
    """Input channels of a step; 0: by rows, where a program holds the weights of all."""
    warps: int
    stages: int
    programs: int = 0
    """By rows: programs on each multiprocessor."""

    def as_numbers(self) -> tuple[int, ...]:
        """For a file."""
        return astuple(self)


_BY_TAPS = (
    (128, 128, 64, 8, 3),
    (128, 128, 128, 8, 3),
    (128, 128, 64, 4, 4),
    (128, 128, 128, 4, 3),
    (128, 64, 64, 4, 4),
    (128, 64, 128, 4, 3),
    (128, 256, 64, 8, 3),
    (128, 256, 128, 8, 3),
    (256, 64, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (256, 128, 128, 8, 3),
    (64, 64, 128, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 128, 128, 4, 3),
    (64, 256, 64, 4, 4),
    (64, 256, 128, 8, 3),
    (128, 64, 32, 4, 4),
    (256, 64, 32, 8, 4),
    (128, 32, 32, 4, 4),
    (128, 32, 64, 4, 4),
    (64, 32, 64, 4, 4),
    (32, 128, 64, 4, 4),
    (32, 64, 64, 4, 4),
    (32, 32, 32, 4, 4),
    (16, 128, 64, 4, 4),
    (16, 64, 64, 4, 4),
    (16, 32, 32, 4, 4),
)
_BY_ROWS = (
    (128, 256, 8, 3, 1),
    (128, 128, 8, 3, 1),
    (128, 128, 4, 3, 2),
    (128, 64, 4, 3, 2),
    (128, 64, 4, 4, 3),
    (64, 128, 4, 4, 2),
    (64, 256, 8, 3, 1),
    (64, 64, 4, 4, 4),
    (256, 64, 8, 3, 2),
    (256, 128, 8, 3, 1),
)


def tilings(
    window: Window, batch: int, pixels: int, in_channels: int, out_channels: int, item_bytes: int
) -> tuple[Tiling, ...]:
    """Those that fit a convolution. The larger tiles come first."""
    found = [
        Tiling(block_n=n, block_c=c, block_k=k, warps=warps, stages=stages)
        for n, c, k, warps, stages in _BY_TAPS
        if batch % n == 0
        and out_channels % c == 0
        and in_channels % k == 0
        and k * item_bytes <= 128 + 128 * (item_bytes - 1)
        and (n + c) * k * item_bytes * stages <= 200 << 10
    ]
    if batch >= 64:  # small tiles serve small batches
        large = [one for one in found if one.block_n >= 64]
        found = large or found
    if window.is_one_pixel and in_channels <= MOST_HELD and in_channels & (in_channels - 1) == 0:
        found += [
            Tiling(block_n=n, block_c=c, block_k=0, warps=warps, stages=stages, programs=programs)
            for n, c, warps, stages, programs in _BY_ROWS
            if pixels * batch % n == 0
            and out_channels % c == 0
            and (n * stages + c) * in_channels * item_bytes * programs <= 200 << 10
        ]
    return tuple(found)


def convolve(
    x: Layout,
    parameters: Parameters,
    y: Layout,
    window: Window,
    batch: int,
    tiling: Tiling,
    *,
    residual: Layout | None = None,
    relu: bool = False,
    compile_only: bool = False,
) -> None:
    """Launch y = convolution of x, plus `residual`, after ReLU; with `compile_only` compile it."""
    from cubemesh.kernels.triton.hwnc import kernels

    added = y if residual is None else residual
    numbers: tuple[float, ...] = (float(x.zero), *added.to_real, *y.to_stored)
    if x.array.dtype == torch.int8:
        numbers = (x.zero, *numbers[1:])
    arguments: list[Any] = [
        *(x.array, parameters.weights, y.array, added.array),
        *(parameters.scales, parameters.biases, parameters.tap_sums),
    ]
    settings: dict[str, Any] = {
        "has_residual": residual is not None,
        "relu": relu,
        "block_n": tiling.block_n,
        "block_c": tiling.block_c,
        "num_warps": tiling.warps,
    }
    blocks_c = y.channels // tiling.block_c
    if tiling.block_k == 0:
        kernel: Any = kernels.conv_by_rows_kernel
        rows = y.height * y.width * batch
        most = max(tiling.programs * _multiprocessors(x.array.device) // blocks_c, 1)
        programs = min(most, rows // tiling.block_n) * blocks_c
        arguments += [rows, x.row, y.row, added.row, y.channels, *numbers]
        settings |= {"in_channels": x.channels, "stages": tiling.stages}
    else:
        kernel = kernels.conv_by_taps_kernel
        programs = y.height * y.width * (batch // tiling.block_n) * blocks_c
        arguments += [batch, x.row, y.row, added.row, x.height, x.width, y.width]
        arguments += [x.channels, y.channels, *numbers]
        arguments += [*window.kernel, *window.stride, *window.pad, *window.dilation]
        settings |= {"block_k": tiling.block_k, "num_stages": tiling.stages}
    if compile_only:
        kernel.warmup(*arguments, grid=(programs,), **settings)
    else:
        kernel[(programs,)](*arguments, **settings)


def pool(
    x: Layout,
    y: Layout,
    window: Window,
    batch: int,
    *,
    average: bool = False,
    divisor: int = 0,
    relu: bool = False,
) -> None:
    """Launch y = maximum or mean of the windows of x. `divisor`: of a mean; 0 for the number of
    pixels inside the image."""
    from cubemesh.kernels.triton.hwnc import kernels

    block_n, block_c = _blocks(batch, x.channels)
    programs = y.height * y.width * (batch // block_n) * -(-x.channels // block_c)
    kernels.pool_kernel[(programs,)](
        *(x.array, y.array, batch, x.channels, x.row, y.row, x.height, x.width, y.width),
        *(*x.to_real, *y.to_stored),
        *(*window.kernel, *window.stride, *window.pad, divisor),
        average=average,
        relu=relu,
        block_n=block_n,
        block_c=block_c,
        num_warps=4,
    )


def add(x: Layout, other: Layout, y: Layout, batch: int, *, relu: bool = False) -> None:
    """Launch y = x + other."""
    from cubemesh.kernels.triton.hwnc import kernels

    block_n, block_c = _blocks(batch, x.channels)
    kernels.add_kernel[(y.height * y.width * (batch // block_n),)](
        *(x.array, other.array, y.array, x.channels, x.row, other.row, y.row),
        *(*x.to_real, *other.to_real, *y.to_stored),
        relu=relu,
        block_n=block_n,
        block_c=block_c,
        num_warps=4,
    )


def unfold_columns(
    images: Tensor, y: Layout, batch: int, *, taps: int, stride: int, pad: int
) -> None:
    """Launch y = the columns of each window of `images`, (batch, channels, height, width)."""
    from cubemesh.kernels.triton.hwnc import kernels

    _, channels, height, width = images.shape
    block_n = 16
    kernels.unfold_columns_kernel[(height * (batch // block_n),)](
        *(images, y.array, batch, channels, height, width, y.width, stride, pad, *y.to_stored),
        taps=taps,
        y_row=y.row,
        block_n=block_n,
        num_warps=4,
    )


def _blocks(batch: int, channels: int) -> tuple[int, int]:
    """Samples and channels of a program of an elementwise kernel: at most 4,096 elements."""
    block_c = 32
    while block_c < min(channels, 128):
        block_c *= 2
    block_n = LEAST_BATCH
    while batch % (2 * block_n) == 0 and 2 * block_n * block_c <= 4096:
        block_n *= 2
    return block_n, block_c


def _multiprocessors(device: torch.device) -> int:
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found
