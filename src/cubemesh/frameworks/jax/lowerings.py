"""The lowerings of layers to JAX operations, one line a layer type.

A lowering is a function of the layer's settings, its context (`JaxContext`) and its inputs. The
batch is the first axis; the channels of images are the second (`nchw`) or the last (`nhwc`). It
runs once, while JAX traces the network; XLA fuses the operations between two products. Sequences
are (batch, length, features) in every layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cubemesh.frameworks.contract.validation import check_values_per_channel
from cubemesh.frameworks.jax.runtime import JaxNumerics
from cubemesh.frameworks.pooling import far_padding, window_cells
from cubemesh.networks import layers
from cubemesh.networks.layers.sequences import rotation_tables

DIMENSIONS = {"nchw": ("NCHW", "OIHW", "NCHW"), "nhwc": ("NHWC", "HWIO", "NHWC")}
"""Layout of a program → order of the axes of a convolution's input, weight and result."""


@dataclass(frozen=True, kw_only=True)
class JaxContext:
    """Arrays, layout and numerics of one layer."""

    arrays: Mapping[str, jax.Array]
    """Parameters and state, by their role in the layer."""
    shape: layers.Shape
    """Of one sample of the result, channels first."""
    layout: str
    numerics: JaxNumerics
    training: bool
    key: Callable[[], jax.Array]
    """Returns a random key for this layer."""
    norm_parts: int = 1
    """Equal parts of the minibatch, one a device, each normalized by its own statistics."""
    new_state: dict[str, jax.Array] = field(default_factory=dict)
    """Filled by the lowering with updated state, by role."""

    @property
    def positions(self) -> tuple[int, int]:
        """The axes of an image's height and width."""
        return (1, 2) if self.layout == "nhwc" else (2, 3)

    def sizes(self, x: jax.Array) -> tuple[int, ...]:
        """Height and width of an image."""
        return tuple(x.shape[axis] for axis in self.positions)

    def channels(self, x: jax.Array) -> int:
        """The axis of the channels, or of the features without an image."""
        return 3 if self.layout == "nhwc" and x.ndim == 4 else 1

    def per_channel(self, array: jax.Array, x: jax.Array) -> jax.Array:
        """One value per channel, reshaped to broadcast with `x`."""
        shape = [1] * x.ndim
        shape[self.channels(x)] = array.size
        return array.reshape(shape)

    def to_product_type(self, *arrays: jax.Array) -> list[jax.Array]:
        """The arrays, cast to the type of products."""
        return [a.astype(self.numerics.products) for a in arrays]


Lowering = Callable[..., jax.Array]
"""(layer, context, input, …) → result."""


def _convolution(layer: layers.Convolution, context: JaxContext, x: jax.Array) -> jax.Array:
    x, weight = context.to_product_type(x, context.arrays["weight"])
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=layer.stride,
        padding=[(p, p) for p in layer.padding],
        rhs_dilation=layer.dilation,
        dimension_numbers=DIMENSIONS[context.layout],
        feature_group_count=layer.groups,
        precision=context.numerics.precision,
    )
    if not layer.bias:
        return y
    (bias,) = context.to_product_type(context.arrays["bias"])
    return y + context.per_channel(bias, y)


def _linear(layer: layers.Linear, context: JaxContext, x: jax.Array) -> jax.Array:
    x, weight = context.to_product_type(x, context.arrays["weight"])
    last = (((x.ndim - 1,), (1,)), ((), ()))  # contract the features; the weight is (out, in)
    y = lax.dot_general(x, weight, last, precision=context.numerics.precision)
    return y + context.to_product_type(context.arrays["bias"])[0] if layer.bias else y


