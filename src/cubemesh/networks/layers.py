"""Layer types: what each computes, its shapes and its parameters.

A layer is a frozen dataclass of its settings. It knows nothing of batches or frameworks: shapes are
per sample, channels first, `(channels, height, width)` or `(features,)`. A framework brings a table
of lowerings, one line a layer type; `networks/cost.py` counts what each costs.

Weights are laid out `(out, in / groups, height, width)` for convolutions and `(out, in)` for matrix
products, whatever layout a program runs in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from cubemesh.errors import UsageError

Shape = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Initializer:
    """How values are first drawn.

    `he_normal` is N(0, scale² · 2 / fan), He et al. 2015, fan in or out; `glorot_uniform` is
    U(± scale · sqrt(6 / (fan_in + fan_out))), Glorot and Bengio 2010; `normal` is N(0, scale²).
    `networks/weights.py` draws them.
    """

    kind: Literal["zeros", "ones", "normal", "he_normal", "glorot_uniform"]
    scale: float = 1.0
    fan: Literal["in", "out"] = "in"


ZEROS = Initializer(kind="zeros")
ONES = Initializer(kind="ones")
HE_IN = Initializer(kind="he_normal")
HE_OUT = Initializer(kind="he_normal", fan="out")
GLOROT = Initializer(kind="glorot_uniform")


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """Shape and first values of one array a layer owns."""

    shape: Shape
    initializer: Initializer


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Base of all layer types. `category` is how a time breakdown sorts it."""

    category: ClassVar[str] = "elementwise"

    def output_shape(self, *inputs: Shape) -> Shape:
        """Shape of one sample's result; UsageError when the inputs do not fit."""
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """What training adapts, by role ("weight", "bias")."""
        return {}

    def state(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """What a forward pass in training updates without a gradient, by role."""
        return {}


def _image(layer: Layer, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise UsageError(
            f"{type(layer).__name__} needs (channels, height, width), was given {shape}."
        )
    return shape[0], shape[1], shape[2]


def _slide(
    layer: Layer, size: int, kernel: int, stride: int, padding: int, ceil_mode: bool = False
) -> int:
    """Positions of a window along one axis."""
    room = size + 2 * padding - kernel
    if room < 0:
        raise UsageError(
            f"{type(layer).__name__}: a window of {kernel} does not fit into {size} with padding "
            f"{padding}. Use a larger image_size."
        )
    if not ceil_mode:
        return room // stride + 1
    positions = math.ceil(room / stride) + 1
    # The last window must begin inside the input or its left padding (as Caffe and PyTorch do).
    return positions - 1 if (positions - 1) * stride >= size + padding else positions


@dataclass(frozen=True, kw_only=True)
class Convolution(Layer):
    """Two-dimensional cross-correlation."""

    category: ClassVar[str] = "convolution"
    filters: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    groups: int = 1
    bias: bool = True
    initializer: Initializer = HE_OUT

    def output_shape(self, *inputs: Shape) -> Shape:
        """(filters, height, width)."""
        channels, height, width = _image(self, inputs[0])
        if channels % self.groups or self.filters % self.groups:
            raise UsageError(
                f"Convolution: {channels} channels and {self.filters} filters do not divide into "
                f"{self.groups} groups."
            )
        return (
            self.filters,
            _slide(self, height, self.kernel[0], self.stride[0], self.padding[0]),
            _slide(self, width, self.kernel[1], self.stride[1], self.padding[1]),
        )

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (filters, channels / groups, height, width) and, if any, `bias`."""
        shape = (self.filters, inputs[0][0] // self.groups, *self.kernel)
        own = {"weight": ParameterSpec(shape=shape, initializer=self.initializer)}
        if self.bias:
            own["bias"] = ParameterSpec(shape=(self.filters,), initializer=ZEROS)
        return own


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
        shape = (self.features, inputs[0][-1])
        own = {"weight": ParameterSpec(shape=shape, initializer=self.initializer)}
        if self.bias:
            own["bias"] = ParameterSpec(shape=(self.features,), initializer=ZEROS)
        return own


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
        shape = (inputs[0][0],)
        return {
            "weight": ParameterSpec(shape=shape, initializer=self.scale_initializer),
            "bias": ParameterSpec(shape=shape, initializer=ZEROS),
        }

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
    """Values one behind the other along the first axis: where branches of a block meet."""

    category: ClassVar[str] = "copy"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(channels of all inputs together, height, width), or (features of all together,)."""
        if len({shape[1:] for shape in inputs}) != 1:
            raise UsageError(
                f"Concat needs values alike but for their channels, was given {inputs}."
            )
        return (sum(shape[0] for shape in inputs), *inputs[0][1:])


@dataclass(frozen=True, kw_only=True)
class Dropout(Layer):
    """In training, zeroes a share `rate` of the values and scales the rest by 1 / (1 − rate)."""

    rate: float = 0.5


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
        channels, height, width = _image(self, inputs[0])
        sizes = zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        return (channels, *(_slide(self, *axis, self.ceil_mode) for axis in sizes))


@dataclass(frozen=True, kw_only=True)
class MaxPool(_Pool):
    """The largest value under each window; padding never wins."""


@dataclass(frozen=True, kw_only=True)
class AveragePool(_Pool):
    """The mean under each window; cells of the padding count as zeros, cells beyond it do not."""


@dataclass(frozen=True, kw_only=True)
class GlobalAveragePool(Layer):
    """The mean of each channel over all positions, as `(channels,)`."""

    category: ClassVar[str] = "pooling"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(channels,)."""
        return (_image(self, inputs[0])[0],)


LAYERS: dict[str, type[Layer]] = {
    "convolution": Convolution,
    "linear": Linear,
    "batch-norm": BatchNorm,
    "local-response-norm": LocalResponseNorm,
    "relu": ReLU,
    "add": Add,
    "concat": Concat,
    "dropout": Dropout,
    "flatten": Flatten,
    "max-pool": MaxPool,
    "average-pool": AveragePool,
    "global-average-pool": GlobalAveragePool,
}
"""The layer types of image networks, which every framework lowers; the contract tests hold each's
table against it. `sequence_layers.py` has the others."""
