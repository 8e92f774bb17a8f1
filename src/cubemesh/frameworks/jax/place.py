"""What does a lowering of JAX's see of the network and program that its layer stands in?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax

from cubemesh.frameworks.jax.runtime import Numerics
from cubemesh.networks.layers import Shape


@dataclass(frozen=True, kw_only=True)
class Place:
    """A layer in its network and program, as a lowering sees it."""

    arrays: Mapping[str, jax.Array]
    """Parameters and state, by their role in the layer."""
    shape: Shape
    """Of one sample of the result, channels first."""
    layout: str
    numerics: Numerics
    training: bool
    key: Callable[[], jax.Array]
    """Gives a random key of this layer's own."""
    norm_parts: int = 1
    """Equal parts of the minibatch, each normalised by its own statistics: those of one device."""
    new_state: dict[str, jax.Array] = field(default_factory=dict)
    """Where a layer puts the state it updates, by role."""

    def positions(self, x: jax.Array) -> tuple[int, int]:
        """The axes of an image's height and width."""
        return (1, 2) if self.layout == "nhwc" else (2, 3)

    def channels(self, x: jax.Array) -> int:
        """The axis of the channels; of the features, where there is no image."""
        return 3 if self.layout == "nhwc" and x.ndim == 4 else 1

    def per_channel(self, array: jax.Array, x: jax.Array) -> jax.Array:
        """One value a channel, made to combine with `x`."""
        shape = [1] * x.ndim
        shape[self.channels(x)] = array.size
        return array.reshape(shape)

    def narrow(self, *arrays: jax.Array) -> list[jax.Array]:
        """The arrays in the type that products are computed in."""
        return [a.astype(self.numerics.products) for a in arrays]