def _batch_norm(layer: layers.BatchNorm, context: JaxContext, x: jax.Array) -> jax.Array:
    """(x − mean) / √(variance + ε) · weight + bias. The variance is the mean of (x − mean)²: the
    difference E[x²] − E[x]² would save one read of x, but the error of its float32 gradients was up
    to nine times as large.

    With several parts each is normalized separately, on its own device; the running statistics take
    the mean over the parts, so that they stay equal on all devices."""
    own, full = context.arrays, x.astype(context.numerics.arrays)
    if not context.training:
        centred = full - context.per_channel(own["running_mean"], x)
        return _scaled(layer, context, centred, own["running_variance"]).astype(x.dtype)

    def normalized(part: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        axes = [axis for axis in range(part.ndim) if axis != context.channels(part)]
        mean = part.mean(axes)
        centred = part - context.per_channel(mean, part)
        variance = lax.square(centred).mean(axes)
        return _scaled(layer, context, centred, variance), mean, variance

    parts = context.norm_parts
    n = x.size // own["weight"].size // parts
    check_values_per_channel(n)
    if parts == 1:
        y, mean, variance = normalized(full)
    else:
        y, means, variances = jax.vmap(normalized)(full.reshape(parts, -1, *x.shape[1:]))
        y, mean, variance = y.reshape(x.shape), means.mean(0), variances.mean(0)
    keep, new = 1 - layer.momentum, layer.momentum
    context.new_state["running_mean"] = keep * own["running_mean"] + new * mean
    unbiased = n / (n - 1) * variance
    context.new_state["running_variance"] = keep * own["running_variance"] + new * unbiased
    return y.astype(x.dtype)


def _scaled(
    layer: layers.BatchNorm, context: JaxContext, centred: jax.Array, variance: jax.Array
) -> jax.Array:
    own = context.arrays
    scale = own["weight"] * lax.rsqrt(variance + layer.epsilon)
    return centred * context.per_channel(scale, centred) + context.per_channel(own["bias"], centred)


def _response_norm(layer: layers.LocalResponseNorm, context: JaxContext, x: jax.Array) -> jax.Array:
    """The window is zero-padded; one of even size has one more element before its centre."""
    full = x.astype(context.numerics.arrays)
    axes = context.positions if layer.region == "within" else (context.channels(x),)
    before, after = layer.size // 2, (layer.size - 1) // 2
    window = [layer.size if axis in axes else 1 for axis in range(x.ndim)]
    padding = [(before, after) if axis in axes else (0, 0) for axis in range(x.ndim)]
    sums = lax.reduce_window(lax.square(full), 0.0, lax.add, window, [1] * x.ndim, padding)
    means = sums / layer.size ** len(axes)
    return (full / (layer.bias + layer.alpha * means) ** layer.beta).astype(x.dtype)


def _dropout(layer: layers.Dropout, context: JaxContext, x: jax.Array) -> jax.Array:
    if not context.training or layer.rate == 0:
        return x
    if layer.rate == 1:
        return jnp.zeros_like(x)
    shape = (len(x), *[1] * (x.ndim - 1)) if layer.per_sample else x.shape
    mask = jax.random.bernoulli(context.key(), np.float32(1 - layer.rate), shape)
    return jnp.where(mask, x / (1 - layer.rate), jnp.zeros_like(x))


def _flatten(layer: layers.Flatten, context: JaxContext, x: jax.Array) -> jax.Array:
    if context.layout == "nhwc" and x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    return x.reshape(len(x), -1)


def _windows(
    layer: layers.MaxPool | layers.AveragePool, context: JaxContext, x: jax.Array
) -> tuple[Any, Any, Any]:
    """Window, strides and padding on all axes."""
    window, strides, padding = [1] * x.ndim, [1] * x.ndim, [(0, 0)] * x.ndim
    around = far_padding(layer, context.shape, context.sizes(x))
    for i, axis in enumerate(context.positions):
        window[axis], strides[axis], padding[axis] = layer.kernel[i], layer.stride[i], around[i]
    return window, strides, padding


def _max_pool(layer: layers.MaxPool, context: JaxContext, x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, *_windows(layer, context, x))


def _average_pool(layer: layers.AveragePool, context: JaxContext, x: jax.Array) -> jax.Array:
    """Each sum is divided by the cells of its window on the image and `layer.padding`."""
    full = x.astype(context.numerics.arrays)
    sums = lax.reduce_window(full, 0.0, lax.add, *_windows(layer, context, x))
    cells = window_cells(layer, context.shape, context.sizes(x))
    other_axes = [axis for axis in range(x.ndim) if axis not in context.positions]
    return (sums / np.expand_dims(cells, other_axes).astype(full.dtype)).astype(x.dtype)


def _global_average_pool(
    layer: layers.GlobalAveragePool, context: JaxContext, x: jax.Array
) -> jax.Array:
    axes = context.positions if x.ndim == 4 else (1,)
    return x.astype(context.numerics.arrays).mean(axes).astype(x.dtype)


def _layer_norm(layer: layers.LayerNorm, context: JaxContext, x: jax.Array) -> jax.Array:
    """(x − mean) / √(variance + ε) · weight + bias, in the arrays' type."""
    full = x.astype(context.numerics.arrays)
    centred = full - full.mean(-1, keepdims=True)
    variance = lax.square(centred).mean(-1, keepdims=True)
    y = centred * lax.rsqrt(variance + layer.epsilon) * context.arrays["weight"]
    return (y + context.arrays["bias"]).astype(x.dtype)


def _rms_norm(layer: layers.RMSNorm, context: JaxContext, x: jax.Array) -> jax.Array:
    """x / √(mean of x² + ε) · weight, in the arrays' type."""
    full = x.astype(context.numerics.arrays)
    scale = lax.rsqrt(lax.square(full).mean(-1, keepdims=True) + layer.epsilon)
    return (full * scale * context.arrays["weight"]).astype(x.dtype)


def _attention(layer: layers.Attention, context: JaxContext, *inputs: jax.Array) -> jax.Array:
    """Written out: `jax.nn.dot_product_attention` has a float32 softmax even in float64."""
    x, *others = context.to_product_type(*inputs)
    batch, length, width = x.shape
    if others:
        keys = layer.key_value_heads or layer.heads
        q = x.reshape(batch, length, layer.heads, -1)
        k, v = (
            jnp.repeat(part.reshape(batch, length, keys, -1), layer.heads // keys, axis=2)
            for part in others
        )
    else:
        width //= 3
        packed = x.reshape(batch, length, 3, layer.heads, -1)
        q, k, v = (packed[:, :, i] for i in range(3))
    precision, size = context.numerics.precision, width // layer.heads
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision=precision) / math.sqrt(size)
    scores = scores.astype(context.numerics.arrays)
    if layer.causal:
        seen = jnp.tril(jnp.ones((length, length), bool))
        scores = jnp.where(seen, scores, -jnp.inf)
    shares = jax.nn.softmax(scores, axis=-1)
    if layer.dropout:
        shares = _dropout(layers.Dropout(rate=layer.dropout), context, shares)
    y = jnp.einsum("bhqk,bkhd->bqhd", shares.astype(x.dtype), v, precision=precision)
    return y.reshape(batch, length, width)


def _rotary_embedding(
    layer: layers.RotaryEmbedding, context: JaxContext, x: jax.Array
) -> jax.Array:
    tables = rotation_tables(x.shape[1], x.shape[2] // layer.heads, layer.base)
    cosines, sines = (table.astype(x.dtype) for table in tables)
    one, other = jnp.split(x.reshape(*x.shape[:2], layer.heads, -1), 2, axis=-1)
    turned = [one * cosines - other * sines, other * cosines + one * sines]
    return jnp.concatenate(turned, -1).reshape(x.shape)


def _experts(
    layer: layers.Experts, context: JaxContext, x: jax.Array, scores: jax.Array
) -> jax.Array:
    """Rows sorted by expert; `ragged_dot` multiplies those of each by its matrix."""
    (given,), width = context.to_product_type(x), x.shape[-1]
    chosen_scores, chosen = lax.top_k(scores.reshape(-1, layer.experts), layer.active)
    shares = jax.nn.softmax(chosen_scores.astype(context.numerics.arrays), -1).astype(given.dtype)
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    counts = jnp.bincount(flat, length=layer.experts).astype(jnp.int32)
    rows = given.reshape(-1, width)[order // layer.active]

    def product(rows: jax.Array, role: str) -> jax.Array:
        (weight,) = context.to_product_type(context.arrays[role])
        return lax.ragged_dot(
            rows, weight.transpose(0, 2, 1), counts, precision=context.numerics.precision
        )

    hidden = jax.nn.silu(product(rows, "gate_weight")) * product(rows, "up_weight")
    results = product(hidden, "down_weight")[jnp.argsort(order)]
    of_position = results.reshape(-1, layer.active, width) * shares[..., None]
    return of_position.sum(1).reshape(x.shape)


def _load_balance(layer: layers.LoadBalance, context: JaxContext, *scores: jax.Array) -> jax.Array:
    total = jnp.zeros(())
    for of_router in scores:
        experts = of_router.shape[-1]
        full = of_router.astype(context.numerics.arrays)
        _, chosen = lax.top_k(lax.stop_gradient(full), layer.active)
        counts = jnp.bincount(chosen.reshape(-1), length=experts)
        shares = counts.astype(full.dtype) / chosen.size
        probabilities = jax.nn.softmax(full, -1)
        total = total + experts * (probabilities * shares).sum(-1, keepdims=True)
    return total


def _tokens(layer: layers.Tokens, context: JaxContext, x: jax.Array) -> jax.Array:
    if context.layout == "nchw":
        x = x.transpose(0, 2, 3, 1)
    return x.reshape(len(x), -1, x.shape[-1])


def _to_image(layer: layers.ToImage, context: JaxContext, x: jax.Array) -> jax.Array:
    x = x.reshape(len(x), *layer.size, x.shape[-1])
    return x.transpose(0, 3, 1, 2) if context.layout == "nchw" else x


def _select_channels(layer: layers.SelectChannels, context: JaxContext, x: jax.Array) -> jax.Array:
    axis = context.channels(x) if x.ndim == 4 else x.ndim - 1
    return jnp.take(x, np.array(layer.channels), axis=axis)


def _pixel_shuffle(layer: layers.PixelShuffle, context: JaxContext, x: jax.Array) -> jax.Array:
    channels, height, width = context.shape
    square, low = (layer.factor, layer.factor), (height // layer.factor, width // layer.factor)
    if context.layout == "nhwc":
        x = x.reshape(len(x), *low, channels, *square).transpose(0, 1, 4, 2, 5, 3)
        return x.reshape(len(x), height, width, channels)
    x = x.reshape(len(x), channels, *square, *low).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(len(x), channels, height, width)


def _multiply(layer: layers.Multiply, context: JaxContext, x: jax.Array, y: jax.Array) -> jax.Array:
    return x * (y if y.ndim == x.ndim else jnp.expand_dims(y, context.positions))


def _scale(layer: layers.Scale, context: JaxContext, x: jax.Array) -> jax.Array:
    weight = context.arrays["weight"].astype(x.dtype)
    return x * (context.per_channel(weight, x) if x.ndim == 4 else weight)


def _activation(layer: layers.Activation, context: JaxContext, x: jax.Array) -> jax.Array:
    match layer.function:
        case "silu":
            return jax.nn.silu(x)
        case "quick-gelu":
            return x * jax.nn.sigmoid(1.702 * x)
        case "mish":
            return x * jnp.tanh(jax.nn.softplus(x))
        case "hard-sigmoid":
            return jax.nn.relu6(x + 3) / 6
        case "hard-swish":
            return x * (jax.nn.relu6(x + 3) / 6)
        case "relu6":
            return jax.nn.relu6(x)
        case "leaky-relu":
            return jax.nn.leaky_relu(x, layer.slope)
        case "squared-relu":
            return lax.square(jax.nn.relu(x))


def _embedding(layer: layers.Embedding, context: JaxContext, tokens: jax.Array) -> jax.Array:
    return jnp.take(context.arrays["weight"], tokens, axis=0, mode="clip")


def _embedding_bags(
    layer: layers.EmbeddingBags, context: JaxContext, categories: jax.Array
) -> jax.Array:
    own = categories.reshape(len(categories), len(layer.rows), layer.indices)
    rows = [
        jnp.take(context.arrays[f"table{n + 1}"], own[:, n], axis=0, mode="clip").sum(1)
        for n in range(len(layer.rows))
    ]
    return jnp.stack(rows, axis=1)


def _dot_interaction(
    layer: layers.DotInteraction, context: JaxContext, x: jax.Array, vectors: jax.Array
) -> jax.Array:
    both = jnp.concatenate([x[:, None], vectors], axis=1, dtype=x.dtype)
    (given,) = context.to_product_type(both)
    products = jnp.einsum("bif,bjf->bij", given, given, precision=context.numerics.precision)
    rows, columns = np.tril_indices(both.shape[1], -1)
    return jnp.concatenate([x, products[:, rows, columns].astype(x.dtype)], axis=1)


def _class_token(layer: layers.ClassToken, context: JaxContext, x: jax.Array) -> jax.Array:
    token = context.arrays["token"].astype(x.dtype)
    return jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, token.size)), x], axis=1)


