"""What does a lowering know of where its layer stands in the network and the program?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from cubemesh.frameworks.tensorflow.runtime import Numerics
from cubemesh.networks.layers import Shape


@dataclass(frozen=True, kw_only=True)
class Place:
    """A layer in its network and program, as a lowering sees it."""

    arrays: Mapping[str, Any]
    """Parameters and state, by their role in the layer."""
    shape: Shape
    """Of one sample of the result, channels first."""
    layout: str
    numerics: Numerics
    training: bool
    compiled: bool
    """Whether XLA compiles the step."""
    seed: Callable[[], Any]
    """Gives two integers of this layer and step's own."""
    new_state: dict[str, Any] = field(default_factory=dict)
    """Where a layer puts the state it updates, by role."""

    @property
    def format(self) -> str:
        """TensorFlow's name of the layout."""
        return self.layout.upper()

    @property
    def positions(self) -> tuple[int, int]:
        """The axes of an image's height and width."""
        return (1, 2) if self.layout == "nhwc" else (2, 3)

    def channels(self, x: Any) -> int:
        """The axis of the channels; of the features, where there is no image."""
        return 3 if self.layout == "nhwc" and len(x.shape) == 4 else 1

    def per_channel(self, array: Any, x: Any) -> Any:
        """One value a channel, made to combine with `x`."""
        shape = [1] * len(x.shape)
        shape[self.channels(x)] = -1
        return tf.reshape(array, shape)

    def pad(self, x: Any, padding: Any, value: float = 0.0) -> Any:
        """`x` with cells of `value` around the image: (before, after) for height and width."""
        return tf.pad(x, self.around(padding), constant_values=tf.constant(value, x.dtype))

    def around(self, padding: Any) -> list[list[int]]:
        """(before, after) of height and width as TensorFlow wants it, for every axis."""
        every = [[0, 0] for _ in range(4)]
        for axis, (before, after) in zip(self.positions, padding, strict=True):
            every[axis] = [before, after]
        return every

    def narrow(self, *arrays: Any) -> list[Any]:
        """The arrays in the type that products are computed in."""
        return [tf.cast(a, self.numerics.products) for a in arrays]

    def wide(self, x: Any) -> Any:
        """`x` in the type of statistics."""
        return tf.cast(x, self.numerics.arrays)

    def alike(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Both in one type: that of statistics, where they differ. TensorFlow adds no two types."""
        return (x, y) if x.dtype == y.dtype else (self.wide(x), self.wide(y))


Lowering = Callable[..., Any]
"""(layer, place, input, …) → result."""
