"""Sequence network builder, one line per layer, as `builder.py` for images."""

from __future__ import annotations

from typing import Literal

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Initializer
from cubemesh.networks.recurrent_layers import LSTM, Mix, PairProduct, PairSum, Tanh
from cubemesh.networks.sequence_layers import (
    GELU,
    SMALL_NORMAL,
    Attention,
    ClassToken,
    Embedding,
    LayerNorm,
    PositionEmbedding,
    SelectPosition,
    Tokens,
)


class SequenceBuilder(NetworkBuilder):
    """A builder that knows the layers of sequences too; values are (length, features)."""

    def token_input(self, name: str, length: int, vocabulary: int) -> str:
        """Tokens fed in from outside, `length` a sample."""
        return self.input(name, (length,), vocabulary=vocabulary)

    def embedding(self, x: str, features: int, *, name: str | None = None) -> str:
        """Tokens as learned vectors; the vocabulary is that of the input `x`."""
        vocabulary = next(i.classes for i in self._inputs if i.name == x)
        assert vocabulary is not None
        return self.add_layer(Embedding(vocabulary=vocabulary, features=features), x, name=name)

    def layer_norm(self, x: str, *, epsilon: float = 1e-5, name: str | None = None) -> str:
        """Normalization of each position."""
        return self.add_layer(LayerNorm(epsilon=epsilon), x, name=name)

    def gelu(self, x: str, form: Literal["erf", "tanh"] = "erf", *, name: str | None = None) -> str:
        """The Gaussian error linear unit."""
        return self.add_layer(GELU(form=form), x, name=name)

    def attention(
        self, x: str, heads: int, *, causal: bool = False, name: str | None = None
    ) -> str:
        """Attention within a sequence; `x` holds queries, keys and values beside each other."""
        return self.add_layer(Attention(heads=heads, causal=causal), x, name=name)

    def tokens(self, x: str, *, name: str | None = None) -> str:
        """An image's positions as a sequence."""
        return self.add_layer(Tokens(), x, name=name)

    def class_token(self, x: str, *, name: str | None = None) -> str:
        """A learned position before all others."""
        return self.add_layer(ClassToken(), x, name=name)

    def position_embedding(
        self, x: str, *, initializer: Initializer = SMALL_NORMAL, name: str | None = None
    ) -> str:
        """What is learned of each place, added."""
        return self.add_layer(PositionEmbedding(initializer=initializer), x, name=name)

    def select(self, x: str, position: int = 0, *, name: str | None = None) -> str:
        """One position alone."""
        return self.add_layer(SelectPosition(position=position), x, name=name)

    def tanh(self, x: str, *, name: str | None = None) -> str:
        """The hyperbolic tangent."""
        return self.add_layer(Tanh(), x, name=name)

    def lstm(
        self, x: str, hidden: int, begin: str | None = None, *, name: str | None = None
    ) -> str:
        """An LSTM of one layer; `begin` is its first h."""
        inputs = (x,) if begin is None else (x, begin)
        return self.add_layer(LSTM(hidden=hidden), *inputs, name=name)

    def pair_sum(self, queries: str, keys: str, *, name: str | None = None) -> str:
        """The sum of each query and each key."""
        return self.add_layer(PairSum(), queries, keys, name=name)

    def pair_product(self, queries: str, keys: str, *, name: str | None = None) -> str:
        """The inner product of each query and each key."""
        return self.add_layer(PairProduct(), queries, keys, name=name)

    def mix(self, scores: str, values: str, *, name: str | None = None) -> str:
        """The mean of the values, weighted by the softmax of the scores."""
        return self.add_layer(Mix(keys=self.shape(values)[0]), scores, values, name=name)
