"""The context of a JAX lowering: the arrays and settings of one layer in its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax

from cubemesh.frameworks.jax.runtime import JaxNumerics
from cubemesh.networks.layers import Shape


@dataclass(frozen=True, kw_only=True)
class JaxContext:
    """Arrays, layout and numerics of one layer."""

    arrays: Mapping[str, jax.Array]
    """Parameters and state, by their role in the layer."""
    shape: Shape
    """Of one sample of the result, channels first."""
    layout: str
    numerics: JaxNumerics
    training: bool
    key: Callable[[], jax.Array]
    """Returns a random key for this layer."""
    norm_parts: int = 1
    """Equal parts of the minibatch, one a device, each normalized by its own statistics."""
    new_state: dict[str, jax.Array] = field(default_factory=dict)
    """Filled by the lowering with updated state, by role."""

    def positions(self, x: jax.Array) -> tuple[int, int]:
        """The axes of an image's height and width."""
        return (1, 2) if self.layout == "nhwc" else (2, 3)

    def channels(self, x: jax.Array) -> int:
        """The axis of the channels, or of the features without an image."""
        return 3 if self.layout == "nhwc" and x.ndim == 4 else 1

    def per_channel(self, array: jax.Array, x: jax.Array) -> jax.Array:
        """One value per channel, reshaped to broadcast with `x`."""
        shape = [1] * x.ndim
        shape[self.channels(x)] = array.size
        return array.reshape(shape)

    def to_product_type(self, *arrays: jax.Array) -> list[jax.Array]:
        """The arrays, cast to the type of products."""
        return [a.astype(self.numerics.products) for a in arrays]
