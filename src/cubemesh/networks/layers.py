"""Layer types of images and of sequences: what each computes, its shapes and its parameters.

A layer is a frozen dataclass of its settings. It knows nothing of batches or frameworks: shapes are
per sample, `(channels, height, width)` or `(features,)`; of a sequence `(length, features)`, of its
tokens, which are integers, `(length,)`. A framework has a table of lowerings, one line a layer
type; `networks/cost.py` counts what each costs.

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
    U(± scale · sqrt(6 / (fan_in + fan_out))), Glorot and Bengio 2010; `normal` is N(mean, scale²).
    `networks/weights.py` draws them.
    """

    kind: Literal["zeros", "ones", "normal", "he_normal", "glorot_uniform"]
    scale: float = 1.0
    fan: Literal["in", "out"] = "in"
    mean: float = 0.0
    """Of `normal`."""


ZEROS = Initializer(kind="zeros")
ONES = Initializer(kind="ones")
HE_IN = Initializer(kind="he_normal")
HE_OUT = Initializer(kind="he_normal", fan="out")
GLOROT = Initializer(kind="glorot_uniform")
SMALL_NORMAL = Initializer(kind="normal", scale=0.02)
"""N(0, 0.02²), as the transformers of 2018 and after start embeddings."""


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


def _weight_and_bias(
    shape: Shape, initializer: Initializer, bias: bool = True
) -> dict[str, ParameterSpec]:
    """`weight` of `shape` and, if wanted, `bias`: a zero for each of its first axis."""
    own = {"weight": ParameterSpec(shape=shape, initializer=initializer)}
    if bias:
        own["bias"] = ParameterSpec(shape=shape[:1], initializer=ZEROS)
    return own


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
        return _weight_and_bias(shape, self.initializer, self.bias)


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
        return _weight_and_bias((self.features, inputs[0][-1]), self.initializer, self.bias)


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
        return _weight_and_bias((inputs[0][0],), self.scale_initializer)

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
    """In training, zeroes a fraction `rate` of the values and scales the rest by 1 / (1 − rate)."""

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


