"""The lowerings of layers to JAX operations, one line a layer type.

A lowering is a function of the layer's settings, its context (`JaxContext`) and its inputs. The
batch is the first axis; the channels of images are the second (`nchw`) or the last (`nhwc`). It
runs once, while JAX traces the network; XLA fuses the operations between two products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.jax.context import JaxContext
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
"""Layout of a program → order of the axes of a convolution's input, weight and result."""


Lowering = Callable[..., jax.Array]
"""(layer, context, input, …) → result."""


def _convolution(layer: Convolution, context: JaxContext, x: jax.Array) -> jax.Array:
    x, weight = context.to_product_type(x, context.arrays["weight"])
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=layer.stride,
        padding=[(p, p) for p in layer.padding],
        dimension_numbers=DIMENSIONS[context.layout],
        feature_group_count=layer.groups,
        precision=context.numerics.precision,
    )
    if not layer.bias:
        return y
    (bias,) = context.to_product_type(context.arrays["bias"])
    return y + context.per_channel(bias, y)


def _linear(layer: Linear, context: JaxContext, x: jax.Array) -> jax.Array:
    x, weight = context.to_product_type(x, context.arrays["weight"])
    last = (((x.ndim - 1,), (1,)), ((), ()))  # contract the features; the weight is (out, in)
    y = lax.dot_general(x, weight, last, precision=context.numerics.precision)
    return y + context.to_product_type(context.arrays["bias"])[0] if layer.bias else y


def _batch_norm(layer: BatchNorm, context: JaxContext, x: jax.Array) -> jax.Array:
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
    if n < 2:
        raise Unsupported(
            "batch normalization in training needs two values or more of a channel, and here a "
            "batch of 1 has an image of a single position. Set a batch of 2 or a larger image_size."
        )
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
    layer: BatchNorm, context: JaxContext, centred: jax.Array, variance: jax.Array
) -> jax.Array:
    own = context.arrays
    scale = own["weight"] * lax.rsqrt(variance + layer.epsilon)
    return centred * context.per_channel(scale, centred) + context.per_channel(own["bias"], centred)


def _response_norm(layer: LocalResponseNorm, context: JaxContext, x: jax.Array) -> jax.Array:
    """The window is zero-padded; one of even size has one more element before its centre."""
    full = x.astype(context.numerics.arrays)
    axes = context.positions(x) if layer.region == "within" else (context.channels(x),)
    before, after = layer.size // 2, (layer.size - 1) // 2
    window = [layer.size if axis in axes else 1 for axis in range(x.ndim)]
    padding = [(before, after) if axis in axes else (0, 0) for axis in range(x.ndim)]
    sums = lax.reduce_window(lax.square(full), 0.0, lax.add, window, [1] * x.ndim, padding)
    means = sums / layer.size ** len(axes)
    return (full / (layer.bias + layer.alpha * means) ** layer.beta).astype(x.dtype)


def _dropout(layer: Dropout, context: JaxContext, x: jax.Array) -> jax.Array:
    if not context.training or layer.rate == 0:
        return x
    if layer.rate == 1:
        return jnp.zeros_like(x)
    kept = jax.random.bernoulli(context.key(), np.float32(1 - layer.rate), x.shape)
    return jnp.where(kept, x / (1 - layer.rate), jnp.zeros_like(x))


def _flatten(layer: Flatten, context: JaxContext, x: jax.Array) -> jax.Array:
    if context.layout == "nhwc" and x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    return x.reshape(len(x), -1)


def _windows(
    layer: MaxPool | AveragePool, context: JaxContext, x: jax.Array
) -> tuple[Any, Any, Any]:
    """Window, strides and padding on all axes. The padding at the far edge follows from the
    result's shape: longer than `layer.padding` in `ceil_mode`, shorter where the last pixels are
    left out."""
    window, strides = [1] * x.ndim, [1] * x.ndim
    padding = [(0, 0)] * x.ndim
    for i, axis in enumerate(context.positions(x)):
        window[axis], strides[axis] = layer.kernel[i], layer.stride[i]
        reach = (context.shape[1 + i] - 1) * layer.stride[i] + layer.kernel[i]
        padding[axis] = layer.padding[i], max(0, reach - layer.padding[i] - x.shape[axis])
    return window, strides, padding


def _max_pool(layer: MaxPool, context: JaxContext, x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, *_windows(layer, context, x))


def _average_pool(layer: AveragePool, context: JaxContext, x: jax.Array) -> jax.Array:
    """Each sum is divided by the cells of its window on the image and `layer.padding`."""
    full = x.astype(context.numerics.arrays)
    sums = lax.reduce_window(full, 0.0, lax.add, *_windows(layer, context, x))
    axes = context.positions(x)
    sizes = (x.shape[axis] for axis in axes)
    rows, columns = map(_cells, sizes, context.shape[1:], layer.kernel, layer.stride, layer.padding)
    cells = np.expand_dims(np.outer(rows, columns), [a for a in range(x.ndim) if a not in axes])
    return (sums / cells.astype(full.dtype)).astype(x.dtype)


def _cells(size: int, windows: int, kernel: int, stride: int, padding: int) -> NDArray[np.int64]:
    """Cells of each window along one axis, those beyond the padding left out."""
    first = np.arange(windows) * stride - padding
    return np.minimum(first + kernel, size + padding) - first


def _global_average_pool(layer: GlobalAveragePool, context: JaxContext, x: jax.Array) -> jax.Array:
    return x.astype(context.numerics.arrays).mean(context.positions(x)).astype(x.dtype)


def _concat(layer: Concat, context: JaxContext, *values: jax.Array) -> jax.Array:
    channels = -1 if context.layout == "nhwc" else 1
    return jnp.concatenate(values, axis=channels)


LOWERINGS: dict[type[Layer], Lowering] = {
    Convolution: _convolution,
    Linear: _linear,
    BatchNorm: _batch_norm,
    LocalResponseNorm: _response_norm,
    ReLU: lambda layer, context, x: jax.nn.relu(x),
    Add: lambda layer, context, x, y: x + y,
    Concat: _concat,
    Dropout: _dropout,
    Flatten: _flatten,
    MaxPool: _max_pool,
    AveragePool: _average_pool,
    GlobalAveragePool: _global_average_pool,
    **SEQUENCE_LOWERINGS,
}