def _position_embedding(
    layer: layers.PositionEmbedding, context: JaxContext, x: jax.Array
) -> jax.Array:
    rows = slice(layer.first, layer.first + (1 if layer.shared else x.shape[1]))
    return x + context.arrays["weight"][rows].astype(x.dtype)


def _recurrence(
    layer: layers.Recurrence, context: JaxContext, x: jax.Array, begin: jax.Array | None = None
) -> jax.Array:
    """One direction, or both: the other reads the sequence from its end."""
    forward = _one_way(layer, context, x, begin)
    if layer.directions == "forward":
        return forward
    backward = _one_way(layer, context, x[:, ::-1], None, "reverse_")[:, ::-1]
    if layer.directions == "sum":
        return forward + backward
    return jnp.concatenate([forward, backward], axis=-1)


def _one_way(
    layer: layers.Recurrence,
    context: JaxContext,
    x: jax.Array,
    begin: jax.Array | None,
    prefix: str = "",
) -> jax.Array:
    """The product of all inputs at once, then a step a position; the cell in the arrays' type."""
    weight, hidden_weight, bias, hidden_bias = (
        context.arrays[prefix + role] for role in ("weight", "hidden_weight", "bias", "hidden_bias")
    )
    full, precision = context.numerics.arrays, context.numerics.precision
    x, weight, hidden_weight = context.to_product_type(x, weight, hidden_weight)
    if not isinstance(layer, layers.GRU):  # which multiplies the hidden one
        bias, hidden_bias = bias + hidden_bias, jnp.zeros((), full)
    fed = jnp.einsum("btf,gf->tbg", x, weight, precision=precision).astype(full) + bias
    first = jnp.zeros((len(x), layer.hidden), x.dtype) if begin is None else begin.astype(x.dtype)

    def step(carry: Any, now: jax.Array) -> Any:
        h, cell = carry
        back = jnp.einsum("bh,gh->bg", h, hidden_weight, precision=precision)
        h, cell = _cell(layer, now, back.astype(full) + hidden_bias, cell)
        return (h.astype(x.dtype), cell), h.astype(x.dtype)

    cell = first.astype(full)
    if isinstance(layer, layers.LSTM):
        cell = jnp.zeros_like(cell)
    _, outputs = lax.scan(step, (first, cell), fed)
    return outputs.swapaxes(0, 1)


