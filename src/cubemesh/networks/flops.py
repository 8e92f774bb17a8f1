"""FLOPs and bytes of a layer: a formula for each layer type.

Counted for the forward pass, the gradient of the layer's input (data gradient) and that of its
parameters (weight gradient), separately. A multiply-add is two operations; an exponential, a power
or a division is one; random numbers are free. Each formula is given at its rule, per output value
(y) or input value (x); `COUNTS` has one rule per layer type. A position is a row of a sequence.

Attention is counted as PyTorch's `flop_counter` counts its mathematics: every position against
every other, also where `causal` hides half of them, and nothing computed twice, though fused
kernels compute the scores again in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cubemesh.networks import layers
from cubemesh.networks.activation_memory import (
    INDEX_BYTES,
    MASK_BYTES,
    RECURRENT_VALUES,
    decoder_values,
)
from cubemesh.networks.layers import Layer, Shape
from cubemesh.schema.cost import Cost


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """A layer's cost in the three passes of training. Costs add up."""

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
    inputs: tuple[Shape, ...]
    """Of one sample of each input."""
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


def _product(layer: layers.Convolution | layers.Linear, s: Sizes) -> LayerCost:
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


def _batch_norm(layer: layers.BatchNorm, s: Sizes) -> LayerCost:
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


def _local_response_norm(layer: layers.LocalResponseNorm, s: Sizes) -> LayerCost:
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


def _relu(layer: layers.ReLU, s: Sizes) -> LayerCost:
    """1 a value each way: a comparison; dy where the output is positive."""
    return LayerCost(
        forward=s.cost(other=s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=s.x, read=2 * s.y, written=s.x),
    )


def _add(layer: layers.Add, s: Sizes) -> LayerCost:
    """1 per y forward; backward passes the gradient on as it is."""
    return LayerCost(forward=s.cost(other=(len(s.inputs) - 1) * s.y, read=s.x, written=s.y))


def _concat(layer: layers.Concat, s: Sizes) -> LayerCost:
    """A copy forward; backward each input gets its slice of the gradient without a copy."""
    return LayerCost(forward=s.cost(read=s.x, written=s.y))


def _dropout(layer: layers.Dropout, s: Sizes) -> LayerCost:
    """2 a value each way: times the mask, times 1 / (1 − rate). Of a whole sample 1: times its
    factor, which is counted with nothing."""
    if layer.per_sample:
        return LayerCost(
            forward=s.cost(other=s.x, read=s.x, written=s.y),
            data_gradient=s.cost(other=s.x, read=s.y, written=s.x),
        )
    mask = s.y * MASK_BYTES
    return LayerCost(
        forward=s.cost(other=2 * s.x, read=s.x, written=s.y, written_bytes=mask),
        data_gradient=s.cost(other=2 * s.x, read=s.y, written=s.x, read_bytes=mask),
    )


def _view(layer: Layer, s: Sizes) -> LayerCost:
    """Nothing: the same bytes under another shape."""
    return LayerCost()


def _max_pool(layer: layers.MaxPool, s: Sizes) -> LayerCost:
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


def _average_pool(layer: layers.AveragePool, s: Sizes) -> LayerCost:
    """kh · kw per y: kh · kw − 1 additions and a division; backward a division per y and an
    addition for each cell. Windows at the edge count as full ones."""
    cells = math.prod(layer.kernel)
    return LayerCost(
        forward=s.cost(other=cells * s.y, read=s.x, written=s.y),
        data_gradient=s.cost(other=(cells + 1) * s.y, read=s.y, written=s.x),
    )


def _global_average_pool(layer: layers.GlobalAveragePool, s: Sizes) -> LayerCost:
    """1 per x: the sum's additions and a division a channel; backward a division per y."""
    return LayerCost(
        forward=s.cost(other=s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=s.y, read=s.y, written=s.x),
    )


def _layer_norm(layer: layers.LayerNorm, s: Sizes) -> LayerCost:
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


def _gelu(layer: layers.GELU, s: Sizes) -> LayerCost:
    """Erf: forward 5 (x/√2, erf, plus 1, times x/2 2), backward 10 (Φ 4, the density 4, sum 2).
    layers.Tanh: forward 9 (the cubic 4, tanh 1, plus 1, scale 3), backward 18."""
    forward = {"erf": 5, "tanh": 9}[layer.form]
    return LayerCost(
        forward=s.cost(other=forward * s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=2 * forward * s.x, read=2 * s.x, written=s.x),
    )


