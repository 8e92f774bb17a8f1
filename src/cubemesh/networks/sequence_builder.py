"""Writing a network of sequences down, a line a layer, as `builder.py` does for images."""

from __future__ import annotations

from typing import Literal

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Initializer
from cubemesh.networks.sequence_layers import (
    GELU,
    SMALL_NORMAL,
    Attention,
    ClassToken,
    LayerNorm,
    PositionEmbedding,
    SelectPosition,
    Tokens,
)


class SequenceBuilder(NetworkBuilder):
    """A builder that knows the layers of sequences too; values are (length, features)."""

    def layer_norm(self, x: str, *, epsilon: float = 1e-5, name: str | None = None) -> str:
        """Normalisation of each position."""
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
