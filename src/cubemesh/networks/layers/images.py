"""Layer types of images, and of values of any shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from cubemesh.errors import UsageError
from cubemesh.networks.layers.base import (
    GLOROT,
    HE_OUT,
    ONES,
    ZEROS,
    Initializer,
    Layer,
    Pair,
    ParameterSpec,
    Shape,
    image_shape,
    weight_and_bias,
    window_positions,
)

ActivationFunction = Literal[
    "silu",
    "quick-gelu",
    "mish",
    "hard-sigmoid",
    "hard-swish",
    "relu6",
    "leaky-relu",
    "squared-relu",
]


@dataclass(frozen=True, kw_only=True)
class Convolution(Layer):
    """Two-dimensional cross-correlation. `dilation`: the distance between neighbouring cells of the
    kernel in the image (Yu and Koltun 2016); at 1 they touch."""

    category: ClassVar[str] = "convolution"
    filters: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = True
    initializer: Initializer = HE_OUT

    def output_shape(self, *inputs: Shape) -> Shape:
        """(filters, height, width)."""
        channels, height, width = image_shape(self, inputs[0])
        if channels % self.groups or self.filters % self.groups:
            raise UsageError(
                f"Convolution: {channels} channels and {self.filters} filters do not divide into "
                f"{self.groups} groups."
            )
        down, across = self.reach
        return (
            self.filters,
            window_positions(self, height, down, self.stride[0], self.padding[0]),
            window_positions(self, width, across, self.stride[1], self.padding[1]),
        )

    @property
    def reach(self) -> Pair:
        """Height and width of the part of the image under the kernel, gaps included."""
        down, across = (
            (cells - 1) * apart + 1 for cells, apart in zip(self.kernel, self.dilation, strict=True)
        )
        return (down, across)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (filters, channels / groups, height, width) and, if any, `bias`."""
        shape = (self.filters, inputs[0][0] // self.groups, *self.kernel)
        return weight_and_bias(shape, self.initializer, self.bias)


@dataclass(frozen=True, kw_only=True)
class Linear(Layer):
    """Matrix product with a weight on the last axis."""

    category: ClassVar[str] = "matrix product"
    features: int
    bias: bool = True
    initializer: Initializer = GLOROT

    def output_shape(self, *inputs: Shape) -> Shape:
        """The input's shape with the last axis replaced by `features`."""
        return (*inputs[0][:-1], self.features)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (features, inputs) and, if any, `bias`."""
        return weight_and_bias((self.features, inputs[0][-1]), self.initializer, self.bias)


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Layer):
    """Normalization over batch and image positions, per channel (Ioffe and Szegedy 2015).

    `momentum` is the weight of the new batch in the running statistics; the running variance takes
    the unbiased batch variance, the normalization the biased one.
    """

    category: ClassVar[str] = "normalization"
    epsilon: float = 1e-5
    momentum: float = 0.1
    scale_initializer: Initializer = ONES

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` and `bias`, one value a channel."""
        return weight_and_bias((inputs[0][0],), self.scale_initializer)

    def state(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`running_mean` and `running_variance`, one value a channel."""
        shape = (inputs[0][0],)
        return {
            "running_mean": ParameterSpec(shape=shape, initializer=ZEROS),
            "running_variance": ParameterSpec(shape=shape, initializer=ONES),
        }


@dataclass(frozen=True, kw_only=True)
class LocalResponseNorm(Layer):
    """x / (bias + alpha · mean of x² over a neighbourhood)^beta (Krizhevsky et al. 2012).

    `across` channels: `size` neighbouring channels at one position; `within` a channel: a
    `size` × `size` patch, zero-padded, as Caffe's WITHIN_CHANNEL.
    """

    category: ClassVar[str] = "normalization"
    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    region: Literal["across", "within"] = "across"


@dataclass(frozen=True, kw_only=True)
class ReLU(Layer):
    """max(x, 0)."""


@dataclass(frozen=True, kw_only=True)
class Add(Layer):
    """The sum of two values of one shape, as at the end of a residual branch."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """The shape both inputs have."""
        if len(set(inputs)) != 1:
            raise UsageError(f"Add needs values of one shape, was given {inputs}.")
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class Concat(Layer):
    """Concatenation along the first axis: the end of parallel branches."""

    category: ClassVar[str] = "copy"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(channels of all inputs together, height, width), or (features of all together,)."""
        if len({shape[1:] for shape in inputs}) != 1:
            raise UsageError(
                f"Concat needs values that differ only in their channels, was given {inputs}."
            )
        return (sum(shape[0] for shape in inputs), *inputs[0][1:])


@dataclass(frozen=True, kw_only=True)
class Dropout(Layer):
    """In training, zeroes a fraction `rate` of the values and scales the rest by 1 / (1 − rate);
    `per_sample` zeroes whole samples, as stochastic depth does with residual branches (Huang et al.
    2016)."""

    rate: float = 0.5
    per_sample: bool = False


@dataclass(frozen=True, kw_only=True)
class Flatten(Layer):
    """All axes into one, channels first."""

    category: ClassVar[str] = "view"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(channels · height · width,)."""
        return (math.prod(inputs[0]),)


@dataclass(frozen=True, kw_only=True)
class _Pool(Layer):
    category: ClassVar[str] = "pooling"
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    ceil_mode: bool = False
    """Whether a window that hangs over the far edge counts."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """(channels, height, width)."""
        channels, height, width = image_shape(self, inputs[0])
        sizes = zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        return (channels, *(window_positions(self, *axis, self.ceil_mode) for axis in sizes))


@dataclass(frozen=True, kw_only=True)
class MaxPool(_Pool):
    """The largest value under each window; padding never wins."""


@dataclass(frozen=True, kw_only=True)
class AveragePool(_Pool):
    """The mean under each window; cells of the padding count as zeros, cells beyond it do not."""


@dataclass(frozen=True, kw_only=True)
class GlobalAveragePool(Layer):
    """The mean of each channel over all positions of an image, or of each feature over all
    positions of a sequence."""

    category: ClassVar[str] = "pooling"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(channels,) or (features,)."""
        if len(inputs[0]) == 2:
            return (inputs[0][1],)
        return (image_shape(self, inputs[0])[0],)


@dataclass(frozen=True, kw_only=True)
class SelectChannels(Layer):
    """Some channels of an image, or features of each position, in the order of `channels`: a part
    of them, or all of them shuffled (Zhang et al. 2017)."""

    category: ClassVar[str] = "copy"
    channels: tuple[int, ...]

    def output_shape(self, *inputs: Shape) -> Shape:
        """The input's shape with as many channels, or features, as are selected."""
        shape = list(inputs[0])
        axis = 0 if len(shape) == 3 else -1
        if not self.channels or not 0 <= min(self.channels) <= max(self.channels) < shape[axis]:
            raise UsageError(f"SelectChannels: there are channels 0 to {shape[axis] - 1}.")
        shape[axis] = len(self.channels)
        return tuple(shape)


@dataclass(frozen=True, kw_only=True)
class PixelShuffle(Layer):
    """An image `factor` times as high and wide, each square of pixels from the channels of one (Shi
    et al. 2016): channel c · factor² + i · factor + j is row i and column j of the square in
    channel c. After a 1×1 convolution it is a transposed convolution whose kernel is its stride."""

    category: ClassVar[str] = "copy"
    factor: int = 2

    def output_shape(self, *inputs: Shape) -> Shape:
        """(channels / factor², factor · height, factor · width)."""
        channels, height, width = image_shape(self, inputs[0])
        if channels % self.factor**2:
            raise UsageError(
                f"PixelShuffle: {channels} channels do not divide into squares of {self.factor} × "
                f"{self.factor}."
            )
        return (channels // self.factor**2, self.factor * height, self.factor * width)


@dataclass(frozen=True, kw_only=True)
class Sigmoid(Layer):
    """1 / (1 + exp(−x))."""


@dataclass(frozen=True, kw_only=True)
class Activation(Layer):
    """A function of each value:

    | silu | x · σ(x) (also called swish) | hard-sigmoid | min(max(x + 3, 0), 6) / 6 |
    | quick-gelu | x · σ(1.702 x) | hard-swish | x · hard-sigmoid(x) |
    | mish | x · tanh(ln(1 + exp(x))) | relu6 | min(max(x, 0), 6) |
    | leaky-relu | x, or `slope` · x where x < 0 | squared-relu | max(x, 0)² |
    """

    function: ActivationFunction
    slope: float = 0.01
    """Of `leaky-relu`."""


@dataclass(frozen=True, kw_only=True)
class Multiply(Layer):
    """The product of two values: of one shape, or an image and a factor for each channel, as in
    squeeze-and-excitation (Hu et al. 2017)."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """The shape of the first."""
        one, other = inputs
        if one != other and not (len(one) == 3 and other == one[:1]):
            raise UsageError(
                "Multiply needs values of one shape, or an image and a value for each channel, was "
                f"given {inputs}."
            )
        return one


@dataclass(frozen=True, kw_only=True)
class Scale(Layer):
    """A learned factor for each channel of an image, or for each feature, as the LayerScale of
    residual branches (Touvron et al. 2021)."""

    initializer: Initializer = ONES

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight`, one value a channel or feature."""
        features = inputs[0][0 if len(inputs[0]) == 3 else -1]
        return {"weight": ParameterSpec(shape=(features,), initializer=self.initializer)}
