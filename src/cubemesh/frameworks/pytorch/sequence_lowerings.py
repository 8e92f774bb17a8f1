"""Which PyTorch module computes a layer of a network of sequences? One line a layer type.

As in `lowerings.py`, which joins this table to its own: a lowering gives the module without its
arrays. Sequences are (batch, length, features).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.networks.layers import Layer, Shape
from cubemesh.networks.sequence_layers import (
    GELU,
    Attention,
    ClassToken,
    LayerNorm,
    PositionEmbedding,
    SelectPosition,
    Tokens,
)


class SelfAttention(nn.Module):
    """Scaled dot-product attention within a sequence, by the fastest kernel there is."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Queries, keys and values (batch, length, 3 · features) → (batch, length, features)."""
        batch, length, width = x.shape
        packed = x.view(batch, length, 3, self.heads, width // (3 * self.heads))
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return y.transpose(1, 2).reshape(batch, length, width // 3)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"heads={self.heads}, causal={self.causal}"


class Patches(nn.Module):
    """An image's positions as a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, height · width, channels)."""
        return x.flatten(2).transpose(1, 2)


class PrependedToken(nn.Module):
    """A learned position before all others."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features) → (batch, 1 + length, features)."""
        return torch.cat([self.token.to(x.dtype).expand(len(x), 1, -1), x], dim=1)


class AddedPositions(nn.Module):
    """What is learned of each place, added."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features), unchanged in shape."""
        return x + self.weight


class Position(nn.Module):
    """One position of a sequence alone."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features) → (batch, features)."""
        return x[:, self.position]

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return str(self.position)


SEQUENCE_LOWERINGS: dict[type[Layer], Callable[[Any, Shape, bool], nn.Module]] = {
    LayerNorm: lambda layer, shape, _: nn.LayerNorm(shape[-1], eps=layer.epsilon),
    GELU: lambda layer, shape, _: nn.GELU("none" if layer.form == "erf" else "tanh"),
    Attention: lambda layer, shape, _: SelfAttention(layer.heads, layer.causal),
    Tokens: lambda layer, shape, _: Patches(),
    ClassToken: lambda layer, shape, _: PrependedToken(shape[1]),
    PositionEmbedding: lambda layer, shape, _: AddedPositions(shape),
    SelectPosition: lambda layer, shape, _: Position(layer.position),
}
"""Joined to `LOWERINGS`."""
