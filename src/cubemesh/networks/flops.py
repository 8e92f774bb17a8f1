"""FLOPs and bytes of a layer: a formula for each layer type.

Counted for the forward pass, the gradient of the layer's input (data gradient) and that of its
parameters (weight gradient), separately. A multiply-add is two operations; an exponential, a power
or a division is one; random numbers are free. Each formula is given at its rule, per output value
(y) or input value (x); `COUNTS` has one rule per layer type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cubemesh.networks.activation_memory import INDEX_BYTES, MASK_BYTES
from cubemesh.networks.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool,
    ReLU,
    Shape,
)
from cubemesh.schema.cost import Cost


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """A layer's cost in the three passes of training. Adds up, and scales with a whole number."""

    forward: Cost = field(default_factory=Cost)
    data_gradient: Cost = field(default_factory=Cost)
    weight_gradient: Cost = field(default_factory=Cost)

    @property
    def backward(self) -> Cost:
        """Both gradients together."""
        return self.data_gradient + self.weight_gradient

    @property
    def total(self) -> Cost:
        """Forward and backward together."""
        return self.forward + self.backward

    def __add__(self, other: LayerCost) -> LayerCost:
        if not isinstance(other, LayerCost):
            return NotImplemented
        return LayerCost(
            forward=self.forward + other.forward,
            data_gradient=self.data_gradient + other.data_gradient,
            weight_gradient=self.weight_gradient + other.weight_gradient,
        )

    def __radd__(self, other: object) -> LayerCost:
        return self if other == 0 else NotImplemented

    def __mul__(self, times: int) -> LayerCost:
        return LayerCost(
            forward=self.forward * times,
            data_gradient=self.data_gradient * times,
            weight_gradient=self.weight_gradient * times,
        )

    __rmul__ = __mul__


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Input of a rule: numbers of values of the whole batch."""

    x: int
    """Of all inputs together."""
    y: int
    """Of the result."""
    parameters: int
    weight_shape: tuple[int, ...]
    """Of the parameter called `weight`; () without one."""
    inputs: int
    """How many inputs there are."""
    channels: int
    """The first axis of the result."""
    shape: Shape
    """Of one sample's result."""
    element_bytes: int

    def cost(
        self,
        *,
        matrix: int = 0,
        other: int = 0,
        read: int = 0,
        written: int = 0,
        read_bytes: int = 0,
        written_bytes: int = 0,
    ) -> Cost:
        """`read` and `written` in values; the `_bytes` are what has a width of its own."""
        return Cost(
            matrix_flops=matrix,
            other_flops=other,
            read_bytes=read * self.element_bytes + read_bytes,
            written_bytes=written * self.element_bytes + written_bytes,
        )


def _product(layer: Convolution | Linear, s: Sizes) -> LayerCost:
    """Convolution and Linear, in each of the three passes: 2 · y · depth.

    The depth is what one output sums over: in/groups · kh · kw cells, or the input features. A bias
    adds one operation per y forward, and one in the weight gradient (the sum over positions).
    """
    work = 2 * s.y * math.prod(s.weight_shape[1:])
    bias = s.y if layer.bias else 0
    weights = math.prod(s.weight_shape)
    return LayerCost(
        forward=s.cost(matrix=work, other=bias, read=s.x + s.parameters, written=s.y),
        data_gradient=s.cost(matrix=work, read=s.y + weights, written=s.x),
        weight_gradient=s.cost(matrix=work, other=bias, read=s.x + s.y, written=s.parameters),
    )


def _batch_norm(layer: BatchNorm, s: Sizes) -> LayerCost:
    """Forward 7 a value: the mean 1, the variance 3, (x − mean) · scale + shift 3.

    Weight gradient 5: x̂ 2, dy · x̂ summed 2, dy summed 1. Data gradient 5:
    (dy − a − (x − mean) · b) · c with constants a, b, c of each channel.
    The running mean and variance are read and written too.
    """
    statistics = 2 * s.channels
    return LayerCost(
        forward=s.cost(
            other=7 * s.x, read=s.x + s.parameters + statistics, written=s.y + statistics
        ),
        data_gradient=s.cost(other=5 * s.x, read=2 * s.x + s.channels + statistics, written=s.x),
        weight_gradient=s.cost(other=5 * s.x, read=2 * s.x + statistics, written=s.parameters),
    )


