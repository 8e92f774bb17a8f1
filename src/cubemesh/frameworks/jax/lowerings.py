"""Which operations of JAX compute a layer? The table of lowerings, one line a layer type.

A lowering is a function of the layer's settings, of where it stands (`Place`) and of its inputs.
Values hold the batch on their first axis; images have their channels on the second (`nchw`) or on
the last (`nhwc`). It runs once, while JAX traces the network; then only the operations are left,
and XLA fuses what lies between two products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from cubemesh.frameworks.api.program import Unsupported
from cubemesh.frameworks.jax.place import Place
from cubemesh.frameworks.jax.sequence_lowerings import SEQUENCE_LOWERINGS
from cubemesh.networks.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool,
    ReLU,
)

DIMENSIONS = {"nchw": ("NCHW", "OIHW", "NCHW"), "nhwc": ("NHWC", "HWIO", "NHWC")}
"""Layout of a program → axes of a convolution's input, weight and result, in the order they lie."""


Lowering = Callable[..., jax.Array]
"""(layer, place, input, …) → result."""


def _convolution(layer: Convolution, place: Place, x: jax.Array) -> jax.Array:
    x, weight = place.narrow(x, place.arrays["weight"])
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=layer.stride,
        padding=[(p, p) for p in layer.padding],
        dimension_numbers=DIMENSIONS[place.layout],
        feature_group_count=layer.groups,
        precision=place.numerics.precision,
    )
    if not layer.bias:
        return y
    (bias,) = place.narrow(place.arrays["bias"])
    return y + place.per_channel(bias, y)


def _linear(layer: Linear, place: Place, x: jax.Array) -> jax.Array:
    x, weight = place.narrow(x, place.arrays["weight"])
    last = (((x.ndim - 1,), (1,)), ((), ()))  # contract the features; the weight lies (out, in)
    y = lax.dot_general(x, weight, last, precision=place.numerics.precision)
    return y + place.narrow(place.arrays["bias"])[0] if layer.bias else y


