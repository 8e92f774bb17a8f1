"""Opaque layer: a module that runs as it is, with the costs that were counted while it ran.

An own network that could not be traced is a network of this one layer. Counts are per sample, of a
training step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cubemesh.networks.layers import ONES, ZEROS, Layer, ParameterSpec, Shape
from cubemesh.schema.own_network import OwnNetwork

Arrays = tuple[tuple[str, Shape], ...]
"""(name in the module, shape) of each array."""


@dataclass(frozen=True, kw_only=True)
class Opaque(Layer):
    """A PyTorch, Flax or Keras module of the user's own, as one layer."""

    category: ClassVar[str] = "module"
    output: Shape
    """Of one sample's scores."""
    trained: Arrays = ()
    """Parameters that get a gradient."""
    updated: Arrays = ()
    """Arrays that a forward pass in training updates, such as running statistics."""
    forward_flops: int = 0
    """As the framework counts them (`describe` in its `own`)."""
    backward_flops: int = 0
    saved_values: int = 0
    """Saved for the backward pass, in values of 4 bytes."""
    own: OwnNetwork | None = None
    """Where the module is imported from."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """That of the scores that the module returned for the described input."""
        return self.output

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """The trained arrays by their names in the module."""
        return {n: ParameterSpec(shape=shape, initializer=ONES) for n, shape in self.trained}

    def state(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """The updated arrays by their names in the module."""
        return {n: ParameterSpec(shape=shape, initializer=ZEROS) for n, shape in self.updated}