def _attention(layer: layers.Attention, s: Sizes) -> LayerCost:
    """Two products forward, four backward, each 2 · length per y. Also 6 a score forward
    (scale, largest, difference, exponential, sum, division) and 3 a score backward (difference,
    product, scale) with 2 per y (dy · y summed). A fused kernel writes no score."""
    length, features = s.shape
    scores = layer.heads * length * s.y // features
    logarithms = layer.heads * s.y // features
    mask = length * s.y // features if layer.documents else 0
    x = s.x - mask
    work, dropped = 4 * length * s.y, 2 * scores if layer.dropout else 0
    return LayerCost(
        forward=s.cost(matrix=work, other=6 * scores + dropped, read=s.x, written=s.y + logarithms),
        data_gradient=s.cost(
            matrix=2 * work,
            other=3 * scores + dropped + 2 * s.y,
            read=s.x + 2 * s.y + logarithms,
            written=x,
        ),
    )


def _embedding(layer: layers.Embedding, s: Sizes) -> LayerCost:
    """Rows picked forward; backward an array of zeros to which each position's gradient is added.
    Tokens are 8 bytes each."""
    tokens = s.x * INDEX_BYTES
    return LayerCost(
        forward=s.cost(read=s.y, written=s.y, read_bytes=tokens),
        weight_gradient=s.cost(
            other=s.y, read=2 * s.y, written=s.parameters + s.y, read_bytes=tokens
        ),
    )


def _embedding_bags(layer: layers.EmbeddingBags, s: Sizes) -> LayerCost:
    """A row for each index forward, their sums of `indices` rows, and the tables' sums copied side
    by side. Backward an array of zeros as large as each table, to which the gradient of each index
    is added: 1 a value; a sparse gradient is the rows of the indices, and the indices. Indices are
    8 bytes each."""
    rows, indices = s.y * layer.indices, s.x * INDEX_BYTES
    if layer.sparse:
        gradient = s.cost(read=rows, written=rows, read_bytes=indices, written_bytes=indices)
    else:
        gradient = s.cost(
            other=rows, read=2 * rows, written=s.parameters + rows, read_bytes=indices
        )
    return LayerCost(
        forward=s.cost(other=rows - s.y, read=rows + s.y, written=2 * s.y, read_bytes=indices),
        weight_gradient=gradient,
    )


def _dot_interaction(layer: layers.DotInteraction, s: Sizes) -> LayerCost:
    """Of n vectors T of d features: T Tᵀ forward, 2 · n · n · d a sample, and two such products
    backward, (G + Gᵀ) T for the gradient G of T Tᵀ; also the sum of these two, and of the two
    gradients of x. T and T Tᵀ are arrays that are written and read."""
    (features,), (vectors, _) = s.inputs
    n = 1 + vectors
    batch = s.x // (n * features)
    products, pairs = batch * n * n, s.y - batch * features
    return LayerCost(
        forward=s.cost(matrix=2 * s.x * n, read=2 * s.x + pairs, written=s.x + products + s.y),
        data_gradient=s.cost(
            matrix=4 * s.x * n,
            other=s.x + batch * features,
            read=s.y + 2 * products + 4 * s.x,
            written=products + 3 * s.x,
        ),
    )


def _binary_scores(layer: layers.BinaryScores, s: Sizes) -> LayerCost:
    """A copy forward, with a zero; backward the gradient of the logit."""
    return LayerCost(
        forward=s.cost(read=s.x, written=s.y), data_gradient=s.cost(read=s.x, written=s.x)
    )


def _class_token(layer: layers.ClassToken, s: Sizes) -> LayerCost:
    """A copy forward; backward a slice as it is, and the token's sum over the batch."""
    tokens = s.y - s.x
    return LayerCost(
        forward=s.cost(read=s.x + s.parameters, written=s.y),
        weight_gradient=s.cost(other=tokens, read=tokens, written=s.parameters),
    )


def _position_embedding(layer: layers.PositionEmbedding, s: Sizes) -> LayerCost:
    """1 per y forward; backward the gradient as it is, and its sum over the batch. Forward reads
    the rows that are added."""
    rows = 1 if layer.shared else s.shape[0]
    return LayerCost(
        forward=s.cost(other=s.y, read=s.x + rows * s.shape[1], written=s.y),
        weight_gradient=s.cost(other=s.y, read=s.y, written=s.parameters),
    )


def _select_position(layer: layers.SelectPosition, s: Sizes) -> LayerCost:
    """A view forward; backward the gradient among zeros."""
    return LayerCost(data_gradient=s.cost(read=s.y, written=s.x))


