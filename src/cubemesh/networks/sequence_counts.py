"""What does one layer of a network of sequences cost? Formulas, as in `counts.py`.

Attention is counted as PyTorch's `flop_counter` counts its mathematics: every position against
every other, also where `causal` hides half of them, and nothing computed twice, though fused
kernels compute the scores again in the backward pass. A position is a row of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cubemesh.networks.counts import COUNTS, LayerCost, Sizes
from cubemesh.networks.layers import Layer
from cubemesh.networks.sequence_layers import (
    GELU,
    Attention,
    ClassToken,
    LayerNorm,
    PositionEmbedding,
    SelectPosition,
    Tokens,
)


def _layer_norm(layer: LayerNorm, s: Sizes) -> LayerCost:
    """Forward 8 a value: the mean 1, the variance 3, (x − mean) · scale 2, weight and bias 2.

    Weight gradient 5: x̂ 2, dy · x̂ summed 2, dy summed 1. Data gradient 8: dy · weight 1, its sum 1,
    its product with x̂ summed 2, and the difference of three terms 4.
    """
    statistics = 2 * s.x // s.shape[-1]
    weights = s.parameters // 2
    return LayerCost(
        forward=s.cost(other=8 * s.x, read=s.x + s.parameters, written=s.y + statistics),
        data_gradient=s.cost(other=8 * s.x, read=2 * s.x + weights + statistics, written=s.x),
        weight_gradient=s.cost(other=5 * s.x, read=2 * s.x + statistics, written=s.parameters),
    )


def _gelu(layer: GELU, s: Sizes) -> LayerCost:
    """Erf: forward 5 (x/√2, erf, plus 1, times x/2 2), backward 10 (Φ 4, the density 4, sum 2).
    Tanh: forward 9 (the cubic 4, tanh 1, plus 1, scale 3), backward 18."""
    forward = {"erf": 5, "tanh": 9}[layer.form]
    return LayerCost(
        forward=s.cost(other=forward * s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=2 * forward * s.x, read=2 * s.x, written=s.x),
    )


def _attention(layer: Attention, s: Sizes) -> LayerCost:
    """Two products forward, four backward, each 2 · length per y. Beside them 6 a score forward
    (scale, largest, difference, exponential, sum, division) and 3 a score backward (difference,
    product, scale) with 2 per y (dy · y summed). A fused kernel writes no score."""
    length, features = s.shape
    scores = layer.heads * length * s.y // features
    logarithms = layer.heads * s.y // features
    work = 4 * length * s.y
    return LayerCost(
        forward=s.cost(matrix=work, other=6 * scores, read=s.x, written=s.y + logarithms),
        data_gradient=s.cost(
            matrix=2 * work,
            other=3 * scores + 2 * s.y,
            read=s.x + 2 * s.y + logarithms,
            written=s.x,
        ),
    )


def _view(layer: Tokens, s: Sizes) -> LayerCost:
    """Nothing: the same bytes under another shape."""
    return LayerCost()


def _class_token(layer: ClassToken, s: Sizes) -> LayerCost:
    """A copy forward; backward a slice as it is, and the token's sum over the batch."""
    tokens = s.y - s.x
    return LayerCost(
        forward=s.cost(read=s.x + s.parameters, written=s.y),
        weight_gradient=s.cost(other=tokens, read=tokens, written=s.parameters),
    )


def _position_embedding(layer: PositionEmbedding, s: Sizes) -> LayerCost:
    """1 per y forward; backward the gradient as it is, and its sum over the batch."""
    return LayerCost(
        forward=s.cost(other=s.y, read=s.x + s.parameters, written=s.y),
        weight_gradient=s.cost(other=s.y, read=s.y, written=s.parameters),
    )


def _select_position(layer: SelectPosition, s: Sizes) -> LayerCost:
    """A view forward; backward the gradient among zeros."""
    return LayerCost(data_gradient=s.cost(read=s.y, written=s.x))


SEQUENCE_COUNTS: dict[type[Layer], Callable[[Any, Sizes], LayerCost]] = {
    LayerNorm: _layer_norm,
    GELU: _gelu,
    Attention: _attention,
    Tokens: _view,
    ClassToken: _class_token,
    PositionEmbedding: _position_embedding,
    SelectPosition: _select_position,
}
ALL_COUNTS = {**COUNTS, **SEQUENCE_COUNTS}
"""Every layer type's rule, as in `counts.py`."""
