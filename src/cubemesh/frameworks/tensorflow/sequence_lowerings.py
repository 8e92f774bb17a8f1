"""Which operations of TensorFlow compute a layer of a network of sequences? One line a layer type.

As in `lowerings.py`, which joins this table to its own. Sequences are (batch, length, features) in
every layout. TensorFlow has no fused attention or layer normalisation, and its fused LSTM (for CPUs
only, unknown to XLA) keeps gates in another order: these are written out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from cubemesh.frameworks.tensorflow.place import Lowering, Place
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


def _layer_norm(layer: LayerNorm, place: Place, x: Any) -> Any:
    """(x − mean) / √(variance + ε) · weight + bias, in the type of statistics."""
    wide = place.wide(x)
    mean, variance = tf.nn.moments(wide, [-1], keepdims=True)
    own = place.arrays
    y = tf.nn.batch_normalization(wide, mean, variance, own["bias"], own["weight"], layer.epsilon)
    return tf.cast(y, x.dtype)


def _gelu(layer: GELU, place: Place, x: Any) -> Any:
    """As `tf.nn.gelu`, whose constants have float32's digits in float64 too: 5e-9 off."""
    if layer.form == "erf":
        return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2)))
    cubed = x + 0.044715 * tf.pow(x, 3)
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * cubed))


def _attention(layer: Attention, place: Place, x: Any) -> Any:
    """The softmax in the type of statistics."""
    (x,) = place.narrow(x)
    batch, length, width = x.shape
    size = width // (3 * layer.heads)
    packed = tf.reshape(x, [batch, length, 3, layer.heads, size])
    q, k, v = tf.unstack(tf.transpose(packed, [2, 0, 3, 1, 4]))
    scores = place.wide(tf.matmul(q, k, transpose_b=True)) / math.sqrt(size)
    if layer.causal:
        seen = np.tril(np.ones((length, length), bool))
        scores = tf.where(seen, scores, tf.constant(-np.inf, scores.dtype))
    y = tf.matmul(tf.cast(tf.nn.softmax(scores), x.dtype), v)
    return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [batch, length, width // 3])


def _tokens(layer: Tokens, place: Place, x: Any) -> Any:
    if place.layout == "nchw":
        x = tf.transpose(x, [0, 2, 3, 1])
    return tf.reshape(x, [x.shape[0], -1, x.shape[-1]])


def _class_token(layer: ClassToken, place: Place, x: Any) -> Any:
    token = tf.cast(place.arrays["token"], x.dtype)
    first = tf.broadcast_to(token, [x.shape[0], 1, token.shape[0]])
    return tf.concat([first, x], 1)


def _position_embedding(layer: PositionEmbedding, place: Place, x: Any) -> Any:
    return x + tf.cast(place.arrays["weight"], x.dtype)


def _lstm(layer: LSTM, place: Place, x: Any, begin: Any = None) -> Any:
    """The inputs' product at once, then a step a position; the cell in the type of statistics."""
    own = place.arrays
    x, weight, recurrent = place.narrow(x, own["weight"], own["hidden_weight"])
    batch, length, features = x.shape
    rows = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, features])
    fed = place.wide(tf.matmul(rows, weight, transpose_b=True)) + (own["bias"] + own["hidden_bias"])
    each = tf.TensorArray(fed.dtype, length).unstack(tf.reshape(fed, [length, batch, -1]))
    first = tf.zeros([batch, layer.hidden], x.dtype) if begin is None else tf.cast(begin, x.dtype)

    def step(t: Any, h: Any, cell: Any, outputs: Any) -> Any:
        back = place.wide(tf.matmul(h, recurrent, transpose_b=True))
        i, f, g, o = tf.split(each.read(t) + back, 4, axis=1)
        cell = tf.sigmoid(f) * cell + tf.sigmoid(i) * tf.tanh(g)
        h = tf.cast(tf.sigmoid(o) * tf.tanh(cell), x.dtype)
        return t + 1, h, cell, outputs.write(t, h)

    *_, outputs = tf.while_loop(
        lambda t, *carry: t < length,
        step,
        (0, first, tf.zeros_like(place.wide(first)), tf.TensorArray(x.dtype, length)),
        maximum_iterations=length,  # XLA must know it for the way back
    )
    return tf.ensure_shape(tf.transpose(outputs.stack(), [1, 0, 2]), [batch, length, layer.hidden])


def _pair_product(layer: PairProduct, place: Place, queries: Any, keys: Any) -> Any:
    return tf.matmul(*place.narrow(queries, keys), transpose_b=True)[..., None]


def _pair_sum(layer: PairSum, place: Place, queries: Any, keys: Any) -> Any:
    return tf.add(*place.alike(queries[:, :, None], keys[:, None]))


def _mix(layer: Mix, place: Place, scores: Any, values: Any) -> Any:
    shares = tf.nn.softmax(place.wide(scores[..., 0]))
    return tf.matmul(tf.cast(shares, values.dtype), values)


SEQUENCE_LOWERINGS: dict[type[Layer], Lowering] = {
    LayerNorm: _layer_norm,
    GELU: _gelu,
    Attention: _attention,
    Tokens: _tokens,
    Embedding: lambda layer, place, tokens: tf.gather(place.arrays["weight"], tokens),
    ClassToken: _class_token,
    PositionEmbedding: _position_embedding,
    SelectPosition: lambda layer, place, x: x[:, layer.position],
    Tanh: lambda layer, place, x: tf.tanh(x),
    LSTM: _lstm,
    PairSum: _pair_sum,
    PairProduct: _pair_product,
    Mix: _mix,
}
"""Joined to `LOWERINGS`."""