def _sequence(layer: Layer, shape: Shape) -> tuple[int, int]:
    if len(shape) != 2:
        raise UsageError(f"{type(layer).__name__} needs (length, features), was given {shape}.")
    return shape[0], shape[1]


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Layer):
    """Normalization over the last axis of each position (Ba, Kiros and Hinton 2016), by the biased
    variance, then a learned scale and shift."""

    category: ClassVar[str] = "normalization"
    epsilon: float = 1e-5

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` and `bias`, one value a feature."""
        return _weight_and_bias((inputs[0][-1],), ONES)


@dataclass(frozen=True, kw_only=True)
class GELU(Layer):
    """x · Φ(x) (Hendrycks and Gimpel 2016), Φ by the error function, or approximated as
    ½ (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    form: Literal["erf", "tanh"] = "erf"


@dataclass(frozen=True, kw_only=True)
class Attention(Layer):
    """softmax(Q Kᵀ / √d) V in each of `heads` heads of d features (Vaswani et al. 2017).

    Its one input holds queries, keys and values side by side, each with its heads side by side.
    `causal`: a position sees itself and those before it.
    """

    category: ClassVar[str] = "attention"
    heads: int
    causal: bool = False

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, features), from (length, 3 · features)."""
        length, features = _sequence(self, inputs[0])
        if features % (3 * self.heads):
            raise UsageError(
                f"Attention: {features} features do not divide into queries, keys and values of "
                f"{self.heads} heads each."
            )
        return (length, features // 3)


@dataclass(frozen=True, kw_only=True)
class Tokens(Layer):
    """An image's positions as a sequence, row by row."""

    category: ClassVar[str] = "view"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(height · width, channels)."""
        channels, height, width = _image(self, inputs[0])
        return (height * width, channels)


@dataclass(frozen=True, kw_only=True)
class Embedding(Layer):
    """A learned vector for each token of a vocabulary."""

    category: ClassVar[str] = "embedding"
    vocabulary: int
    features: int
    initializer: Initializer = SMALL_NORMAL

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, features), from tokens (length,)."""
        if len(inputs[0]) != 1:
            raise UsageError(f"Embedding needs tokens (length,), was given {inputs[0]}.")
        return (inputs[0][0], self.features)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (vocabulary, features)."""
        shape = (self.vocabulary, self.features)
        return {"weight": ParameterSpec(shape=shape, initializer=self.initializer)}


@dataclass(frozen=True, kw_only=True)
class ClassToken(Layer):
    """A learned position put before all others (Devlin et al. 2018), to be classified by."""

    category: ClassVar[str] = "copy"
    initializer: Initializer = ZEROS

    def output_shape(self, *inputs: Shape) -> Shape:
        """(1 + length, features)."""
        length, features = _sequence(self, inputs[0])
        return (1 + length, features)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`token` (features,)."""
        return {"token": ParameterSpec(shape=(inputs[0][1],), initializer=self.initializer)}


@dataclass(frozen=True, kw_only=True)
class PositionEmbedding(Layer):
    """Adds a learned vector to each position."""

    initializer: Initializer = SMALL_NORMAL

    def output_shape(self, *inputs: Shape) -> Shape:
        """As the input."""
        return _sequence(self, inputs[0])

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (length, features)."""
        return {"weight": ParameterSpec(shape=inputs[0], initializer=self.initializer)}


@dataclass(frozen=True, kw_only=True)
class SelectPosition(Layer):
    """One position of a sequence."""

    category: ClassVar[str] = "view"
    position: int = 0

    def output_shape(self, *inputs: Shape) -> Shape:
        """(features,)."""
        length, features = _sequence(self, inputs[0])
        if not 0 <= self.position < length:
            raise UsageError(f"SelectPosition: there is no position {self.position} in {length}.")
        return (features,)


@dataclass(frozen=True, kw_only=True)
class Tanh(Layer):
    """tanh(x)."""


@dataclass(frozen=True, kw_only=True)
class LSTM(Layer):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with Gers' forget gate), one layer,
    in one direction:

        i, f, g, o = W x + b + R h + c,  cell = σ(f) · cell + σ(i) · tanh(g),  h = σ(o) · tanh(cell)

    The four lie below one another in that order, with two biases, as cuDNN has them. A second input
    is the first h; without it, and the first cell always, it is zero.
    """

    category: ClassVar[str] = "recurrence"
    hidden: int
    initializer: Initializer = GLOROT

    def output_shape(self, *inputs: Shape) -> Shape:
        """(length, hidden): h at every position."""
        length, _ = _sequence(self, inputs[0])
        if len(inputs) == 2 and inputs[1] != (self.hidden,):
            raise UsageError(f"LSTM begins from ({self.hidden},), was given {inputs[1]}.")
        return (length, self.hidden)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (4 · hidden, features), `hidden_weight` (4 · hidden, hidden), `bias` and
        `hidden_bias` (4 · hidden,)."""
        rows, features = 4 * self.hidden, inputs[0][1]
        return {
            "weight": ParameterSpec(shape=(rows, features), initializer=self.initializer),
            "hidden_weight": ParameterSpec(shape=(rows, self.hidden), initializer=self.initializer),
            "bias": ParameterSpec(shape=(rows,), initializer=ZEROS),
            "hidden_bias": ParameterSpec(shape=(rows,), initializer=ZEROS),
        }


def _query_key(layer: Layer, inputs: tuple[Shape, ...]) -> tuple[int, int, int]:
    """Positions of both, and their features."""
    queries, keys = inputs
    if len(queries) != 2 or len(keys) != 2 or queries[1] != keys[1]:
        raise UsageError(
            f"{type(layer).__name__} needs two sequences of the same width, was given {inputs}."
        )
    return queries[0], keys[0], keys[1]


@dataclass(frozen=True, kw_only=True)
class PairSum(Layer):
    """The sum of each query and each key."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """(queries, keys, features)."""
        return _query_key(self, inputs)


@dataclass(frozen=True, kw_only=True)
class PairProduct(Layer):
    """The inner product of each query and each key."""

    category: ClassVar[str] = "attention"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(queries, keys, 1)."""
        return (*_query_key(self, inputs)[:2], 1)


@dataclass(frozen=True, kw_only=True)
class Mix(Layer):
    """The mean of the values, weighted for each query by the softmax of its scores."""

    category: ClassVar[str] = "attention"
    keys: int

    def output_shape(self, *inputs: Shape) -> Shape:
        """(queries, features), from scores (queries, keys, 1) and values (keys, features)."""
        scores, values = inputs
        if len(scores) != 3 or len(values) != 2 or not scores[1] == self.keys == values[0]:
            raise UsageError(
                "Mix needs scores (queries, keys, 1) and values (keys, features), was given "
                f"{inputs}."
            )
        return (scores[0], values[1])


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
"""The layer types of image networks, which every framework lowers."""
SEQUENCE_LAYERS: dict[str, type[Layer]] = {
    "layer-norm": LayerNorm,
    "gelu": GELU,
    "attention": Attention,
    "tokens": Tokens,
    "embedding": Embedding,
    "class-token": ClassToken,
    "position-embedding": PositionEmbedding,
    "select-position": SelectPosition,
    "tanh": Tanh,
    "lstm": LSTM,
    "pair-sum": PairSum,
    "pair-product": PairProduct,
    "mix": Mix,
}
"""The layer types of sequences; a framework that lacks one refuses the networks that have it."""
ALL_LAYERS: dict[str, type[Layer]] = {**LAYERS, **SEQUENCE_LAYERS}
