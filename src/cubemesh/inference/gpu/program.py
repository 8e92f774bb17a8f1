"""Program of a network for a GPU: steps on arrays in the layout HWNC, without the batch size.

graph ─ quantized_graph ─▶ operators, 8-bit scales ─ lower ─▶ program ─ session ─▶ CUDA graph
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cubemesh.inference.lowering import AddStep, PoolStep
from cubemesh.inference.quantization.quantized_graph import Quantized
from cubemesh.kernels.window import Window

IMAGE_ROW = 4
"""Most channels of the network's input, and those of a stored pixel."""
NOWHERE = -1
"""A channel of an array that has no channel of the network: it is 0."""


@dataclass(frozen=True, kw_only=True)
class DeviceArray:
    """An array (height, width, batch, channels), or a slice of the channels of one."""

    name: str
    height: int
    width: int
    slots: tuple[int, ...]
    """The channel of the network at each position, or `NOWHERE`."""
    dtype: str
    """`int8`, `float16` or `float32`."""
    buffer: int
    offset: int = 0
    """Of the first channel within the rows of the buffer."""
    row: int
    """Channels of the buffer's rows."""
    line_pixels: int = 0
    """Of the network's input: its channels are those of a window, so many pixels of each of its
    rows."""
    quantized: Quantized | None = None

    @property
    def channels(self) -> int:
        """Positions, those without a channel of the network included."""
        return len(self.slots)


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjectionPart:
    """A 1×1 convolution without padding, whose result is added to that of another."""

    x: str
    stride: tuple[int, int]
    weights: NDArray[np.generic]
    """(1, output channels, input channels)."""
    scales: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvStep:
    """A convolution, with what follows it. A matrix product is one over the whole image."""

    x: str
    y: str
    window: Window
    weights: NDArray[np.generic]
    """(taps, output channels, input channels), int8 or float16."""
    scales: NDArray[np.float32]
    """Of the sums of 8-bit products, for each output channel."""
    biases: NDArray[np.float32]
    residual: str = ""
    projection: ProjectionPart | None = None
    relu: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The arrays that it needs."""
        projected = "" if self.projection is None else self.projection.x
        return tuple(name for name in (self.x, self.residual, projected) if name)


@dataclass(frozen=True, kw_only=True)
class ImageStep:
    """The network's input in the layout of the program: rows of `IMAGE_ROW` channels, with 0 around
    the image. The first convolution reads all pixels of a window, or of one of its lines, as the
    channels of one. With `fold` 2 a row has the channels of 2 × 2 pixels, so that a stride of 2 is
    one of 1."""

    x: str
    """Name of the network's input."""
    y: str
    top: int
    """Lines of 0 before the first pixel."""
    left: int
    fold: int = 1

    @property
    def reads(self) -> tuple[str, ...]:
        """No array: the input is outside the program."""
        return ()


DeviceStep = ConvStep | PoolStep | AddStep | ImageStep


@dataclass(frozen=True, kw_only=True)
class DeviceProgram:
    """A network for a GPU."""

    network: str
    input: str
    input_shape: tuple[int, int, int]
    """Channels, height, width."""
    steps: tuple[DeviceStep, ...]
    arrays: Mapping[str, DeviceArray]
    buffers: tuple[int, ...]
    """Bytes of each buffer for each sample."""
    outputs: tuple[tuple[str, bool], ...]
    """Array, and whether its pixels and channels are one axis."""
