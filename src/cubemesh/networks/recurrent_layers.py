"""Recurrent layer types: LSTM, and the parts of additive attention.

Values are `(length, features)` a sample, as in `sequence_layers.py`. Attention is put together from
what it computes: a score for each pair of positions, then a mean weighted by the scores' softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cubemesh.errors import UsageError
from cubemesh.networks.layers import GLOROT, ZEROS, Initializer, Layer, ParameterSpec, Shape


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
        if len(inputs[0]) != 2:
            raise UsageError(f"LSTM needs (length, features), was given {inputs[0]}.")
        if len(inputs) == 2 and inputs[1] != (self.hidden,):
            raise UsageError(f"LSTM begins from ({self.hidden},), was given {inputs[1]}.")
        return (inputs[0][0], self.hidden)

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


def _pair(layer: Layer, inputs: tuple[Shape, ...]) -> tuple[int, int, int]:
    """Positions of both, and their features."""
    queries, keys = inputs
    if len(queries) != 2 or len(keys) != 2 or queries[1] != keys[1]:
        raise UsageError(
            f"{type(layer).__name__} needs two sequences as wide as each other, was given {inputs}."
        )
    return queries[0], keys[0], keys[1]


@dataclass(frozen=True, kw_only=True)
class PairSum(Layer):
    """The sum of each query and each key."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """(queries, keys, features)."""
        return _pair(self, inputs)


@dataclass(frozen=True, kw_only=True)
class PairProduct(Layer):
    """The inner product of each query and each key."""

    category: ClassVar[str] = "attention"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(queries, keys, 1)."""
        return (*_pair(self, inputs)[:2], 1)


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


RECURRENT_LAYERS: dict[str, type[Layer]] = {
    "tanh": Tanh,
    "lstm": LSTM,
    "pair-sum": PairSum,
    "pair-product": PairProduct,
    "mix": Mix,
}
"""The layer types of this file."""
