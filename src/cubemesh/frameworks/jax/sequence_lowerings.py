"""Which operations of JAX compute a layer of a network of sequences? One line a layer type.

As in `lowerings.py`, which joins this table to its own. Sequences are (batch, length, features) in
every layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from cubemesh.frameworks.jax.place import Place
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


def _layer_norm(layer: LayerNorm, place: Place, x: jax.Array) -> jax.Array:
    """(x − mean) / √(variance + ε) · weight + bias, in the arrays' type."""
    wide = x.astype(place.numerics.arrays)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = lax.square(centred).mean(-1, keepdims=True)
    y = centred * lax.rsqrt(variance + layer.epsilon) * place.arrays["weight"]
    return (y + place.arrays["bias"]).astype(x.dtype)


def _attention(layer: Attention, place: Place, x: jax.Array) -> jax.Array:
    """Written out: `jax.nn.dot_product_attention` takes the softmax in float32 even in float64."""
    batch, length, width = x.shape
    (x,) = place.narrow(x)
    size = width // (3 * layer.heads)
    packed = x.reshape(batch, length, 3, layer.heads, size)
    q, k, v = (packed[:, :, i] for i in range(3))
    precision = place.numerics.precision
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision=precision) / math.sqrt(size)
    scores = scores.astype(place.numerics.arrays)
    if layer.causal:
        seen = jnp.tril(jnp.ones((length, length), bool))
        scores = jnp.where(seen, scores, -jnp.inf)
    shares = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    y = jnp.einsum("bhqk,bkhd->bqhd", shares, v, precision=precision)
    return y.reshape(batch, length, width // 3)


def _tokens(layer: Tokens, place: Place, x: jax.Array) -> jax.Array:
    if place.layout == "nchw":
        x = x.transpose(0, 2, 3, 1)
    return x.reshape(len(x), -1, x.shape[-1])


def _embedding(layer: Embedding, place: Place, tokens: jax.Array) -> jax.Array:
    return jnp.take(place.arrays["weight"], tokens, axis=0, mode="clip")


def _class_token(layer: ClassToken, place: Place, x: jax.Array) -> jax.Array:
    token = place.arrays["token"].astype(x.dtype)
    return jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, token.size)), x], axis=1)


def _position_embedding(layer: PositionEmbedding, place: Place, x: jax.Array) -> jax.Array:
    return x + place.arrays["weight"].astype(x.dtype)


def _lstm(layer: LSTM, place: Place, x: jax.Array, begin: jax.Array | None = None) -> jax.Array:
    """The inputs' product at once, then a step a position; the cell in the arrays' type."""
    own, wide = place.arrays, place.numerics.arrays
    x, weight, recurrent = place.narrow(x, own["weight"], own["hidden_weight"])
    bias = own["bias"] + own["hidden_bias"]
    precision = place.numerics.precision
    fed = jnp.einsum("btf,gf->tbg", x, weight, precision=precision).astype(wide) + bias
    first = jnp.zeros((len(x), layer.hidden), x.dtype) if begin is None else begin.astype(x.dtype)

    def step(carry: Any, now: jax.Array) -> Any:
        h, cell = carry
        back = jnp.einsum("bh,gh->bg", h, recurrent, precision=precision)
        i, f, g, o = jnp.split(now + back.astype(wide), 4, axis=1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = (jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(x.dtype)
        return (h, cell), h

    _, outputs = lax.scan(step, (first, jnp.zeros(first.shape, wide)), fed)
    return outputs.swapaxes(0, 1)


def _pair_product(
    layer: PairProduct, place: Place, queries: jax.Array, keys: jax.Array
) -> jax.Array:
    queries, keys = place.narrow(queries, keys)
    precision = place.numerics.precision
    return jnp.einsum("bqf,bkf->bqk", queries, keys, precision=precision)[..., None]


def _mix(layer: Mix, place: Place, scores: jax.Array, values: jax.Array) -> jax.Array:
    wide = scores[..., 0].astype(place.numerics.arrays)
    shares = jax.nn.softmax(wide, axis=-1).astype(values.dtype)
    return jnp.einsum("bqk,bkf->bqf", shares, values, precision=place.numerics.precision)


SEQUENCE_LOWERINGS: dict[type[Layer], Callable[..., Any]] = {
    LayerNorm: _layer_norm,
    GELU: lambda layer, place, x: jax.nn.gelu(x, approximate=layer.form == "tanh"),
    Attention: _attention,
    Tokens: _tokens,
    Embedding: _embedding,
    ClassToken: _class_token,
    PositionEmbedding: _position_embedding,
    SelectPosition: lambda layer, place, x: x[:, layer.position],
    Tanh: lambda layer, place, x: jnp.tanh(x),
    LSTM: _lstm,
    PairSum: lambda layer, place, q, k: q[:, :, None] + k[:, None],
    PairProduct: _pair_product,
    Mix: _mix,
}
"""Joined to `LOWERINGS`."""