def _batch_norm(layer: BatchNorm, place: Place, x: jax.Array) -> jax.Array:
    """(x − mean) / √(variance + ε) · weight + bias. The variance is the mean of (x − mean)²: the
    difference E[x²] − E[x]² would spare one reading of x, and in float32 its gradients came out
    up to nine times as far from float64's.

    Of several parts each is normalised by itself, on its own device; the running statistics move by
    the mean of theirs, so that they stay alike everywhere."""
    own, wide = place.arrays, x.astype(place.numerics.arrays)
    if not place.training:
        centred = wide - place.per_channel(own["running_mean"], x)
        return _scaled(layer, place, centred, own["running_variance"]).astype(x.dtype)

    def normalised(part: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        axes = [axis for axis in range(part.ndim) if axis != place.channels(part)]
        mean = part.mean(axes)
        centred = part - place.per_channel(mean, part)
        variance = lax.square(centred).mean(axes)
        return _scaled(layer, place, centred, variance), mean, variance

    parts = place.norm_parts
    n = x.size // own["weight"].size // parts
    if n < 2:
        raise Unsupported(
            "batch normalisation in training needs two values or more of a channel, and here a "
            "batch of 1 has an image of a single position. Set a batch of 2 or a larger image_size."
        )
    if parts == 1:
        y, mean, variance = normalised(wide)
    else:
        y, means, variances = jax.vmap(normalised)(wide.reshape(parts, -1, *x.shape[1:]))
        y, mean, variance = y.reshape(x.shape), means.mean(0), variances.mean(0)
    keep, new = 1 - layer.momentum, layer.momentum
    place.new_state["running_mean"] = keep * own["running_mean"] + new * mean
    unbiased = n / (n - 1) * variance
    place.new_state["running_variance"] = keep * own["running_variance"] + new * unbiased
    return y.astype(x.dtype)


def _scaled(layer: BatchNorm, place: Place, centred: jax.Array, variance: jax.Array) -> jax.Array:
    own = place.arrays
    scale = own["weight"] * lax.rsqrt(variance + layer.epsilon)
    return centred * place.per_channel(scale, centred) + place.per_channel(own["bias"], centred)


def _response_norm(layer: LocalResponseNorm, place: Place, x: jax.Array) -> jax.Array:
    """The window is zero-padded, and of an even size one longer before its centre than after."""
    wide = x.astype(place.numerics.arrays)
    axes = place.positions(x) if layer.region == "within" else (place.channels(x),)
    before, after = layer.size // 2, (layer.size - 1) // 2
    window = [layer.size if axis in axes else 1 for axis in range(x.ndim)]
    padding = [(before, after) if axis in axes else (0, 0) for axis in range(x.ndim)]
    sums = lax.reduce_window(lax.square(wide), 0.0, lax.add, window, [1] * x.ndim, padding)
    means = sums / layer.size ** len(axes)
    return (wide / (layer.bias + layer.alpha * means) ** layer.beta).astype(x.dtype)


def _dropout(layer: Dropout, place: Place, x: jax.Array) -> jax.Array:
    if not place.training or layer.rate == 0:
        return x
    if layer.rate == 1:
        return jnp.zeros_like(x)
    kept = jax.random.bernoulli(place.key(), np.float32(1 - layer.rate), x.shape)
    return jnp.where(kept, x / (1 - layer.rate), jnp.zeros_like(x))


def _flatten(layer: Flatten, place: Place, x: jax.Array) -> jax.Array:
    if place.layout == "nhwc" and x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    return x.reshape(len(x), -1)


def _windows(layer: MaxPool | AveragePool, place: Place, x: jax.Array) -> tuple[Any, Any, Any]:
    """Window, strides and padding on all axes. The padding at the far edge is as long as the last
    window needs, which the result's shape tells: beyond `layer.padding` in `ceil_mode`, and
    shorter where a rest of the image is left out."""
    window, strides = [1] * x.ndim, [1] * x.ndim
    padding = [(0, 0)] * x.ndim
    for i, axis in enumerate(place.positions(x)):
        window[axis], strides[axis] = layer.kernel[i], layer.stride[i]
        reach = (place.shape[1 + i] - 1) * layer.stride[i] + layer.kernel[i]
        padding[axis] = layer.padding[i], max(0, reach - layer.padding[i] - x.shape[axis])
    return window, strides, padding


def _max_pool(layer: MaxPool, place: Place, x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, *_windows(layer, place, x))


def _average_pool(layer: AveragePool, place: Place, x: jax.Array) -> jax.Array:
    """Each sum is divided by its window's cells on the image and its padding, as far as that was
    asked for."""
    wide = x.astype(place.numerics.arrays)
    sums = lax.reduce_window(wide, 0.0, lax.add, *_windows(layer, place, x))
    axes = place.positions(x)
    sizes = (x.shape[axis] for axis in axes)
    rows, columns = map(_cells, sizes, place.shape[1:], layer.kernel, layer.stride, layer.padding)
    cells = np.expand_dims(np.outer(rows, columns), [a for a in range(x.ndim) if a not in axes])
    return (sums / cells.astype(wide.dtype)).astype(x.dtype)


def _cells(size: int, windows: int, kernel: int, stride: int, padding: int) -> NDArray[np.int64]:
    """Cells of each window along one axis, those beyond the padding left out."""
    first = np.arange(windows) * stride - padding
    return np.minimum(first + kernel, size + padding) - first


def _global_average_pool(layer: GlobalAveragePool, place: Place, x: jax.Array) -> jax.Array:
    return x.astype(place.numerics.arrays).mean(place.positions(x)).astype(x.dtype)


def _concat(layer: Concat, place: Place, *values: jax.Array) -> jax.Array:
    channels = -1 if place.layout == "nhwc" else 1
    return jnp.concatenate(values, axis=channels)


LOWERINGS: dict[type[Layer], Lowering] = {
    Convolution: _convolution,
    Linear: _linear,
    BatchNorm: _batch_norm,
    LocalResponseNorm: _response_norm,
    ReLU: lambda layer, place, x: jax.nn.relu(x),
    Add: lambda layer, place, x, y: x + y,
    Concat: _concat,
    Dropout: _dropout,
    Flatten: _flatten,
    MaxPool: _max_pool,
    AveragePool: _average_pool,
    GlobalAveragePool: _global_average_pool,
    **SEQUENCE_LOWERINGS,
}