def _tanh(layer: layers.Tanh, s: Sizes) -> LayerCost:
    """1 a value forward, 3 backward: dy · (1 − y²)."""
    return LayerCost(
        forward=s.cost(other=s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=3 * s.x, read=2 * s.y, written=s.x),
    )


def _sigmoid(layer: layers.Sigmoid, s: Sizes) -> LayerCost:
    """4 a value forward (negation, exponential, plus 1, division), 3 backward: dy · y · (1 − y)."""
    return LayerCost(
        forward=s.cost(other=4 * s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=3 * s.x, read=2 * s.y, written=s.x),
    )


_ACTIVATIONS = {
    "silu": (5, 10),
    "quick-gelu": (6, 11),
    "mish": (5, 14),
    "hard-sigmoid": (4, 3),
    "hard-swish": (5, 6),
    "relu6": (2, 2),
    "leaky-relu": (2, 2),
    "squared-relu": (2, 3),
}
"""Operations a value of each function, forward and backward."""


def _activation(layer: layers.Activation, s: Sizes) -> LayerCost:
    """A value forward and backward, by function: silu 5 (σ 4, times x), 10 (σ again 4,
    σ · (1 + x · (1 − σ)) 5, times dy); quick-gelu 1 more each; mish 5 (exponential, plus 1,
    logarithm, tanh, times x), 14; hard-sigmoid 4 (plus 3, two bounds, division), 3; hard-swish 5,
    6; relu6 and leaky-relu 2, 2; squared-relu 2, 3."""
    forward, backward = _ACTIVATIONS[layer.function]
    return LayerCost(
        forward=s.cost(other=forward * s.x, read=s.x, written=s.y),
        data_gradient=s.cost(other=backward * s.x, read=2 * s.y, written=s.x),
    )


def _multiply(layer: layers.Multiply, s: Sizes) -> LayerCost:
    """1 per y forward; backward two products, and the sum over the positions where the second has a
    value for each channel."""
    second = s.x - s.y
    summed = s.y if second < s.y else 0
    return LayerCost(
        forward=s.cost(other=s.y, read=s.x, written=s.y),
        data_gradient=s.cost(other=2 * s.y + summed, read=s.x + s.y, written=s.x),
    )


def _scale(layer: layers.Scale, s: Sizes) -> LayerCost:
    """1 a value forward and in the data gradient; 2 in the weight gradient, a product and its
    sum."""
    return LayerCost(
        forward=s.cost(other=s.x, read=s.x + s.parameters, written=s.y),
        data_gradient=s.cost(other=s.x, read=s.y + s.parameters, written=s.x),
        weight_gradient=s.cost(other=2 * s.x, read=2 * s.x, written=s.parameters),
    )


def _rms_norm(layer: layers.RMSNorm, s: Sizes) -> LayerCost:
    """Forward 4 a value: the mean of squares 2, the scale 1, the weight 1. Weight gradient 3: x̂ 1,
    dy · x̂ summed 2. Data gradient 6: dy · weight 1, its product with x̂ summed 2, and
    (dy · weight − x̂ · mean) · scale 3."""
    statistics = s.x // s.shape[-1]
    return LayerCost(
        forward=s.cost(other=4 * s.x, read=s.x + s.parameters, written=s.y + statistics),
        data_gradient=s.cost(other=6 * s.x, read=2 * s.x + s.parameters + statistics, written=s.x),
        weight_gradient=s.cost(other=3 * s.x, read=2 * s.x + statistics, written=s.parameters),
    )


def _rotary_embedding(layer: layers.RotaryEmbedding, s: Sizes) -> LayerCost:
    """3 a value each way: two products and their sum. The tables of cosines and sines are small."""
    return LayerCost(
        forward=s.cost(other=3 * s.y, read=s.x, written=s.y),
        data_gradient=s.cost(other=3 * s.y, read=s.y, written=s.y),
    )


def _document_mask(layer: layers.DocumentMask, s: Sizes) -> LayerCost:
    """2 a pair of positions: whether they are of one document, and the first not after it."""
    return LayerCost(
        forward=s.cost(other=2 * s.y, read_bytes=s.x * INDEX_BYTES, written_bytes=s.y * MASK_BYTES)
    )