def _local_response_norm(layer: LocalResponseNorm, s: Sizes) -> LayerCost:
    """Forward w + 4 a value, w the neighbours summed: square 1, sum w − 1, scale and bias 2,
    power 1, division 1.

    Data gradient w + 5: dy · y / base 2, its sum over the neighbours w − 1, scaled by x 2,
    dy / power 1, the difference 1.
    """
    neighbours = layer.size if layer.region == "across" else layer.size**2
    return LayerCost(
        forward=s.cost(other=(neighbours + 4) * s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=(neighbours + 5) * s.x, read=2 * s.x + s.y, written=s.x),
    )


def _relu(layer: ReLU, s: Sizes) -> LayerCost:
    """1 a value each way: a comparison; dy where the output is positive."""
    return LayerCost(
        forward=s.cost(other=s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=s.x, read=2 * s.y, written=s.x),
    )


def _add(layer: Add, s: Sizes) -> LayerCost:
    """1 per y forward; backward hands the gradient on as it is."""
    return LayerCost(forward=s.cost(other=(s.inputs - 1) * s.y, read=s.x, written=s.y))


def _concat(layer: Concat, s: Sizes) -> LayerCost:
    """A copy forward; backward each input gets its slice of the gradient without a copy."""
    return LayerCost(forward=s.cost(read=s.x, written=s.y))


def _dropout(layer: Dropout, s: Sizes) -> LayerCost:
    """2 a value each way: times the mask, times 1 / (1 − rate)."""
    mask = s.y * MASK_BYTES
    return LayerCost(
        forward=s.cost(other=2 * s.x, read=s.x, written=s.y, written_bytes=mask),
        data_gradient=s.cost(other=2 * s.x, read=s.y, written=s.x, read_bytes=mask),
    )


def _flatten(layer: Flatten, s: Sizes) -> LayerCost:
    """Nothing: the same bytes under another shape."""
    return LayerCost()


def _max_pool(layer: MaxPool, s: Sizes) -> LayerCost:
    """kh · kw − 1 comparisons per y; backward one addition per y, where its index points.

    Windows at the edge count as full ones.
    """
    indices = s.y * INDEX_BYTES
    return LayerCost(
        forward=s.cost(
            other=(math.prod(layer.kernel) - 1) * s.y,
            read=s.x,
            written=s.y,
            written_bytes=indices,
        ),
        data_gradient=s.cost(other=s.y, read=s.y, written=s.x, read_bytes=indices),
    )


def _average_pool(layer: AveragePool, s: Sizes) -> LayerCost:
    """kh · kw per y: kh · kw − 1 additions and a division; backward a division per y and an
    addition for each cell. Windows at the edge count as full ones."""
    cells = math.prod(layer.kernel)
    return LayerCost(
        forward=s.cost(other=cells * s.y, read=s.x, written=s.y),
        data_gradient=s.cost(other=(cells + 1) * s.y, read=s.y, written=s.x),
    )


def _global_average_pool(layer: GlobalAveragePool, s: Sizes) -> LayerCost:
    """1 per x: the sum's additions and a division a channel; backward a division per y."""
    return LayerCost(
        forward=s.cost(other=s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=s.y, read=s.y, written=s.x),
    )


COUNTS: dict[type[Layer], Callable[[Any, Sizes], LayerCost]] = {
    Convolution: _product,
    Linear: _product,
    BatchNorm: _batch_norm,
    LocalResponseNorm: _local_response_norm,
    ReLU: _relu,
    Add: _add,
    Concat: _concat,
    Dropout: _dropout,
    Flatten: _flatten,
    MaxPool: _max_pool,
    AveragePool: _average_pool,
    GlobalAveragePool: _global_average_pool,
}
"""Layer type → (layer, sizes) → cost of all three passes; what is saved is added from `saved`."""
