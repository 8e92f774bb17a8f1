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
from cubemesh.networks.sequence_layers import (
    GELU,
    Attention,
    ClassToken,
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


def _class_token(layer: ClassToken, place: Place, x: jax.Array) -> jax.Array:
    token = place.arrays["token"].astype(x.dtype)
    return jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, token.size)), x], axis=1)


def _position_embedding(layer: PositionEmbedding, place: Place, x: jax.Array) -> jax.Array:
    return x + place.arrays["weight"].astype(x.dtype)


SEQUENCE_LOWERINGS: dict[type[Layer], Callable[..., Any]] = {
    LayerNorm: _layer_norm,
    GELU: lambda layer, place, x: jax.nn.gelu(x, approximate=layer.form == "tanh"),
    Attention: _attention,
    Tokens: _tokens,
    ClassToken: _class_token,
    PositionEmbedding: _position_embedding,
    SelectPosition: lambda layer, place, x: x[:, layer.position],
}
"""Joined to `LOWERINGS`."""