def _experts(layer: layers.Experts, s: Sizes) -> LayerCost:
    """Three products at each of `active` experts of a position, 6 · features · ffn a pass: the
    experts that are not chosen compute nothing. Other operations, for each of these hidden values:
    silu and the product 6 forward, 12 backward; for each result a product and a sum, backward
    twice; 5 a score of the softmax forward, 4 backward. All experts' weights are read and written.
    Each pass reads and writes the chosen positions, and what is saved."""
    _length, features = s.shape
    rows = layer.active * (s.y // features)
    hidden, results, scores = rows * layer.ffn, rows * features, s.x - s.y
    work = 6 * features * hidden
    return LayerCost(
        forward=s.cost(
            matrix=work,
            other=6 * hidden + 2 * results + 5 * rows,
            read=s.x + 3 * results + 3 * hidden + s.parameters,
            written=s.y + 2 * results + 3 * hidden,
        ),
        data_gradient=s.cost(
            matrix=work,
            other=12 * hidden + 4 * results + 4 * rows,
            read=s.y + 3 * results + 5 * hidden + s.parameters,
            written=s.y + scores + 3 * results + 3 * hidden,
        ),
        weight_gradient=s.cost(matrix=work, read=2 * results + 3 * hidden, written=s.parameters),
    )


def _load_balance(layer: layers.LoadBalance, s: Sizes) -> LayerCost:
    """7 a score forward (softmax 5, times its share 1, sum 1), 5 backward. The choice itself, a
    comparison of scores, is not counted."""
    return LayerCost(
        forward=s.cost(other=7 * s.x, read=s.x, written=s.y + s.x),
        data_gradient=s.cost(other=5 * s.x, read=s.x + s.y, written=s.x),
    )


def _select_channels(layer: layers.SelectChannels, s: Sizes) -> LayerCost:
    """A copy forward; backward the gradient among zeros."""
    return LayerCost(
        forward=s.cost(read=s.y, written=s.y), data_gradient=s.cost(read=s.y, written=s.x)
    )


def _pixel_shuffle(layer: layers.PixelShuffle, s: Sizes) -> LayerCost:
    """A copy each way."""
    copy = s.cost(read=s.x, written=s.y)
    return LayerCost(forward=copy, data_gradient=copy)


@dataclass(frozen=True, kw_only=True)
class _Recurrent:
    """Numbers for each h of a recurrent layer: operations other than products, forward and
    backward; arrays of gradients before the products; and how often the backward pass reads h."""

    forward: int
    backward: int
    gradients: int
    reads_h: int = 1


_RECURRENT: dict[type[layers.Recurrence], _Recurrent] = {
    layers.LSTM: _Recurrent(forward=21, backward=20, gradients=4, reads_h=0),
    layers.GRU: _Recurrent(forward=16, backward=17, gradients=4),
    layers.RNN: _Recurrent(forward=4, backward=3, gradients=1),
}


def _recurrence(layer: layers.Recurrence, s: Sizes) -> LayerCost:
    """Two products of as many rows an h as there are gates forward, their gradients backward.

    Other operations, for each h. LSTM: 21 forward (four gates, three additions and a function each;
    the cell 3, its tanh and product 2), 20 backward. GRU: 16 forward (two gates as these; the third
    two biases, a product, a sum, a function; h 3), 17 backward (z 2, n 2, h 2, tanh 3, r and R h 2,
    two σ 3 each). RNN: 4 forward, 3 backward (1 of a ReLU). The gradients of the two biases 1 each
    for each row. What is saved is written and read; adding two directions is 1 per y.
    """
    own, rows = _RECURRENT[type(layer)], layer.gates * layer.hidden
    added = s.y if layer.directions == "sum" else 0
    h = s.y + added
    width = s.weight_shape[1] + layer.hidden
    work, weights = 2 * layer.gates * h * width, layer.ways * rows * width
    saved = RECURRENT_VALUES[type(layer)] * h
    backward = 1 if isinstance(layer, layers.RNN) and layer.function == "relu" else own.backward
    return LayerCost(
        forward=s.cost(
            matrix=work,
            other=own.forward * h + added,
            read=s.x + h + s.parameters + 2 * added,
            written=h + saved + added,
        ),
        data_gradient=s.cost(
            matrix=work,
            other=backward * h,
            read=s.y + saved + own.reads_h * h + weights,
            written=s.x + own.gradients * h,
        ),
        weight_gradient=s.cost(
            matrix=work,
            other=2 * layer.gates * h,
            read=s.x + (own.gradients + 1) * h,
            written=s.parameters,
        ),
    )


def _input_feeding_decoder(layer: layers.InputFeedingDecoder, s: Sizes) -> LayerCost:
    """An LSTM's products and operations for each of its h; 2 · hidden per y for the query and
    4 · hidden for the readout; 2 · positions per y each for the scores and the mean, of which both
    operands are data. Other operations: the softmax 5 a score forward and 4 backward, the tanh 1
    and 3 per y."""
    (_, features), _, (positions, hidden) = s.inputs
    h, lstm = layer.depth * s.y, _RECURRENT[layers.LSTM]
    widths = features + 2 * hidden + 2 * hidden * (layer.depth - 1)
    work = 2 * s.y * (4 * widths + 3 * hidden)
    attended, scores = 4 * s.y * positions, s.y // hidden * positions
    saved = RECURRENT_VALUES[layers.LSTM] * h + s.y // hidden * decoder_values(layer, s.inputs)
    gradients = lstm.gradients * h + 2 * s.y + scores
    return LayerCost(
        forward=s.cost(
            matrix=work + attended,
            other=lstm.forward * h + 5 * scores + s.y,
            read=s.x + h + s.parameters,
            written=s.y + h + saved,
        ),
        data_gradient=s.cost(
            matrix=work + 2 * attended,
            other=lstm.backward * h + 4 * scores + 3 * s.y,
            read=s.y + saved + s.parameters,
            written=s.x + gradients,
        ),
        weight_gradient=s.cost(
            matrix=work,
            other=2 * 4 * h,
            read=saved + h + gradients,
            written=s.parameters,
        ),
    )


def _pair_sum(layer: layers.PairSum, s: Sizes) -> LayerCost:
    """1 per y forward; backward two sums over the other's positions."""
    return LayerCost(
        forward=s.cost(other=s.y, read=s.x, written=s.y),
        data_gradient=s.cost(other=2 * s.y, read=2 * s.y, written=s.x),
    )


def _pair_product(layer: layers.PairProduct, s: Sizes) -> LayerCost:
    """2 · features per y forward, and for each of the two gradients."""
    queries, keys, _ = s.shape
    features = s.x * keys // (s.y * (queries + keys) // queries)
    work = 2 * s.y * features
    return LayerCost(
        forward=s.cost(matrix=work, read=s.x, written=s.y),
        data_gradient=s.cost(matrix=2 * work, read=s.x + s.y, written=s.x),
    )


def _mix(layer: layers.Mix, s: Sizes) -> LayerCost:
    """A product of 2 · keys per y forward, two backward; and the softmax, 5 a score forward
    (largest, difference, exponential, sum, division) and 4 backward."""
    features = s.shape[1]
    scores, work = s.y // features * layer.keys, 2 * s.y * layer.keys
    return LayerCost(
        forward=s.cost(matrix=work, other=5 * scores, read=s.x, written=s.y + scores),
        data_gradient=s.cost(matrix=2 * work, other=4 * scores, read=s.x + s.y, written=s.x),
    )


COUNTS: dict[type[Layer], Callable[[Any, Sizes], LayerCost]] = {
    layers.Convolution: _product,
    layers.Linear: _product,
    layers.BatchNorm: _batch_norm,
    layers.LocalResponseNorm: _local_response_norm,
    layers.ReLU: _relu,
    layers.Add: _add,
    layers.Concat: _concat,
    layers.Dropout: _dropout,
    layers.Flatten: _view,
    layers.MaxPool: _max_pool,
    layers.AveragePool: _average_pool,
    layers.GlobalAveragePool: _global_average_pool,
    layers.LayerNorm: _layer_norm,
    layers.GELU: _gelu,
    layers.Attention: _attention,
    layers.Tokens: _view,
    layers.Embedding: _embedding,
    layers.ClassToken: _class_token,
    layers.PositionEmbedding: _position_embedding,
    layers.SelectPosition: _select_position,
    layers.Tanh: _tanh,
    layers.LSTM: _recurrence,
    layers.GRU: _recurrence,
    layers.RNN: _recurrence,
    layers.InputFeedingDecoder: _input_feeding_decoder,
    layers.Columns: _view,
    layers.PairSum: _pair_sum,
    layers.PairProduct: _pair_product,
    layers.Mix: _mix,
    layers.RMSNorm: _rms_norm,
    layers.RotaryEmbedding: _rotary_embedding,
    layers.Experts: _experts,
    layers.DocumentMask: _document_mask,
    layers.LoadBalance: _load_balance,
    layers.EmbeddingBags: _embedding_bags,
    layers.DotInteraction: _dot_interaction,
    layers.BinaryScores: _binary_scores,
    layers.ToImage: _view,
    layers.Transpose: _view,
    layers.SelectChannels: _select_channels,
    layers.PixelShuffle: _pixel_shuffle,
    layers.Sigmoid: _sigmoid,
    layers.Activation: _activation,
    layers.Multiply: _multiply,
    layers.Scale: _scale,
}
"""Layer type → (layer, sizes) → cost of all three passes, without what is saved."""
