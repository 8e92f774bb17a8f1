# mypy: disable-error-code="no-untyped-call"
"""Launches of the kernels on arrays in the layout HWNC, and the tilings that a tuner tries.

Geometry is passed at run time: one compiled kernel serves all layers with the same tiling.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cubemesh.kernels.window import Window

LEAST_CHANNELS = 32
"""Channels of arrays that convolutions read and write are multiples of this."""
MOST_HELD = 512
"""Most input channels whose weights one program holds."""
MOST_SHARED = 216 << 10
"""Bytes of shared memory that tiles take on one multiprocessor."""
MOST_BY_PIXELS = 128
"""Larger batches fill tiles with the samples of one pixel."""
MANY_BLOCKS = 264
"""So many programs fill a device: with more, larger tiles are faster."""
MOST_SPLIT_BYTES = 32 << 20
"""Of the partial sums of a convolution whose products are split."""


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
class Projection:
    """A 1×1 convolution of another array, whose result is added to that of a convolution."""

    x: Layout
    stride: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Weights of a convolution on the device, for one input, result and residual."""

    weights: Tensor
    """(taps, output channels, input channels)."""
    multipliers: Tensor
    """Of the sums of 8-bit products, for each output channel; unused in fp16."""
    offsets: Tensor
    tap_sums: Tensor
    """(taps + 1, output channels): sums of the 8-bit weights of each tap, and of all."""
    border: Tensor
    """Input channels of a tap outside the image: the stored 0."""
    window_weights: Tensor | None = None
    """Of whole windows of an image: (4, output channels, pixels)."""
    planes: int = 4
    """Of whole windows of an image: channels whose weights are not 0."""
    projection_weights: Tensor | None = None
    """(1, output channels, input channels)."""
    projection_multipliers: Tensor | None = None


def folded(
    weights: NDArray[np.generic],
    scales: NDArray[np.float32],
    biases: NDArray[np.float32],
    x: Layout,
    y: Layout,
    batch: int,
    residual: Layout | None = None,
    projected: tuple[NDArray[np.generic], NDArray[np.float32], Layout] | None = None,
) -> Parameters:
    """The parameters of a convolution whose sums of products have `scales`. `projected`: weights,
    scales and input of the projection."""
    offsets = biases.astype(np.float64)

    def moved(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(x.array.device)

    def multipliers(scales: NDArray[np.float32]) -> Tensor:
        return moved((scales.astype(np.float64) / y.scale).astype(np.float32))

    def zero_sums(
        weights: NDArray[np.generic], scales: NDArray[np.float32], x: Layout
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Sums of the 8-bit weights, and what the zero point of the input adds to results."""
        if weights.dtype != np.int8:
            return np.zeros((1, len(biases)), np.int32), np.zeros(len(biases))
        taps = weights.sum(axis=2, dtype=np.int32)
        sums = np.concatenate([taps, taps.sum(axis=0, dtype=np.int32, keepdims=True)])
        return sums, scales.astype(np.float64) * sums[-1] * x.zero

    sums, added = zero_sums(weights, scales, x)
    offsets -= added
    if residual is not None:
        offsets -= residual.scale * residual.zero
    optional: dict[str, Any] = {}
    if projected is not None:
        offsets -= zero_sums(*projected)[1]
        optional["projection_weights"] = moved(projected[0])
        optional["projection_multipliers"] = multipliers(projected[1])
    if whole_window(x):
        planes = weights[0].reshape(len(biases), -1, 4).transpose(2, 0, 1)
        optional["window_weights"] = moved(planes)
        optional["planes"] = max((n + 1 for n in range(4) if planes[n].any()), default=1)
    border = max(x.channels, x.line_pixels * x.row * batch)
    return Parameters(
        weights=moved(weights),
        multipliers=multipliers(scales),
        offsets=moved((offsets / y.scale + y.zero).astype(np.float32)),
        tap_sums=moved(sums),
        border=torch.full((border,), x.zero, dtype=x.array.dtype, device=x.array.device),
        **optional,
    )


class Method(IntEnum):
    """Kernels of convolutions."""

    TAPS = 0
    ROWS = 1
    WINDOWS = 2
    LINES = 3
    PIXELS = 4


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a convolution is cut into programs."""

    method: Method
    block_n: int
    block_c: int
    block_k: int
    """Input channels of a step; 0: all."""
    warps: int
    stages: int
    parts: int = 1
    """By rows and windows: programs on each multiprocessor. By lines: programs of a line. By
    pixels: programs that share the products of a block."""

    def as_numbers(self) -> tuple[int, ...]:
        """For a file."""
        return tuple(map(int, astuple(self)))

    @classmethod
    def from_numbers(cls, numbers: tuple[int, ...]) -> Tiling:
        """The inverse of `as_numbers`."""
        method, block_n, block_c, block_k, warps, stages, parts = numbers
        return cls(
            method=Method(method),
            block_n=block_n,
            block_c=block_c,
            block_k=block_k,
            warps=warps,
            stages=stages,
            parts=parts,
        )


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
_BY_LINES = (
    (128, 64, 8, 1, 2),
    (128, 64, 8, 2, 1),
    (128, 64, 8, 2, 2),
    (128, 64, 8, 2, 4),
    (64, 64, 4, 1, 2),
    (64, 64, 4, 1, 4),
    (64, 64, 4, 2, 1),
    (64, 64, 4, 2, 2),
    (64, 64, 4, 2, 4),
    (64, 64, 4, 3, 2),
    (128, 32, 4, 2, 2),
    (128, 32, 4, 2, 4),
    (64, 32, 4, 2, 2),
    (64, 32, 4, 2, 4),
    (32, 64, 4, 2, 4),
    (16, 64, 4, 2, 4),
    (16, 32, 4, 2, 1),
)
_BY_PIXELS = (
    (128, 128, 64, 8, 3),
    (128, 128, 128, 8, 3),
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 64, 64, 4, 4),
    (128, 64, 128, 4, 3),
    (64, 128, 64, 4, 4),
    (64, 128, 128, 4, 4),
    (64, 64, 64, 4, 5),
    (64, 64, 128, 4, 4),
    (64, 32, 64, 4, 5),
    (64, 32, 128, 4, 5),
    (32, 64, 128, 4, 5),
    (32, 32, 64, 2, 6),
    (32, 32, 128, 4, 6),
    (16, 64, 128, 4, 5),
    (16, 32, 64, 2, 6),
    (16, 32, 128, 4, 6),
    (32, 32, 32, 4, 4),
    (16, 32, 32, 2, 4),
)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)


