"""The lowerings of sequence layers to JAX operations, one line a layer type.

`lowerings.py` joins this table to its own. Sequences are (batch, length, features) in
every layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from cubemesh.frameworks.jax.context import JaxContext
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


def _layer_norm(layer: LayerNorm, context: JaxContext, x: jax.Array) -> jax.Array:
    """(x − mean) / √(variance + ε) · weight + bias, in the arrays' type."""
    full = x.astype(context.numerics.arrays)
    centred = full - full.mean(-1, keepdims=True)
    variance = lax.square(centred).mean(-1, keepdims=True)
    y = centred * lax.rsqrt(variance + layer.epsilon) * context.arrays["weight"]
    return (y + context.arrays["bias"]).astype(x.dtype)


def _attention(layer: Attention, context: JaxContext, x: jax.Array) -> jax.Array:
    """Written out: `jax.nn.dot_product_attention` has a float32 softmax even in float64."""
    batch, length, width = x.shape
    (x,) = context.to_product_type(x)
    size = width // (3 * layer.heads)
    packed = x.reshape(batch, length, 3, layer.heads, size)
    q, k, v = (packed[:, :, i] for i in range(3))
    precision = context.numerics.precision
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision=precision) / math.sqrt(size)
    scores = scores.astype(context.numerics.arrays)
    if layer.causal:
        seen = jnp.tril(jnp.ones((length, length), bool))
        scores = jnp.where(seen, scores, -jnp.inf)
    shares = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    y = jnp.einsum("bhqk,bkhd->bqhd", shares, v, precision=precision)
    return y.reshape(batch, length, width // 3)


def _tokens(layer: Tokens, context: JaxContext, x: jax.Array) -> jax.Array:
    if context.layout == "nchw":
        x = x.transpose(0, 2, 3, 1)
    return x.reshape(len(x), -1, x.shape[-1])


def _embedding(layer: Embedding, context: JaxContext, tokens: jax.Array) -> jax.Array:
    return jnp.take(context.arrays["weight"], tokens, axis=0, mode="clip")


def _class_token(layer: ClassToken, context: JaxContext, x: jax.Array) -> jax.Array:
    token = context.arrays["token"].astype(x.dtype)
    return jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, token.size)), x], axis=1)


def _position_embedding(layer: PositionEmbedding, context: JaxContext, x: jax.Array) -> jax.Array:
    return x + context.arrays["weight"].astype(x.dtype)


def _lstm(
    layer: LSTM, context: JaxContext, x: jax.Array, begin: jax.Array | None = None
) -> jax.Array:
    """The product of all inputs at once, then a step a position; the cell in the arrays' type."""
    own, full = context.arrays, context.numerics.arrays
    x, weight, recurrent = context.to_product_type(x, own["weight"], own["hidden_weight"])
    bias = own["bias"] + own["hidden_bias"]
    precision = context.numerics.precision
    fed = jnp.einsum("btf,gf->tbg", x, weight, precision=precision).astype(full) + bias
    first = jnp.zeros((len(x), layer.hidden), x.dtype) if begin is None else begin.astype(x.dtype)

    def step(carry: Any, now: jax.Array) -> Any:
        h, cell = carry
        back = jnp.einsum("bh,gh->bg", h, recurrent, precision=precision)
        i, f, g, o = jnp.split(now + back.astype(full), 4, axis=1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = (jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(x.dtype)
        return (h, cell), h

    _, outputs = lax.scan(step, (first, jnp.zeros(first.shape, full)), fed)
    return outputs.swapaxes(0, 1)


def _pair_product(
    layer: PairProduct, context: JaxContext, queries: jax.Array, keys: jax.Array
) -> jax.Array:
    queries, keys = context.to_product_type(queries, keys)
    precision = context.numerics.precision
    return jnp.einsum("bqf,bkf->bqk", queries, keys, precision=precision)[..., None]


def _mix(layer: Mix, context: JaxContext, scores: jax.Array, values: jax.Array) -> jax.Array:
    full = scores[..., 0].astype(context.numerics.arrays)
    shares = jax.nn.softmax(full, axis=-1).astype(values.dtype)
    return jnp.einsum("bqk,bkf->bqf", shares, values, precision=context.numerics.precision)


SEQUENCE_LOWERINGS: dict[type[Layer], Callable[..., Any]] = {
    LayerNorm: _layer_norm,
    GELU: lambda layer, context, x: jax.nn.gelu(x, approximate=layer.form == "tanh"),
    Attention: _attention,
    Tokens: _tokens,
    Embedding: _embedding,
    ClassToken: _class_token,
    PositionEmbedding: _position_embedding,
    SelectPosition: lambda layer, context, x: x[:, layer.position],
    Tanh: lambda layer, context, x: jnp.tanh(x),
    LSTM: _lstm,
    PairSum: lambda layer, context, q, k: q[:, :, None] + k[:, None],
    PairProduct: _pair_product,
    Mix: _mix,
}
"""Joined to `LOWERINGS`."""
