# mypy: disable-error-code="no-untyped-call"
"""Launches of the kernels on arrays in the layout HWNC, and the tilings that a tuner tries.

Geometry is passed at run time: one compiled kernel serves all layers with the same tiling.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST_BATCH = 16
"""Batch sizes are multiples of this: the least number of rows of a matrix product."""
LEAST_CHANNELS = 32
"""Channels of arrays that convolutions read and write are multiples of this."""
MOST_HELD = 512
"""Most input channels whose weights one program holds."""
MOST_SHARED = 216 << 10
"""Bytes of shared memory that tiles take on one multiprocessor."""


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
    line_pixels: int = 0
    """Of an image with rows of 4 channels: its `channels` are those of a window, so many pixels of
    each of its rows."""
    scale: float = 1.0
    zero: int = 0
    """Of 8-bit values: x = scale · (q − zero)."""

    @property
    def low(self) -> float:
        """0 as it is stored, before it is rounded."""
        return float(self.zero)

    @property
    def clamps_negative(self) -> bool:
        """Whether no negative number can be stored."""
        return self.array.dtype == torch.int8 and self.zero == -128


@dataclass(frozen=True, kw_only=True)
class Window:
    """Windows of a convolution or pool: height and width of each."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    """At the top and the left."""
    dilation: tuple[int, int] = (1, 1)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Weights of a convolution on the device, for one input, result and residual."""

    weights: Tensor
    """(taps, output channels, input channels); of whole windows of an image (4, output channels,
    pixels)."""
    multipliers: Tensor
    """Of the sums of 8-bit products, for each output channel; unused in fp16."""
    offsets: Tensor
    tap_sums: Tensor
    """(taps + 1, output channels): sums of the 8-bit weights of each tap, and of all."""
    planes: int = 4
    """Of whole windows of an image: channels whose weights are not 0."""


def folded(
    weights: NDArray[np.generic],
    scales: NDArray[np.float32],
    biases: NDArray[np.float32],
    x: Layout,
    y: Layout,
    residual: Layout | None = None,
) -> Parameters:
    """The parameters of a convolution whose sums of products have `scales`."""
    sums = np.zeros((1, len(biases)), np.int32)
    offsets = biases.astype(np.float64)
    if weights.dtype == np.int8:
        taps = weights.sum(axis=2, dtype=np.int32)
        sums = np.concatenate([taps, taps.sum(axis=0, dtype=np.int32, keepdims=True)])
        offsets -= scales.astype(np.float64) * sums[-1] * x.zero
    if residual is not None:
        offsets -= residual.scale * residual.zero
    offsets = offsets / y.scale + y.zero

    planes = 4
    if whole_window(x):
        weights = weights[0].reshape(len(biases), -1, 4).transpose(2, 0, 1)
        planes = max((n + 1 for n in range(4) if weights[n].any()), default=1)

    def moved(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(x.array.device)

    return Parameters(
        weights=moved(weights),
        multipliers=moved((scales.astype(np.float64) / y.scale).astype(np.float32)),
        offsets=moved(offsets.astype(np.float32)),
        tap_sums=moved(sums),
        planes=planes,
    )


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
    (128, 128, 8, 3, 2),
    (128, 128, 4, 3, 2),
    (128, 64, 4, 3, 2),
    (128, 64, 4, 3, 4),
    (128, 64, 4, 4, 3),
    (64, 128, 4, 4, 2),
    (64, 128, 4, 3, 4),
    (64, 256, 8, 3, 1),
    (64, 256, 8, 3, 2),
    (64, 64, 4, 4, 4),
    (64, 64, 4, 3, 6),
    (256, 64, 8, 3, 2),
    (256, 128, 8, 3, 1),
    (64, 128, 4, 3, 1),
    (64, 128, 8, 3, 1),
    (128, 128, 8, 2, 1),
    (64, 256, 8, 2, 1),
    (64, 64, 4, 4, 1),
    (32, 64, 4, 4, 2),
    (32, 32, 4, 4, 4),
    (16, 32, 4, 4, 4),
)
_BY_WINDOWS = (
    (128, 64, 4, 1, 2),
    (128, 64, 4, 1, 3),
    (128, 64, 8, 1, 2),
    (128, 64, 8, 1, 3),
    (128, 64, 4, 2, 2),
    (256, 64, 8, 1, 1),
    (256, 64, 8, 1, 2),
    (64, 64, 4, 1, 4),
    (64, 64, 4, 1, 6),
    (64, 64, 4, 2, 4),
    (128, 32, 4, 1, 3),
    (64, 32, 4, 1, 4),
    (32, 64, 4, 1, 4),
    (32, 32, 4, 1, 6),
    (16, 32, 4, 1, 6),
)


