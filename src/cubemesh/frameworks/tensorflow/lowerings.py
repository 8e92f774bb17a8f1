"""The lowerings of layers to TensorFlow operations, one line a layer type.

A lowering is a function of the layer's settings, its context (`TensorFlowContext`) and its inputs.
The batch is the first axis; the channels of images are the last (`nhwc`) or, where XLA compiles,
the second (`nchw`). It runs once, while the step is traced. Where XLA and TensorFlow's CPU kernels
offer different operations, `context.compiled` decides. Sequences are (batch, length, features) in
every layout. TensorFlow has no fused attention or layer normalization, and its fused LSTM (for CPUs
only, not for XLA) stores gates in another order: these are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from cubemesh.frameworks.contract.validation import check_values_per_channel
from cubemesh.frameworks.pooling import far_padding, pads_as_same, window_shares
from cubemesh.frameworks.tensorflow.runtime import TensorFlowNumerics
from cubemesh.networks import layers
from cubemesh.networks.layers.sequences import rotation_tables


@dataclass(frozen=True, kw_only=True)
class TensorFlowContext:
    """Arrays, layout and numerics of one layer."""

    arrays: Mapping[str, Any]
    """Parameters and state, by their role in the layer."""
    shape: layers.Shape
    """Of one sample of the result, channels first."""
    layout: str
    numerics: TensorFlowNumerics
    training: bool
    compiled: bool
    """Whether XLA compiles the step."""
    on_gpu: bool
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


def _convolution(layer: layers.Convolution, context: TensorFlowContext, x: Any) -> Any:
    """TensorFlow's CPU kernels have no backward pass for groups: each group is then a convolution
    of its own. With explicit padding they do not use oneDNN: a step of LittleCNN took 1.7 times as
    long. So `SAME` is used where it pads the same cells; else the image is padded before. Nor have
    they a backward pass for gaps between a kernel's cells: `tf.nn.convolution` moves the image's
    cells between samples instead, which it does at a stride of 1 only (`check_network`)."""
    x, weight = context.to_product_type(x, context.arrays["weight"])
    around = [(p, p) for p in layer.padding]
    same = pads_as_same(layer)
    padding: Any = context.around(around)
    if not context.compiled:
        padding = "SAME" if same else "VALID"
        x = x if same or not any(layer.padding) else context.pad(x, around)

    def convolve(x: Any, weight: Any) -> Any:
        if context.compiled or layer.dilation == (1, 1):
            return tf.nn.conv2d(
                x, weight, layer.stride, padding, context.format, dilations=layer.dilation
            )
        return tf.nn.convolution(
            x, weight, padding=padding, data_format=context.format, dilations=layer.dilation
        )

    if layer.groups == 1 or context.compiled or context.on_gpu:
        y = convolve(x, weight)
    else:
        axis = context.channels(x)
        groups = zip(
            tf.split(x, layer.groups, axis), tf.split(weight, layer.groups, -1), strict=True
        )
        y = tf.concat([convolve(*group) for group in groups], axis)
    if not layer.bias:
        return y
    (bias,) = context.to_product_type(context.arrays["bias"])
    return tf.nn.bias_add(y, bias, data_format=context.format)


def _linear(layer: layers.Linear, context: TensorFlowContext, x: Any) -> Any:
    """Positions of a sequence are rows of one product, as samples are."""
    x, weight = context.to_product_type(x, context.arrays["weight"])
    rows = x if len(x.shape) == 2 else tf.reshape(x, [-1, x.shape[-1]])
    y = tf.matmul(rows, weight, transpose_b=True)  # the weight is (out, in)
    if layer.bias:
        y = tf.nn.bias_add(y, *context.to_product_type(context.arrays["bias"]))
    return y if rows is x else tf.reshape(y, [*x.shape[:-1], layer.features])


def _batch_norm(layer: layers.BatchNorm, context: TensorFlowContext, x: Any) -> Any:
    """In float32 and below, TensorFlow's fused kernel, whose running variance is the unbiased one.
    It has no float64: there the mean of (x − mean)² is written out. Without an image the features
    are the channels of a single position."""
    own, axis = context.arrays, context.channels(x)
    axes = [i for i in range(len(x.shape)) if i != axis]
    if not context.training:
        scale = own["weight"] * tf.math.rsqrt(own["running_variance"] + layer.epsilon)
        shift = own["bias"] - own["running_mean"] * scale
        y = context.to_array_type(x) * context.per_channel(scale, x) + context.per_channel(shift, x)
        return tf.cast(y, x.dtype)
    n = math.prod(x.shape[i] for i in axes)
    check_values_per_channel(n)
    if x.dtype == tf.float64:
        mean, variance = tf.nn.moments(x, axes)
        unbiased = variance * (n / (n - 1))
        y = tf.nn.batch_normalization(
            x,
            *(context.per_channel(a, x) for a in (mean, variance, own["bias"], own["weight"])),
            layer.epsilon,
        )
    else:
        image = x if len(x.shape) == 4 else x[:, None, None, :]
        y, mean, unbiased, *_ = tf.raw_ops.FusedBatchNormV3(
            x=image,
            scale=own["weight"],
            offset=own["bias"],
            mean=tf.constant([]),
            variance=tf.constant([]),
            epsilon=layer.epsilon,
            data_format=context.format if image is x else "NHWC",
        )
        y = tf.reshape(y, x.shape)
    keep, new = 1 - layer.momentum, layer.momentum
    context.new_state["running_mean"] = keep * own["running_mean"] + new * mean
    context.new_state["running_variance"] = keep * own["running_variance"] + new * unbiased
    return y


def _response_norm(layer: layers.LocalResponseNorm, context: TensorFlowContext, x: Any) -> Any:
    """The window is zero-padded; one of even size has one more element before its centre.
    TensorFlow's kernel supports odd windows across channels, in float32 and `nhwc`; its alpha
    applies to the sum of the squares."""
    full, across = context.to_array_type(x), layer.region == "across"
    if across and layer.size % 2 and full.dtype == tf.float32 and context.layout == "nhwc":
        y = tf.nn.lrn(full, layer.size // 2, layer.bias, layer.alpha / layer.size, layer.beta)
        return tf.cast(y, x.dtype)
    squares, reach = tf.square(full), (layer.size // 2, (layer.size - 1) // 2)
    if across:  # the mean of neighbouring channels: those of rows, in an image of one column
        if context.layout == "nhwc":
            rows = tf.reshape(squares, [x.shape[0], -1, x.shape[3], 1])
            around, window = [[0, 0], [0, 0], reach, [0, 0]], (1, layer.size)
        else:
            rows = tf.reshape(squares, [x.shape[0], x.shape[1], -1, 1])
            around, window = [[0, 0], reach, [0, 0], [0, 0]], (layer.size, 1)
        means = tf.nn.avg_pool2d(tf.pad(rows, around), window, 1, "VALID")
        means = tf.reshape(means, x.shape)
    else:
        padded = context.pad(squares, (reach, reach))
        means = tf.nn.avg_pool2d(padded, layer.size, 1, "VALID", data_format=context.format)
    return tf.cast(full / (layer.bias + layer.alpha * means) ** layer.beta, x.dtype)


def _dropout(layer: layers.Dropout, context: TensorFlowContext, x: Any) -> Any:
    if not context.training or layer.rate == 0:
        return x
    if layer.rate == 1:
        return tf.zeros_like(x)
    shape = [x.shape[0], *[1] * (len(x.shape) - 1)] if layer.per_sample else None
    return tf.nn.experimental.stateless_dropout(
        x, layer.rate, context.seed(), rng_alg="philox", noise_shape=shape
    )


def _flatten(layer: layers.Flatten, context: TensorFlowContext, x: Any) -> Any:
    if context.layout == "nhwc" and len(x.shape) == 4:
        x = tf.transpose(x, [0, 3, 1, 2])
    return tf.reshape(x, [x.shape[0], -1])


def _sizes(context: TensorFlowContext, x: Any) -> tuple[int, ...]:
    return tuple(x.shape[axis] for axis in context.positions)


def _max_pool(layer: layers.MaxPool, context: TensorFlowContext, x: Any) -> Any:
    """XLA has no pooling with padding: the image is padded before, with −∞."""
    padding = far_padding(layer, context.shape, _sizes(context, x))
    how: Any = "VALID"
    if any(before or after for before, after in padding):
        if context.compiled:
            x = context.pad(x, padding, -np.inf)
        else:
            how = context.around(padding)
    return tf.nn.max_pool2d(x, layer.kernel, layer.stride, how, data_format=context.format)


def _average_pool(layer: layers.AveragePool, context: TensorFlowContext, x: Any) -> Any:
    sizes = _sizes(context, x)
    padding = far_padding(layer, context.shape, sizes)
    shares = window_shares(layer, context.shape, sizes)
    if any(before or after for before, after in padding):
        x = context.pad(x, padding)
    y = tf.nn.avg_pool2d(x, layer.kernel, layer.stride, "VALID", data_format=context.format)
    if shares is None:
        return y
    shape = [1] * 4
    for axis, size in zip(context.positions, shares.shape, strict=True):
        shape[axis] = size
    return y * tf.constant(shares.reshape(shape), y.dtype)


def _global_average_pool(
    layer: layers.GlobalAveragePool, context: TensorFlowContext, x: Any
) -> Any:
    axes = context.positions if len(x.shape) == 4 else 1
    return tf.cast(tf.reduce_mean(context.to_array_type(x), axes), x.dtype)


def _layer_norm(layer: layers.LayerNorm, context: TensorFlowContext, x: Any) -> Any:
    """(x − mean) / √(variance + ε) · weight + bias, in the type of statistics."""
    full = context.to_array_type(x)
    mean, variance = tf.nn.moments(full, [-1], keepdims=True)
    own = context.arrays
    y = tf.nn.batch_normalization(full, mean, variance, own["bias"], own["weight"], layer.epsilon)
    return tf.cast(y, x.dtype)


def _gelu(layer: layers.GELU, context: TensorFlowContext, x: Any) -> Any:
    """As `tf.nn.gelu`, whose constants are float32 in float64 too, an error of 5e-9."""
    if layer.form == "erf":
        return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2)))
    cubed = x + 0.044715 * tf.pow(x, 3)
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * cubed))


def _rms_norm(layer: layers.RMSNorm, context: TensorFlowContext, x: Any) -> Any:
    """x / √(mean of x² + ε) · weight, in the type of statistics."""
    full = context.to_array_type(x)
    squares = tf.reduce_mean(tf.square(full), -1, keepdims=True)
    y = full * tf.math.rsqrt(squares + layer.epsilon) * context.arrays["weight"]
    return tf.cast(y, x.dtype)


def _attention(layer: layers.Attention, context: TensorFlowContext, *inputs: Any) -> Any:
    """The softmax in the type of statistics."""
    x, *others = context.to_product_type(*inputs)
    batch, length, width = x.shape
    if others:
        keys = layer.key_value_heads or layer.heads
        q = _heads(x, layer.heads)
        k, v = (tf.repeat(_heads(part, keys), layer.heads // keys, axis=1) for part in others)
    else:
        width //= 3
        packed = tf.reshape(x, [batch, length, 3, layer.heads, width // layer.heads])
        q, k, v = tf.unstack(tf.transpose(packed, [2, 0, 3, 1, 4]))
    size = width // layer.heads
    scores = context.to_array_type(tf.matmul(q, k, transpose_b=True)) / math.sqrt(size)
    if layer.causal:
        seen = np.tril(np.ones((length, length), bool))
        scores = tf.where(seen, scores, tf.constant(-np.inf, scores.dtype))
    shares = tf.nn.softmax(scores)
    if layer.dropout:
        shares = _dropout(layers.Dropout(rate=layer.dropout), context, shares)
    y = tf.matmul(tf.cast(shares, x.dtype), v)
    return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [batch, length, width])


def _heads(x: Any, heads: int) -> Any:
    """(batch, length, features) → (batch, heads, length, features of a head)."""
    batch, length, width = x.shape
    return tf.transpose(tf.reshape(x, [batch, length, heads, width // heads]), [0, 2, 1, 3])


def _rotary_embedding(layer: layers.RotaryEmbedding, context: TensorFlowContext, x: Any) -> Any:
    batch, length, width = x.shape
    size = width // layer.heads
    cosines, sines = (tf.constant(t, x.dtype) for t in rotation_tables(length, size, layer.base))
    one, other = tf.split(tf.reshape(x, [batch, length, layer.heads, size]), 2, axis=-1)
    turned = tf.concat([one * cosines - other * sines, other * cosines + one * sines], -1)
    return tf.reshape(turned, x.shape)


def _tokens(layer: layers.Tokens, context: TensorFlowContext, x: Any) -> Any:
    if context.layout == "nchw":
        x = tf.transpose(x, [0, 2, 3, 1])
    return tf.reshape(x, [x.shape[0], -1, x.shape[-1]])


def _to_image(layer: layers.ToImage, context: TensorFlowContext, x: Any) -> Any:
    x = tf.reshape(x, [x.shape[0], *layer.size, x.shape[-1]])
    return tf.transpose(x, [0, 3, 1, 2]) if context.layout == "nchw" else x


def _embedding_bags(layer: layers.EmbeddingBags, context: TensorFlowContext, x: Any) -> Any:
    own = tf.reshape(x, [-1, len(layer.rows), layer.indices])
    tables = (context.arrays[f"table{n + 1}"] for n in range(len(layer.rows)))
    sums = [tf.reduce_sum(tf.gather(table, own[:, n]), 1) for n, table in enumerate(tables)]
    return tf.stack(sums, axis=1)


def _dot_interaction(
    layer: layers.DotInteraction, context: TensorFlowContext, x: Any, vectors: Any
) -> Any:
    both = tf.concat(context.same_type(x[:, None], vectors), 1)
    (given,) = context.to_product_type(both)
    products = tf.matmul(given, given, transpose_b=True)
    n = both.shape[1]
    rows, columns = np.tril_indices(n, -1)
    used = tf.gather(tf.reshape(products, [-1, n * n]), rows * n + columns, axis=1)
    return tf.concat(context.same_type(x, used), 1)


def _select_channels(layer: layers.SelectChannels, context: TensorFlowContext, x: Any) -> Any:
    axis = context.channels(x) if len(x.shape) == 4 else len(x.shape) - 1
    return tf.gather(x, np.array(layer.channels), axis=axis)


def _pixel_shuffle(layer: layers.PixelShuffle, context: TensorFlowContext, x: Any) -> Any:
    channels, height, width = context.shape
    square, low = [layer.factor, layer.factor], [height // layer.factor, width // layer.factor]
    if context.layout == "nhwc":
        x = tf.transpose(tf.reshape(x, [x.shape[0], *low, channels, *square]), [0, 1, 4, 2, 5, 3])
        return tf.reshape(x, [x.shape[0], height, width, channels])
    x = tf.transpose(tf.reshape(x, [x.shape[0], channels, *square, *low]), [0, 1, 4, 2, 5, 3])
    return tf.reshape(x, [x.shape[0], channels, height, width])


def _multiply(layer: layers.Multiply, context: TensorFlowContext, x: Any, y: Any) -> Any:
    if len(y.shape) < len(x.shape):
        y = tf.reshape(
            y, [*y.shape[:1], 1, 1, y.shape[1]] if context.layout == "nhwc" else [*y.shape, 1, 1]
        )
    return tf.multiply(*context.same_type(x, y))


def _scale(layer: layers.Scale, context: TensorFlowContext, x: Any) -> Any:
    weight = tf.cast(context.arrays["weight"], x.dtype)
    return x * (context.per_channel(weight, x) if len(x.shape) == 4 else weight)


def _activation(layer: layers.Activation, context: TensorFlowContext, x: Any) -> Any:
    match layer.function:
        case "silu":
            return x * tf.sigmoid(x)
        case "quick-gelu":
            return x * tf.sigmoid(1.702 * x)
        case "mish":
            return x * tf.tanh(tf.math.softplus(x))
        case "hard-sigmoid":
            return tf.nn.relu6(x + 3) / 6
        case "hard-swish":
            return x * (tf.nn.relu6(x + 3) / 6)
        case "relu6":
            return tf.nn.relu6(x)
        case "leaky-relu":
            return tf.nn.leaky_relu(x, layer.slope)
        case "squared-relu":
            return tf.square(tf.nn.relu(x))


def _class_token(layer: layers.ClassToken, context: TensorFlowContext, x: Any) -> Any:
    token = tf.cast(context.arrays["token"], x.dtype)
    first = tf.broadcast_to(token, [x.shape[0], 1, token.shape[0]])
    return tf.concat([first, x], 1)


def _position_embedding(layer: layers.PositionEmbedding, context: TensorFlowContext, x: Any) -> Any:
    rows = slice(layer.first, layer.first + (1 if layer.shared else x.shape[1]))
    return x + tf.cast(context.arrays["weight"][rows], x.dtype)


def _recurrence(
    layer: layers.Recurrence, context: TensorFlowContext, x: Any, begin: Any = None
) -> Any:
    """One direction, or both: the other reads the sequence from its end."""
    forward = _one_way(layer, context, x, begin)
    if layer.directions == "forward":
        return forward
    backward = tf.reverse(_one_way(layer, context, tf.reverse(x, [1]), None, "reverse_"), [1])
    if layer.directions == "sum":
        return forward + backward
    return tf.concat([forward, backward], -1)


def _one_way(
    layer: layers.Recurrence, context: TensorFlowContext, x: Any, begin: Any, prefix: str = ""
) -> Any:
    """The product of all inputs at once, then a step for each position; the cell in the type of
    statistics."""
    weight, hidden_weight, bias, hidden_bias = (
        context.arrays[prefix + role] for role in ("weight", "hidden_weight", "bias", "hidden_bias")
    )
    x, weight, hidden_weight = context.to_product_type(x, weight, hidden_weight)
    separate = isinstance(layer, layers.GRU)  # it multiplies the hidden one
    batch, length, features = x.shape
    rows = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, features])
    fed = context.to_array_type(tf.matmul(rows, weight, transpose_b=True)) + (
        bias if separate else bias + hidden_bias
    )
    each = tf.TensorArray(fed.dtype, length).unstack(tf.reshape(fed, [length, batch, -1]))
    first = tf.zeros([batch, layer.hidden], x.dtype) if begin is None else tf.cast(begin, x.dtype)
    cell = context.to_array_type(first)

    def step(t: Any, h: Any, cell: Any, outputs: Any) -> Any:
        back = context.to_array_type(tf.matmul(h, hidden_weight, transpose_b=True))
        h, cell = _cell(layer, each.read(t), back + hidden_bias if separate else back, cell)
        h = tf.cast(h, x.dtype)
        return t + 1, h, cell, outputs.write(t, h)

    *_, outputs = tf.while_loop(
        lambda t, *carry: t < length,
        step,
        (
            0,
            first,
            tf.zeros_like(cell) if isinstance(layer, layers.LSTM) else cell,
            tf.TensorArray(x.dtype, length),
        ),
        maximum_iterations=length,  # XLA needs it for the backward pass
    )
    return tf.ensure_shape(tf.transpose(outputs.stack(), [1, 0, 2]), [batch, length, layer.hidden])


def _cell(layer: layers.Recurrence, fed: Any, back: Any, cell: Any) -> tuple[Any, Any]:
    """(h, cell) of a step, from the products of its input and of the h before; a layer without a
    cell has h in its place."""
    if isinstance(layer, layers.LSTM):
        return _lstm_cell(fed + back, cell)
    if isinstance(layer, layers.GRU):
        (r, z, n), (r_back, z_back, n_back) = tf.split(fed, 3, axis=1), tf.split(back, 3, axis=1)
        n = tf.tanh(n + tf.sigmoid(r + r_back) * n_back)
        h = n + tf.sigmoid(z + z_back) * (cell - n)
    else:
        relu = isinstance(layer, layers.RNN) and layer.function == "relu"
        h = (tf.nn.relu if relu else tf.tanh)(fed + back)
    return h, h


def _lstm_cell(gates: Any, cell: Any) -> tuple[Any, Any]:
    i, f, g, o = tf.split(gates, 4, axis=1)
    cell = tf.sigmoid(f) * cell + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(cell), cell


def _input_feeding_decoder(
    layer: layers.InputFeedingDecoder,
    context: TensorFlowContext,
    words: Any,
    begin: Any,
    memory: Any,
) -> Any:
    """A step for each position; cells, softmax and tanh in the type of statistics."""
    words, begin, memory = context.to_product_type(words, begin, memory)
    own, dtype = context.arrays, words.dtype
    batch, length, _ = words.shape

    def product(x: Any, role: str) -> Any:
        (weight,) = context.to_product_type(own[role])
        return context.to_array_type(tf.matmul(x, weight, transpose_b=True))

    each = tf.TensorArray(dtype, length).unstack(tf.transpose(words, [1, 0, 2]))
    outputs = tf.TensorArray(dtype, length)

    def step(t: Any, hs: Any, cells: Any, fed: Any, outputs: Any) -> Any:
        x, hs, cells = tf.concat([each.read(t), fed], 1), list(hs), list(cells)
        for i, prefix in enumerate(layer.prefixes):
            bias = own[prefix + "bias"] + own[prefix + "hidden_bias"]
            now = product(x, prefix + "weight") + bias
            x, cells[i] = _lstm_cell(now + product(hs[i], prefix + "hidden_weight"), cells[i])
            hs[i] = x = tf.cast(x, dtype)
        query = tf.cast(product(x, "attention_weight"), dtype)
        scores = context.to_array_type(tf.matmul(memory, query[:, :, None]))
        shares = tf.cast(tf.nn.softmax(scores, 1), dtype)
        mean = tf.matmul(shares, memory, transpose_a=True)[:, 0]
        fed = tf.cast(tf.tanh(product(tf.concat([mean, x], 1), "readout_weight")), dtype)
        return t + 1, tuple(hs), tuple(cells), fed, outputs.write(t, fed)

    empty = tf.zeros_like(begin)
    *_, outputs = tf.while_loop(
        lambda t, *carry: t < length,
        step,
        (
            0,
            (begin,) * layer.depth,
            (context.to_array_type(empty),) * layer.depth,
            empty,
            outputs,
        ),
        maximum_iterations=length,  # XLA needs it for the backward pass
    )
    return tf.ensure_shape(tf.transpose(outputs.stack(), [1, 0, 2]), [batch, length, layer.hidden])


def _columns(layer: layers.Columns, context: TensorFlowContext, x: Any) -> Any:
    x = tf.transpose(x, [0, 2, 3, 1] if context.layout == "nhwc" else [0, 3, 1, 2])
    return tf.reshape(x, [*x.shape[:2], -1])


def _pair_product(
    layer: layers.PairProduct, context: TensorFlowContext, queries: Any, keys: Any
) -> Any:
    return tf.matmul(*context.to_product_type(queries, keys), transpose_b=True)[..., None]


def _pair_sum(layer: layers.PairSum, context: TensorFlowContext, queries: Any, keys: Any) -> Any:
    return tf.add(*context.same_type(queries[:, :, None], keys[:, None]))


def _mix(layer: layers.Mix, context: TensorFlowContext, scores: Any, values: Any) -> Any:
    shares = tf.nn.softmax(context.to_array_type(scores[..., 0]))
    return tf.matmul(tf.cast(shares, values.dtype), values)


LOWERINGS: dict[type[layers.Layer], Lowering] = {
    layers.Convolution: _convolution,
    layers.Linear: _linear,
    layers.BatchNorm: _batch_norm,
    layers.LocalResponseNorm: _response_norm,
    layers.ReLU: lambda layer, context, x: tf.nn.relu(x),
    layers.Add: lambda layer, context, x, y: tf.add(*context.same_type(x, y)),
    layers.Concat: lambda layer, context, *values: tf.concat(values, context.channels(values[0])),
    layers.Dropout: _dropout,
    layers.Flatten: _flatten,
    layers.MaxPool: _max_pool,
    layers.AveragePool: _average_pool,
    layers.GlobalAveragePool: _global_average_pool,
    layers.LayerNorm: _layer_norm,
    layers.GELU: _gelu,
    layers.Attention: _attention,
    layers.Tokens: _tokens,
    layers.Embedding: lambda layer, context, tokens: tf.gather(context.arrays["weight"], tokens),
    layers.ClassToken: _class_token,
    layers.PositionEmbedding: _position_embedding,
    layers.SelectPosition: lambda layer, context, x: x[:, layer.position],
    layers.Tanh: lambda layer, context, x: tf.tanh(x),
    layers.LSTM: _recurrence,
    layers.GRU: _recurrence,
    layers.RNN: _recurrence,
    layers.InputFeedingDecoder: _input_feeding_decoder,
    layers.Columns: _columns,
    layers.PairSum: _pair_sum,
    layers.PairProduct: _pair_product,
    layers.Mix: _mix,
    layers.RMSNorm: _rms_norm,
    layers.RotaryEmbedding: _rotary_embedding,
    layers.EmbeddingBags: _embedding_bags,
    layers.DotInteraction: _dot_interaction,
    layers.BinaryScores: lambda layer, context, x: tf.pad(x, [[0, 0], [1, 0]]),
    layers.ToImage: _to_image,
    layers.Transpose: lambda layer, context, x: tf.transpose(x, [0, 2, 1]),
    layers.SelectChannels: _select_channels,
    layers.PixelShuffle: _pixel_shuffle,
    layers.Sigmoid: lambda layer, context, x: tf.sigmoid(x),
    layers.Activation: _activation,
    layers.Multiply: _multiply,
    layers.Scale: _scale,
}
