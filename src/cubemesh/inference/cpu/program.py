"""Program of a network in 8-bit integers for a CPU: steps on arrays of unsigned bytes in the layout
NHWC, without the batch size.

graph ─ quantized_graph ─▶ operators, scales ─ lower ─▶ program ─ session ─▶ packed weights, memory
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cubemesh.batches import Array
from cubemesh.inference.lowering import AddStep, PoolStep
from cubemesh.kernels.window import Window


@dataclass(frozen=True, kw_only=True)
class ByteArray:
    """An array (images, height, width, channels), or a slice of the channels of another."""

    name: str
    height: int
    width: int
    channels: int
    owner: str
    """The array of which it is a slice, or itself."""
    offset: int
    """Of its first channel in a pixel of the owner."""
    pitch: int
    """Channels of a pixel of the owner."""
    scale: float
    """x = scale · (q − zero); of float32 1."""
    zero: int
    floats: bool
    """Whether it is float32: a result of the network."""

    @property
    def image_bytes(self) -> int:
        """Bytes of an image of the owner."""
        return self.height * self.width * self.pitch * (4 if self.floats else 1)


@dataclass(frozen=True, kw_only=True)
class QuantizeStep:
    """The network's input in bytes, with a border of zeros. With `fold` 2 the channels of a pixel
    are those of 2 × 2 pixels, so that a stride of 2 is one of 1."""

    x: str
    y: str
    top: int
    left: int
    fold: int
    relu: bool = False
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class ProductStep:
    """A convolution with the residual sum and the ReLU that follow it. A matrix product is one of
    one tap."""

    x: str
    y: str
    window: Window
    weights: Array
    """int8 (output channels, taps, bytes that a tap reads)."""
    scales: Array
    """float32, of the weights of each output channel."""
    biases: Array
    """int64, in steps of the scales of the input and the weights."""
    residual: str = ""
    relu: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The arrays that it needs."""
        return (self.x, self.residual) if self.residual else (self.x,)


@dataclass(frozen=True, kw_only=True)
class NormStep:
    """Response normalization: x / (bias + alpha · mean of x²)^beta, over `size` channels of a pixel
    or, where that is 1, over a `window` around the pixel, with zeros beyond the border."""

    x: str
    y: str
    size: int = 1
    window: Window
    alpha: float
    beta: float
    bias: float
    relu: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The array that it needs."""
        return (self.x,)

    @property
    def count(self) -> int:
        """Squares of a mean."""
        return self.size * self.window.kernel[0] * self.window.kernel[1]


Step = QuantizeStep | ProductStep | PoolStep | AddStep | NormStep


@dataclass(frozen=True, kw_only=True)
class ByteProgram:
    """A network in bytes."""

    network: str
    input: str
    input_shape: tuple[int, int, int]
    """Channels, height, width."""
    steps: tuple[Step, ...]
    arrays: Mapping[str, ByteArray]
    outputs: tuple[tuple[str, bool], ...]
    """Array, and whether its pixels and channels are one axis."""