def _cell(
    layer: layers.Recurrence, fed: jax.Array, back: jax.Array, cell: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(h, cell) of a step, from the products of its input and of the h before; a layer without a
    cell has h in its place."""
    if isinstance(layer, layers.LSTM):
        return _lstm_cell(fed + back, cell)
    if isinstance(layer, layers.GRU):
        (r, z, n), (r_back, z_back, n_back) = jnp.split(fed, 3, axis=1), jnp.split(back, 3, axis=1)
        n = jnp.tanh(n + jax.nn.sigmoid(r + r_back) * n_back)
        h = n + jax.nn.sigmoid(z + z_back) * (cell - n)
    else:
        relu = isinstance(layer, layers.RNN) and layer.function == "relu"
        h = (jax.nn.relu if relu else jnp.tanh)(fed + back)
    return h, h


def _lstm_cell(gates: jax.Array, cell: jax.Array) -> tuple[jax.Array, jax.Array]:
    i, f, g, o = jnp.split(gates, 4, axis=1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _input_feeding_decoder(
    layer: layers.InputFeedingDecoder,
    context: JaxContext,
    words: jax.Array,
    begin: jax.Array,
    memory: jax.Array,
) -> jax.Array:
    """A step a position; cells, softmax and tanh in the arrays' type."""
    full, precision = context.numerics.arrays, context.numerics.precision
    words, begin, memory = context.to_product_type(words, begin, memory)
    own = context.arrays
    weights = dict(zip(own, context.to_product_type(*own.values()), strict=True))

    def product(x: jax.Array, role: str) -> jax.Array:
        found = jnp.einsum("bf,gf->bg", x, weights[role], precision=precision)
        return found.astype(full)

    def step(carry: Any, word: jax.Array) -> Any:
        states, fed = list(carry[0]), carry[1]
        x = jnp.concatenate([word, fed], axis=1)
        for i, prefix in enumerate(layer.prefixes):
            h, cell = states[i]
            bias = own[prefix + "bias"] + own[prefix + "hidden_bias"]
            now = product(x, prefix + "weight") + bias
            x, cell = _lstm_cell(now + product(h, prefix + "hidden_weight"), cell)
            x = x.astype(words.dtype)
            states[i] = (x, cell)
        query = product(x, "attention_weight").astype(words.dtype)
        scores = jnp.einsum("bkf,bf->bk", memory, query, precision=precision).astype(full)
        shares = jax.nn.softmax(scores, axis=-1).astype(words.dtype)
        mean = jnp.einsum("bk,bkf->bf", shares, memory, precision=precision)
        read = product(jnp.concatenate([mean, x], axis=1), "readout_weight")
        fed = jnp.tanh(read).astype(words.dtype)
        return (tuple(states), fed), fed

    state = (begin, jnp.zeros(begin.shape, full))
    first = ((state,) * layer.depth, jnp.zeros_like(begin))
    _, outputs = lax.scan(step, first, words.swapaxes(0, 1))
    return outputs.swapaxes(0, 1)


def _columns(layer: layers.Columns, context: JaxContext, x: jax.Array) -> jax.Array:
    axes = (0, 2, 3, 1) if context.layout == "nhwc" else (0, 3, 1, 2)
    x = x.transpose(axes)
    return x.reshape(*x.shape[:2], -1)


def _pair_product(
    layer: layers.PairProduct, context: JaxContext, queries: jax.Array, keys: jax.Array
) -> jax.Array:
    queries, keys = context.to_product_type(queries, keys)
    precision = context.numerics.precision
    return jnp.einsum("bqf,bkf->bqk", queries, keys, precision=precision)[..., None]


def _mix(layer: layers.Mix, context: JaxContext, scores: jax.Array, values: jax.Array) -> jax.Array:
    full = scores[..., 0].astype(context.numerics.arrays)
    shares = jax.nn.softmax(full, axis=-1).astype(values.dtype)
    return jnp.einsum("bqk,bkf->bqf", shares, values, precision=context.numerics.precision)


LOWERINGS: dict[type[layers.Layer], Lowering] = {
    layers.Convolution: _convolution,
    layers.Linear: _linear,
    layers.BatchNorm: _batch_norm,
    layers.LocalResponseNorm: _response_norm,
    layers.ReLU: lambda layer, context, x: jax.nn.relu(x),
    layers.Add: lambda layer, context, x, y: x + y,
    layers.Concat: lambda layer, context, *values: jnp.concatenate(
        values, context.channels(values[0])
    ),
    layers.Dropout: _dropout,
    layers.Flatten: _flatten,
    layers.MaxPool: _max_pool,
    layers.AveragePool: _average_pool,
    layers.GlobalAveragePool: _global_average_pool,
    layers.LayerNorm: _layer_norm,
    layers.GELU: lambda layer, context, x: jax.nn.gelu(x, approximate=layer.form == "tanh"),
    layers.Attention: _attention,
    layers.Tokens: _tokens,
    layers.Embedding: _embedding,
    layers.ClassToken: _class_token,
    layers.PositionEmbedding: _position_embedding,
    layers.SelectPosition: lambda layer, context, x: x[:, layer.position],
    layers.Tanh: lambda layer, context, x: jnp.tanh(x),
    layers.LSTM: _recurrence,
    layers.GRU: _recurrence,
    layers.RNN: _recurrence,
    layers.InputFeedingDecoder: _input_feeding_decoder,
    layers.Columns: _columns,
    layers.PairSum: lambda layer, context, q, k: q[:, :, None] + k[:, None],
    layers.PairProduct: _pair_product,
    layers.Mix: _mix,
    layers.RMSNorm: _rms_norm,
    layers.RotaryEmbedding: _rotary_embedding,
    layers.Experts: _experts,
    layers.LoadBalance: _load_balance,
    layers.EmbeddingBags: _embedding_bags,
    layers.DotInteraction: _dot_interaction,
    layers.BinaryScores: lambda layer, context, x: jnp.pad(x, ((0, 0), (1, 0))),
    layers.ToImage: _to_image,
    layers.Transpose: lambda layer, context, x: x.swapaxes(1, 2),
    layers.SelectChannels: _select_channels,
    layers.PixelShuffle: _pixel_shuffle,
    layers.Sigmoid: lambda layer, context, x: jax.nn.sigmoid(x),
    layers.Activation: _activation,
    layers.Multiply: _multiply,
    layers.Scale: _scale,
}