def whole_window(x: Layout) -> bool:
    """Whether the channels of an image are those of a window with several lines."""
    return x.line_pixels > 0 and x.channels > x.row * x.line_pixels


def tilings(
    x: Layout, y: Layout, window: Window, batch: int, projection: Projection | None = None
) -> tuple[Tiling, ...]:
    """Those that fit a convolution. The larger tiles come first."""
    item_bytes = x.array.itemsize
    depths = [x.channels] if projection is None else [x.channels, projection.x.channels]
    found = [
        Tiling(method=Method.TAPS, block_n=n, block_c=c, block_k=k, warps=warps, stages=stages)
        for n, c, k, warps, stages in _BY_TAPS
        if not whole_window(x)
        and batch % n == 0
        and y.channels % c == 0
        and all(depth % k == 0 for depth in depths)
        and (n + c) * k * item_bytes * stages <= MOST_SHARED
    ]
    if batch >= 64:  # small tiles serve small batches
        found = [one for one in found if one.block_n >= 64] or found
    one_tap = window.kernel == (1, 1) and window.pad == (0, 0)
    held = all(depth <= MOST_HELD and depth & (depth - 1) == 0 for depth in depths)
    if held and one_tap and whole_window(x):
        found += _held_tilings(Method.WINDOWS, _BY_WINDOWS, y, depths, item_bytes, batch)
    elif held and one_tap and not x.line_pixels:
        strides = {window.stride, (1, 1) if projection is None else projection.stride}
        rows = batch if strides != {(1, 1)} else y.height * y.width * batch
        found += _held_tilings(Method.ROWS, _BY_ROWS, y, depths, item_bytes, rows)
    if _by_lines(x, y, window):
        found += [
            Tiling(
                method=Method.LINES,
                block_n=n,
                block_c=c,
                block_k=0,
                warps=warps,
                stages=stages,
                parts=parts,
            )
            for n, c, warps, stages, parts in _BY_LINES
            if y.channels % c == 0
            and y.width % parts == 0
            and _power_of_two_in(batch, n) >= 4
            and y.height % (n // _power_of_two_in(batch, n)) == 0
        ]
    large = max(x.height * x.width * x.row, y.height * y.width * y.row) * batch >= 1 << 31
    if (batch <= MOST_BY_PIXELS or not found) and not large:
        found += _pixel_tilings(x, y, window, batch, depths)
    return tuple(found)


def _held_tilings(
    method: Method,
    shapes: tuple[tuple[int, int, int, int, int], ...],
    y: Layout,
    depths: list[int],
    item_bytes: int,
    rows: int,
) -> list[Tiling]:
    """Those of kernels that hold the weights of all input channels."""
    return [
        Tiling(
            method=method, block_n=n, block_c=c, block_k=0, warps=warps, stages=stages, parts=parts
        )
        for n, c, warps, stages, parts in shapes
        if rows % n == 0
        and y.channels % c == 0
        and (n * stages + c) * sum(depths) * item_bytes * parts <= MOST_SHARED
    ]


def _by_lines(x: Layout, y: Layout, window: Window) -> bool:
    """Whether an image's windows are lines of few blocks of pixels, read along a line."""
    lines = window.kernel[0]
    return (
        x.line_pixels in (2, 4)
        and not whole_window(x)
        and (window.kernel[1], window.stride, window.pad) == (1, (1, 1), (0, 0))
        and window.dilation == (1, 1)
        and lines & (lines - 1) == 0
        and 32 <= lines * x.row <= 64
        and x.width >= y.width + x.line_pixels - 1
    )


def _pixel_tilings(
    x: Layout, y: Layout, window: Window, batch: int, depths: list[int]
) -> list[Tiling]:
    rows = y.height * y.width * batch
    line = x.line_pixels * x.row
    found = []
    for n, c, k, warps, stages in _BY_PIXELS:
        fits = (
            (n // 2 < rows or n == 16)
            and (n * c >= 64 * 64 or rows * y.channels < MANY_BLOCKS * 64 * 64)
            and y.channels % c == 0
            and all(depth % k == 0 for depth in depths)
            and (not whole_window(x) or k % line == 0)
            and (n + c) * k * x.array.itemsize * stages <= MOST_SHARED
        )
        if not fits:
            continue
        blocks = -(-rows // n) * (y.channels // c)
        steps = window.kernel[0] * window.kernel[1] * (depths[0] // k) + sum(depths[1:]) // k
        for parts in _SPLITS:
            programs = blocks * parts
            if parts > 1 and (
                programs > 400
                or steps < 2 * parts
                or parts * -(-rows // n) * n * y.channels * 4 > MOST_SPLIT_BYTES
            ):
                continue
            if programs * 2 < 132 and programs < blocks * _most_parts(steps):
                continue  # more parts would fill more of the device
            found.append(
                Tiling(
                    method=Method.PIXELS,
                    block_n=n,
                    block_c=c,
                    block_k=k,
                    warps=warps,
                    stages=stages,
                    parts=parts,
                )
            )
    return found


def _most_parts(steps: int) -> int:
    return max(parts for parts in _SPLITS if parts == 1 or steps >= 2 * parts)


def split_bytes(y: Layout, batch: int, tiling: Tiling) -> tuple[int, int]:
    """Bytes of the partial sums of a tiling, and of the numbers of programs that arrived."""
    if tiling.method is not Method.PIXELS or tiling.parts == 1:
        return 0, 0
    blocks = -(-y.height * y.width * batch // tiling.block_n) * (y.channels // tiling.block_c)
    return tiling.parts * blocks * tiling.block_n * tiling.block_c * 4, blocks * 4


def convolve(
    x: Layout,
    parameters: Parameters,
    y: Layout,
    window: Window,
    batch: int,
    tiling: Tiling,
    *,
    residual: Layout | None = None,
    projection: Projection | None = None,
    relu: bool = False,
    partial: Tensor | None = None,
    arrived: Tensor | None = None,
    compile_only: bool = False,
) -> None:
    """Launch y = convolution of x, plus `residual` and `projection`, after ReLU; with
    `compile_only` compile it. `partial`, and `arrived` that is 0, hold `split_bytes`."""
    from cubemesh.kernels.triton.hwnc import kernels

    kernel: Any
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
        "launch_pdl": True,
    }
    blocks_c = y.channels // tiling.block_c
    pixels = y.height * y.width
    projected: list[Any] = [y.array, parameters.weights, parameters.multipliers, 0, 0, 0, 1, 1]
    if projection is not None:
        p = projection.x
        projected = [p.array, parameters.projection_weights, parameters.projection_multipliers]
        projected += [p.row, p.width, p.channels, *projection.stride]
    geometry = [*window.kernel, *window.stride, *window.pad, *window.dilation]
    most = max(tiling.parts * _multiprocessors(x.array.device) // blocks_c, 1)
    if tiling.method is Method.WINDOWS:
        kernel = kernels.conv_by_windows_kernel
        programs = min(most, pixels * (batch // tiling.block_n)) * blocks_c
        arguments[1] = parameters.window_weights
        arguments += [pixels, batch, y.row, added.row, y.channels, x.width, y.width]
        arguments += [*window.stride, *numbers]
        settings |= {
            "in_channels": x.channels,
            "stages": tiling.stages,
            "line_pixels": x.line_pixels,
            "planes": parameters.planes,
        }
    elif tiling.method is Method.LINES:
        kernel = kernels.conv_by_lines_kernel
        programs = pixels * batch // tiling.block_n // (y.width // tiling.parts) * blocks_c
        arguments = [x.array, parameters.weights, y.array, *arguments[4:]]
        arguments += [batch, y.row, y.channels, x.width, y.width, y.width // tiling.parts, y.low]
        del settings["has_residual"]
        settings |= {
            "x_row": x.row,
            "lines": window.kernel[0],
            "line_pixels": x.line_pixels,
            "samples": _power_of_two_in(batch, tiling.block_n),
            "stages": tiling.stages,
        }
    elif tiling.method is Method.ROWS:
        kernel = kernels.conv_by_rows_kernel
        rows = pixels * batch
        programs = min(most, rows // tiling.block_n) * blocks_c
        arguments += [*projected, rows, batch, x.row, y.row, added.row, y.channels]
        arguments += [x.width, y.width, *window.stride, *numbers]
        settings |= {
            "in_channels": x.channels,
            "stages": tiling.stages,
            "strided": window.stride != (1, 1),
            "has_projection": projection is not None,
            "p_strided": projection is not None and projection.stride != (1, 1),
        }
    elif tiling.method is Method.TAPS:
        kernel = kernels.conv_by_taps_kernel
        programs = pixels * (batch // tiling.block_n) * blocks_c
        arguments += [*projected, parameters.tap_sums, batch, x.row, y.row, added.row]
        arguments += [x.height, x.width, y.width, x.channels, y.channels, x.zero, *numbers]
        arguments += geometry
        settings |= {"block_k": tiling.block_k, "num_stages": tiling.stages}
        settings["across"] = x.row if x.line_pixels else 0
        settings["has_projection"] = projection is not None
    else:
        kernel = kernels.conv_by_pixels_kernel
        rows = pixels * batch
        programs = -(-rows // tiling.block_n) * blocks_c * tiling.parts
        sums = [parameters.multipliers if one is None else one for one in (partial, arrived)]
        arguments += [*projected, parameters.border, *sums, rows, tiling.parts, batch]
        arguments += [x.row, y.row, added.row, x.height, x.width, y.width]
        arguments += [x.channels, y.channels, *numbers, *geometry]
        settings |= {
            "block_k": tiling.block_k,
            "num_stages": tiling.stages,
            "across": x.row if x.line_pixels else 0,
            "line_pixels": x.line_pixels,
            "padded": _reaches_outside(x, y, window),
            "split": tiling.parts > 1,
            "has_projection": projection is not None,
        }
    if compile_only:
        kernel.warmup(*arguments, grid=(programs,), **settings)
    else:
        kernel[(programs,)](*arguments, **settings)


def _reaches_outside(x: Layout, y: Layout, window: Window) -> bool:
    """Whether some taps are outside the image."""
    last = [
        (out - 1) * stride - pad + (taps - 1) * apart
        for out, stride, pad, taps, apart in zip(
            (y.height, y.width),
            window.stride,
            window.pad,
            window.kernel,
            window.dilation,
            strict=True,
        )
    ]
    return window.pad != (0, 0) or last[0] >= x.height or last[1] >= x.width


def max_pool(x: Layout, y: Layout, window: Window, batch: int, *, relu: bool = False) -> None:
    """Launch y = maximum of the windows of x, after ReLU. A window of one pixel copies."""
    from cubemesh.kernels.triton.hwnc import kernels

    block_c = _channels(x.channels)
    rows = y.height * y.width * batch
    block_n = 4096 // block_c
    while block_n > 4 and rows // block_n < 4 * _multiprocessors(x.array.device):
        block_n //= 2
    programs = -(-rows // block_n) * -(-x.channels // block_c)
    same = (x.array.dtype, x.scale, x.zero) == (y.array.dtype, y.scale, y.zero)
    clamp = relu and not y.clamps_negative
    kernels.max_pool_kernel[(programs,)](
        *(x.array, y.array, rows, batch, x.channels, x.row, y.row),
        *(x.height, x.width, y.width, *window.stride, *window.pad, x.scale / y.scale),
        *(y.zero - x.zero * x.scale / y.scale, y.low),
        kernel_h=window.kernel[0],
        kernel_w=window.kernel[1],
        as_stored=same and not clamp,
        clamp=clamp,
        block_n=block_n,
        block_c=block_c,
        num_warps=_warps(block_n * block_c),
        launch_pdl=True,
    )


def average_pool(
    x: Layout, y: Layout, window: Window, batch: int, *, divisor: int = 0, relu: bool = False
) -> None:
    """Launch y = mean of the windows of x, after ReLU. `divisor`: 0 for the number of pixels inside
    the image."""
    from cubemesh.kernels.triton.hwnc import kernels

    block_n, block_c = _blocks(batch, x.channels)
    small = y.height * y.width * batch * x.channels < 1 << 21
    while block_n > 16 and small:
        block_n //= 2  # more programs for a small result
    block_t = 1
    if block_n < 16 and small:
        block_c, block_t = 32, 64 // block_n
    programs = y.height * y.width * (batch // block_n) * -(-x.channels // block_c)
    kernels.average_pool_kernel[(programs,)](
        *(x.array, y.array, batch, x.channels, x.row, y.row, x.height, x.width, y.width),
        *(*window.kernel, *window.stride, *window.pad, divisor),
        *(x.zero, x.scale / y.scale, float(y.zero), y.low),
        clamp=relu and not y.clamps_negative,
        block_n=block_n,
        block_c=block_c,
        block_t=block_t,
        num_warps=_warps(block_n * block_c * block_t),
        launch_pdl=True,
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
        num_warps=_warps(block_n * block_c),
        launch_pdl=True,
    )


def store_images(
    images: Tensor, y: Layout, batch: int, *, top: int, left: int, fold: int = 1
) -> None:
    """Launch y = `images`, (batch, channels, height, width), as blocks of `fold` × `fold` pixels
    with 0 around them: the first pixel is at `top` and `left`."""
    from cubemesh.kernels.triton.hwnc import kernels

    _, channels, height, width = images.shape
    block_n = _power_of_two_in(batch, 32 // fold)
    block_w = 32 // fold if block_n >= 8 else 64
    programs = y.height * (batch // block_n) * -(-y.width // block_w)
    kernels.image_kernel[(programs,)](
        *(images, y.array, batch, channels, height, width, y.height, y.width, top, left),
        *(1.0 / y.scale, float(y.zero)),
        fold=fold,
        block_n=block_n,
        block_w=block_w,
        num_warps=4,
        launch_pdl=True,
    )


def _blocks(batch: int, channels: int) -> tuple[int, int]:
    """Samples and channels of a program of an elementwise kernel: at most 4,096 elements."""
    block_c = _channels(channels)
    return _power_of_two_in(batch, 4096 // block_c), block_c


def _channels(channels: int) -> int:
    """Channels of an elementwise program."""
    return 32 if channels <= 32 else 64 if channels <= 64 else 128


def _power_of_two_in(number: int, most: int) -> int:
    """The largest power of two, up to `most`, that divides a number."""
    found = 1
    while number % (2 * found) == 0 and 2 * found <= most:
        found *= 2
    return found


def _warps(elements: int) -> int:
    """Of an elementwise program."""
    return 4 if elements >= 1024 else 2 if elements >= 512 else 1


def _multiprocessors(device: torch.device) -> int:
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found
