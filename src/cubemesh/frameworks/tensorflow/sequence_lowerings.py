"""The lowerings of sequence layers to TensorFlow operations, one line a layer type.

`lowerings.py` joins this table to its own. Sequences are (batch, length, features) in
every layout. TensorFlow has no fused attention or layer normalization, and its fused LSTM (for CPUs
only, not for XLA) stores gates in another order: these are written out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from cubemesh.frameworks.tensorflow.context import Lowering, TensorFlowContext
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


def _layer_norm(layer: LayerNorm, context: TensorFlowContext, x: Any) -> Any:
    """(x − mean) / √(variance + ε) · weight + bias, in the type of statistics."""
    full = context.to_array_type(x)
    mean, variance = tf.nn.moments(full, [-1], keepdims=True)
    own = context.arrays
    y = tf.nn.batch_normalization(full, mean, variance, own["bias"], own["weight"], layer.epsilon)
    return tf.cast(y, x.dtype)


def _gelu(layer: GELU, context: TensorFlowContext, x: Any) -> Any:
    """As `tf.nn.gelu`, whose constants are float32 in float64 too, an error of 5e-9."""
    if layer.form == "erf":
        return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2)))
    cubed = x + 0.044715 * tf.pow(x, 3)
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * cubed))


def _attention(layer: Attention, context: TensorFlowContext, x: Any) -> Any:
    """The softmax in the type of statistics."""
    (x,) = context.to_product_type(x)
    batch, length, width = x.shape
    size = width // (3 * layer.heads)
    packed = tf.reshape(x, [batch, length, 3, layer.heads, size])
    q, k, v = tf.unstack(tf.transpose(packed, [2, 0, 3, 1, 4]))
    scores = context.to_array_type(tf.matmul(q, k, transpose_b=True)) / math.sqrt(size)
    if layer.causal:
        seen = np.tril(np.ones((length, length), bool))
        scores = tf.where(seen, scores, tf.constant(-np.inf, scores.dtype))
    y = tf.matmul(tf.cast(tf.nn.softmax(scores), x.dtype), v)
    return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [batch, length, width // 3])


def _tokens(layer: Tokens, context: TensorFlowContext, x: Any) -> Any:
    if context.layout == "nchw":
        x = tf.transpose(x, [0, 2, 3, 1])
    return tf.reshape(x, [x.shape[0], -1, x.shape[-1]])


def _class_token(layer: ClassToken, context: TensorFlowContext, x: Any) -> Any:
    token = tf.cast(context.arrays["token"], x.dtype)
    first = tf.broadcast_to(token, [x.shape[0], 1, token.shape[0]])
    return tf.concat([first, x], 1)


def _position_embedding(layer: PositionEmbedding, context: TensorFlowContext, x: Any) -> Any:
    return x + tf.cast(context.arrays["weight"], x.dtype)


def _lstm(layer: LSTM, context: TensorFlowContext, x: Any, begin: Any = None) -> Any:
    """The product of all inputs at once, then a step for each position; the cell in the type of
    statistics."""
    own = context.arrays
    x, weight, recurrent = context.to_product_type(x, own["weight"], own["hidden_weight"])
    batch, length, features = x.shape
    rows = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, features])
    fed = context.to_array_type(tf.matmul(rows, weight, transpose_b=True)) + (
        own["bias"] + own["hidden_bias"]
    )
    each = tf.TensorArray(fed.dtype, length).unstack(tf.reshape(fed, [length, batch, -1]))
    first = tf.zeros([batch, layer.hidden], x.dtype) if begin is None else tf.cast(begin, x.dtype)

    def step(t: Any, h: Any, cell: Any, outputs: Any) -> Any:
        back = context.to_array_type(tf.matmul(h, recurrent, transpose_b=True))
        i, f, g, o = tf.split(each.read(t) + back, 4, axis=1)
        cell = tf.sigmoid(f) * cell + tf.sigmoid(i) * tf.tanh(g)
        h = tf.cast(tf.sigmoid(o) * tf.tanh(cell), x.dtype)
        return t + 1, h, cell, outputs.write(t, h)

    *_, outputs = tf.while_loop(
        lambda t, *carry: t < length,
        step,
        (0, first, tf.zeros_like(context.to_array_type(first)), tf.TensorArray(x.dtype, length)),
        maximum_iterations=length,  # XLA needs it for the backward pass
    )
    return tf.ensure_shape(tf.transpose(outputs.stack(), [1, 0, 2]), [batch, length, layer.hidden])


def _pair_product(layer: PairProduct, context: TensorFlowContext, queries: Any, keys: Any) -> Any:
    return tf.matmul(*context.to_product_type(queries, keys), transpose_b=True)[..., None]


def _pair_sum(layer: PairSum, context: TensorFlowContext, queries: Any, keys: Any) -> Any:
    return tf.add(*context.same_type(queries[:, :, None], keys[:, None]))


def _mix(layer: Mix, context: TensorFlowContext, scores: Any, values: Any) -> Any:
    shares = tf.nn.softmax(context.to_array_type(scores[..., 0]))
    return tf.matmul(tf.cast(shares, values.dtype), values)


SEQUENCE_LOWERINGS: dict[type[Layer], Lowering] = {
    LayerNorm: _layer_norm,
    GELU: _gelu,
    Attention: _attention,
    Tokens: _tokens,
    Embedding: lambda layer, context, tokens: tf.gather(context.arrays["weight"], tokens),
    ClassToken: _class_token,
    PositionEmbedding: _position_embedding,
    SelectPosition: lambda layer, context, x: x[:, layer.position],
    Tanh: lambda layer, context, x: tf.tanh(x),
    LSTM: _lstm,
    PairSum: _pair_sum,
    PairProduct: _pair_product,
    Mix: _mix,
}
"""Joined to `LOWERINGS`."""
