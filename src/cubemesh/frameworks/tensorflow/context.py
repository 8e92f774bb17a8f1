"""The context of a TensorFlow lowering: the arrays and settings of one layer in its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from cubemesh.frameworks.tensorflow.runtime import TensorFlowNumerics
from cubemesh.networks.layers import Shape


@dataclass(frozen=True, kw_only=True)
class TensorFlowContext:
    """Arrays, layout and numerics of one layer."""

    arrays: Mapping[str, Any]
    """Parameters and state, by their role in the layer."""
    shape: Shape
    """Of one sample of the result, channels first."""
    layout: str
    numerics: TensorFlowNumerics
    training: bool
    compiled: bool
    """Whether XLA compiles the step."""
    seed: Callable[[], Any]
    """Returns two random integers for this layer and step."""
    new_state: dict[str, Any] = field(default_factory=dict)
    """Filled by the lowering with updated state, by role."""

    @property
    def format(self) -> str:
        """TensorFlow's name for the layout."""
        return self.layout.upper()

    @property
    def positions(self) -> tuple[int, int]:
        """The axes of an image's height and width."""
        return (1, 2) if self.layout == "nhwc" else (2, 3)

    def channels(self, x: Any) -> int:
        """The axis of the channels, or of the features without an image."""
        return 3 if self.layout == "nhwc" and len(x.shape) == 4 else 1

    def per_channel(self, array: Any, x: Any) -> Any:
        """One value per channel, reshaped to broadcast with `x`."""
        shape = [1] * len(x.shape)
        shape[self.channels(x)] = -1
        return tf.reshape(array, shape)

    def pad(self, x: Any, padding: Any, value: float = 0.0) -> Any:
        """`x` with cells of `value` around the image: (before, after) for height and width."""
        return tf.pad(x, self.around(padding), constant_values=tf.constant(value, x.dtype))

    def around(self, padding: Any) -> list[list[int]]:
        """(before, after) of height and width as TensorFlow expects it, for every axis."""
        every = [[0, 0] for _ in range(4)]
        for axis, (before, after) in zip(self.positions, padding, strict=True):
            every[axis] = [before, after]
        return every

    def to_product_type(self, *arrays: Any) -> list[Any]:
        """The arrays, cast to the type of products."""
        return [tf.cast(a, self.numerics.products) for a in arrays]

    def to_array_type(self, x: Any) -> Any:
        """`x`, cast to the type of statistics."""
        return tf.cast(x, self.numerics.arrays)

    def same_type(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Both in one type, as TensorFlow needs for a sum: that of statistics where they differ."""
        return (x, y) if x.dtype == y.dtype else (self.to_array_type(x), self.to_array_type(y))


Lowering = Callable[..., Any]
"""(layer, context, input, …) → result."""
