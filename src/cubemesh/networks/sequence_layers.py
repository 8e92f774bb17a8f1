"""Sequence layer types, for words or for the patches of an image.

Values are `(length, features)` a sample, a row a position; tokens are whole numbers, `(length,)`.
Matrix weights are laid out `(out, in)`, as in `layers.py`. `ALL_LAYERS` joins both files
and `recurrent_layers.py`. A
framework may lack some of these: a network that has one is refused then, which is an outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cubemesh.errors import UsageError
from cubemesh.networks.layers import (
    LAYERS,
    ONES,
    ZEROS,
    Initializer,
    Layer,
    ParameterSpec,
    Shape,
    _image,
)
from cubemesh.networks.recurrent_layers import RECURRENT_LAYERS

SMALL_NORMAL = Initializer(kind="normal", scale=0.02)
"""N(0, 0.02²), as the transformers of 2018 and after start embeddings."""


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
        shape = (inputs[0][-1],)
        return {
            "weight": ParameterSpec(shape=shape, initializer=ONES),
            "bias": ParameterSpec(shape=shape, initializer=ZEROS),
        }


@dataclass(frozen=True, kw_only=True)
class GELU(Layer):
    """x · Φ(x) (Hendrycks and Gimpel 2016), Φ by the error function, or approximated as
    ½ (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    form: Literal["erf", "tanh"] = "erf"


@dataclass(frozen=True, kw_only=True)
class Attention(Layer):
    """softmax(Q Kᵀ / √d) V in each of `heads` heads of d features (Vaswani et al. 2017).

    Its one input holds queries, keys and values beside each other, each with its heads beside each
    other. `causal`: a position sees itself and those before it.
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
    """Adds to each position what is learned of its place."""

    initializer: Initializer = SMALL_NORMAL

    def output_shape(self, *inputs: Shape) -> Shape:
        """As the input."""
        return _sequence(self, inputs[0])

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`weight` (length, features)."""
        return {"weight": ParameterSpec(shape=inputs[0], initializer=self.initializer)}


@dataclass(frozen=True, kw_only=True)
class SelectPosition(Layer):
    """One position of a sequence alone."""

    category: ClassVar[str] = "view"
    position: int = 0

    def output_shape(self, *inputs: Shape) -> Shape:
        """(features,)."""
        length, features = _sequence(self, inputs[0])
        if not 0 <= self.position < length:
            raise UsageError(f"SelectPosition: there is no position {self.position} in {length}.")
        return (features,)


SEQUENCE_LAYERS: dict[str, type[Layer]] = {
    "layer-norm": LayerNorm,
    "gelu": GELU,
    "attention": Attention,
    "tokens": Tokens,
    "embedding": Embedding,
    "class-token": ClassToken,
    "position-embedding": PositionEmbedding,
    "select-position": SelectPosition,
    **RECURRENT_LAYERS,
}
"""The layer types of sequences; a framework that lacks one says so."""

ALL_LAYERS: dict[str, type[Layer]] = {**LAYERS, **SEQUENCE_LAYERS}
"""Every layer type there is."""
