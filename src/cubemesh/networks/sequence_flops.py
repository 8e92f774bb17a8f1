"""FLOPs and bytes of sequence layers: a formula for each type, as in `flops.py`.

Attention is counted as PyTorch's `flop_counter` counts its mathematics: every position against
every other, also where `causal` hides half of them, and nothing computed twice, though fused
kernels compute the scores again in the backward pass. A position is a row of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cubemesh.networks.activation_memory import INDEX_BYTES
from cubemesh.networks.flops import COUNTS, LayerCost, Sizes
from cubemesh.networks.layers import Layer
from cubemesh.networks.recurrent_layers import LSTM, Mix, PairProduct, PairSum, Tanh
from cubemesh.networks.sequence_layers import (
    GELU,
    Attention,
    ClassToken,
    Embedding,
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


def _embedding(layer: Embedding, s: Sizes) -> LayerCost:
    """Rows picked forward; backward an array of zeros to which each position's gradient is added.
    Tokens are 8 bytes each."""
    tokens = s.x * INDEX_BYTES
    return LayerCost(
        forward=s.cost(read=s.y, written=s.y, read_bytes=tokens),
        weight_gradient=s.cost(
            other=s.y, read=2 * s.y, written=s.parameters + s.y, read_bytes=tokens
        ),
    )


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


def _tanh(layer: Tanh, s: Sizes) -> LayerCost:
    """1 a value forward, 3 backward: dy · (1 − y²)."""
    return LayerCost(
        forward=s.cost(other=s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=3 * s.x, read=2 * s.y, written=s.x),
    )


def _lstm(layer: LSTM, s: Sizes) -> LayerCost:
    """Two products of 4 rows a y forward, their gradients backward. Beside them 21 per y forward
    (four gates: three additions and a function each; the cell 3, its tanh and product 2) and 20
    backward; the biases' gradients 8. Kept are the gates and the cell."""
    work = 2 * 4 * s.y * (s.weight_shape[1] + layer.hidden)
    weights = 4 * layer.hidden * (s.weight_shape[1] + layer.hidden)
    kept = 5 * s.y
    return LayerCost(
        forward=s.cost(
            matrix=work, other=21 * s.y, read=s.x + s.y + s.parameters, written=s.y + kept
        ),
        data_gradient=s.cost(
            matrix=work, other=20 * s.y, read=s.y + kept + weights, written=s.x + 4 * s.y
        ),
        weight_gradient=s.cost(
            matrix=work, other=8 * s.y, read=s.x + 5 * s.y, written=s.parameters
        ),
    )


def _pair_sum(layer: PairSum, s: Sizes) -> LayerCost:
    """1 per y forward; backward two sums over the other's positions."""
    return LayerCost(
        forward=s.cost(other=s.y, read=s.x, written=s.y),
        data_gradient=s.cost(other=2 * s.y, read=2 * s.y, written=s.x),
    )


def _pair_product(layer: PairProduct, s: Sizes) -> LayerCost:
    """2 · features per y forward, and for each of the two gradients."""
    queries, keys, _ = s.shape
    features = s.x * keys // (s.y * (queries + keys) // queries)
    work = 2 * s.y * features
    return LayerCost(
        forward=s.cost(matrix=work, read=s.x, written=s.y),
        data_gradient=s.cost(matrix=2 * work, read=s.x + s.y, written=s.x),
    )


def _mix(layer: Mix, s: Sizes) -> LayerCost:
    """A product of 2 · keys per y forward, two backward; beside them the softmax, 5 a score forward
    (largest, difference, exponential, sum, division) and 4 backward."""
    features = s.shape[1]
    scores, work = s.y // features * layer.keys, 2 * s.y * layer.keys
    return LayerCost(
        forward=s.cost(matrix=work, other=5 * scores, read=s.x, written=s.y + scores),
        data_gradient=s.cost(matrix=2 * work, other=4 * scores, read=s.x + s.y, written=s.x),
    )


SEQUENCE_COUNTS: dict[type[Layer], Callable[[Any, Sizes], LayerCost]] = {
    LayerNorm: _layer_norm,
    GELU: _gelu,
    Attention: _attention,
    Tokens: _view,
    Embedding: _embedding,
    ClassToken: _class_token,
    PositionEmbedding: _position_embedding,
    SelectPosition: _select_position,
    Tanh: _tanh,
    LSTM: _lstm,
    PairSum: _pair_sum,
    PairProduct: _pair_product,
    Mix: _mix,
}
ALL_COUNTS = {**COUNTS, **SEQUENCE_COUNTS}
"""Every layer type's rule, as in `counts.py`."""