def whole_window(x: Layout) -> bool:
    """Whether the channels of an image are those of a window with several lines."""
    return x.line_pixels > 0 and x.channels > x.row * x.line_pixels


def tilings(x: Layout, y: Layout, window: Window, batch: int) -> tuple[Tiling, ...]:
    """Those that fit a convolution. The larger tiles come first."""
    item_bytes = x.array.itemsize
    found = [
        Tiling(block_n=n, block_c=c, block_k=k, warps=warps, stages=stages)
        for n, c, k, warps, stages in _BY_TAPS
        if not whole_window(x)
        and batch % n == 0
        and y.channels % c == 0
        and x.channels % k == 0
        and (n + c) * k * item_bytes * stages <= MOST_SHARED
    ]
    if batch >= 64:  # small tiles serve small batches
        found = [one for one in found if one.block_n >= 64] or found
    held = x.channels <= MOST_HELD and x.channels & (x.channels - 1) == 0
    one_tap = window.kernel == (1, 1) and window.pad == (0, 0)
    if held and one_tap:
        rows = y.height * y.width * batch
        within_pixel = window.stride != (1, 1) or whole_window(x)
        found += [
            Tiling(block_n=n, block_c=c, block_k=0, warps=warps, stages=stages, programs=programs)
            for n, c, warps, stages, programs in (_BY_WINDOWS if whole_window(x) else _BY_ROWS)
            if (batch % n == 0 if within_pixel else rows % n == 0)
            and y.channels % c == 0
            and (n * stages + c) * x.channels * item_bytes * programs <= MOST_SHARED
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
    numbers = (added.scale / y.scale, y.low)
    arguments: list[Any] = [
        *(x.array, parameters.weights, y.array, added.array),
        *(parameters.multipliers, parameters.offsets),
    ]
    settings: dict[str, Any] = {
        "has_residual": residual is not None,
        "clamp": relu and not y.clamps_negative,
        "block_n": tiling.block_n,
        "block_c": tiling.block_c,
        "num_warps": tiling.warps,
    }
    blocks_c = y.channels // tiling.block_c
    kernel: Any
    if whole_window(x):
        kernel = kernels.conv_by_windows_kernel
        most = max(tiling.programs * _multiprocessors(x.array.device) // blocks_c, 1)
        pixels = y.height * y.width
        programs = min(most, pixels * (batch // tiling.block_n)) * blocks_c
        arguments += [pixels, batch, y.row, added.row, y.channels, x.width, y.width]
        arguments += [*window.stride, *numbers]
        settings |= {
            "in_channels": x.channels,
            "stages": tiling.stages,
            "line_pixels": x.line_pixels,
            "planes": parameters.planes,
        }
    elif tiling.block_k == 0:
        kernel = kernels.conv_by_rows_kernel
        rows = y.height * y.width * batch
        most = max(tiling.programs * _multiprocessors(x.array.device) // blocks_c, 1)
        programs = min(most, rows // tiling.block_n) * blocks_c
        arguments += [rows, batch, x.row, y.row, added.row, y.channels, x.width, y.width]
        arguments += [*window.stride, *numbers]
        settings |= {"in_channels": x.channels, "stages": tiling.stages}
        settings["strided"] = window.stride != (1, 1)
    else:
        kernel = kernels.conv_by_taps_kernel
        programs = y.height * y.width * (batch // tiling.block_n) * blocks_c
        arguments += [parameters.tap_sums, batch, x.row, y.row, added.row]
        arguments += [x.height, x.width, y.width, x.channels, y.channels, x.zero, *numbers]
        arguments += [*window.kernel, *window.stride, *window.pad, *window.dilation]
        settings |= {"block_k": tiling.block_k, "num_stages": tiling.stages}
        settings["across"] = x.line_pixels > 0
    if compile_only:
        kernel.warmup(*arguments, grid=(programs,), **settings)
    else:
        kernel[(programs,)](*arguments, **settings)


def max_pool(x: Layout, y: Layout, window: Window, batch: int, *, relu: bool = False) -> None:
    """Launch y = maximum of the windows of x, after ReLU. A window of one pixel copies."""
    from cubemesh.kernels.triton.hwnc import kernels

    block_n, block_c = _blocks(batch, x.channels)
    programs = y.height * y.width * (batch // block_n) * -(-x.channels // block_c)
    same = (x.array.dtype, x.scale, x.zero) == (y.array.dtype, y.scale, y.zero)
    clamp = relu and not y.clamps_negative
    kernels.max_pool_kernel[(programs,)](
        *(x.array, y.array, batch, x.channels, x.row, y.row, x.height, x.width, y.width),
        *(*window.stride, *window.pad, x.scale / y.scale),
        *(y.zero - x.zero * x.scale / y.scale, y.low),
        kernel_h=window.kernel[0],
        kernel_w=window.kernel[1],
        as_stored=same and not clamp,
        clamp=clamp,
        block_n=block_n,
        block_c=block_c,
        num_warps=4,
    )


def average_pool(
    x: Layout, y: Layout, window: Window, batch: int, *, divisor: int = 0, relu: bool = False
) -> None:
    """Launch y = mean of the windows of x, after ReLU. `divisor`: 0 for the number of pixels inside
    the image."""
    from cubemesh.kernels.triton.hwnc import kernels

    block_n, block_c = _blocks(batch, x.channels)
    while block_n > LEAST_BATCH and y.height * y.width * batch * x.channels < 1 << 21:
        block_n //= 2  # more programs for a small result
    programs = y.height * y.width * (batch // block_n) * -(-x.channels // block_c)
    kernels.average_pool_kernel[(programs,)](
        *(x.array, y.array, batch, x.channels, x.row, y.row, x.height, x.width, y.width),
        *(*window.kernel, *window.stride, *window.pad, divisor),
        *(x.zero, x.scale / y.scale, float(y.zero), y.low),
        clamp=relu and not y.clamps_negative,
        block_n=block_n,
        block_c=block_c,
        num_warps=4,
    )


def add(x: Layout, other: Layout, y: Layout, batch: int, *, relu: bool = False) -> None:
    """Launch y = x + other, after ReLU."""
    from cubemesh.kernels.triton.hwnc import kernels

    block_n, block_c = _blocks(batch, x.channels)
    zero = y.zero - (x.zero * x.scale + other.zero * other.scale) / y.scale
    kernels.add_kernel[(y.height * y.width * (batch // block_n),)](
        *(x.array, other.array, y.array, x.channels, x.row, other.row, y.row),
        *(x.scale / y.scale, other.scale / y.scale, zero, y.low),
        clamp=relu and not y.clamps_negative,
        block_n=block_n,
        block_c=block_c,
        num_warps=4,
    )


def store_images(images: Tensor, y: Layout, batch: int, *, top: int, left: int) -> None:
    """Launch y = `images`, (batch, channels, height, width), with 0 around them: the first pixel is
    at `top` and `left`."""
    from cubemesh.kernels.triton.hwnc import kernels

    _, channels, height, width = images.shape
    block_n, block_w = (32 if batch % 32 == 0 else LEAST_BATCH), 32
    programs = y.height * (batch // block_n) * -(-y.width // block_w)
    kernels.image_kernel[(programs,)](
        *(images, y.array, batch, channels, height, width, y.height, y.width, top, left),
        *(1.0 / y.scale, float(y.zero)),
        block_n=block_n,
        block_w=block_w,
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
