"""The lowerings of layers to TensorFlow operations, one line a layer type.

A lowering is a function of the layer's settings, its context (`TensorFlowContext`) and its inputs.
The batch is the first axis; the channels of images are the last (`nhwc`) or, where XLA compiles,
the second (`nchw`). It runs once, while the step is traced. Where XLA and TensorFlow's CPU kernels
offer different operations, `context.compiled` decides. Sequence layers are in
`sequence_lowerings.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.tensorflow.context import Lowering, TensorFlowContext
from cubemesh.frameworks.tensorflow.sequence_lowerings import SEQUENCE_LOWERINGS
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
    Shape,
)


def _convolution(layer: Convolution, context: TensorFlowContext, x: Any) -> Any:
    """TensorFlow's CPU kernels have no backward pass for groups: each group is then a convolution
    of its own. With explicit padding they do not use oneDNN: a step of LittleCNN took 1.7 times as
    long. So `SAME` is used where it pads the same cells; else the image is padded before."""
    x, weight = context.to_product_type(x, context.arrays["weight"])
    around = [(p, p) for p in layer.padding]
    same = pads_as_same(layer)
    padding: Any = context.around(around)
    if not context.compiled:
        padding = "SAME" if same else "VALID"
        x = x if same or not any(layer.padding) else context.pad(x, around)

    def convolve(x: Any, weight: Any) -> Any:
        return tf.nn.conv2d(x, weight, layer.stride, padding, data_format=context.format)

    if layer.groups == 1 or context.compiled:
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


def pads_as_same(layer: Convolution) -> bool:
    """Whether TensorFlow's padding `SAME` pads the cells that `layer` does."""
    return layer.stride == (1, 1) and layer.kernel == tuple(2 * p + 1 for p in layer.padding)


def _linear(layer: Linear, context: TensorFlowContext, x: Any) -> Any:
    """Positions of a sequence are rows of one product, as samples are."""
    x, weight = context.to_product_type(x, context.arrays["weight"])
    rows = x if len(x.shape) == 2 else tf.reshape(x, [-1, x.shape[-1]])
    y = tf.matmul(rows, weight, transpose_b=True)  # the weight is (out, in)
    if layer.bias:
        y = tf.nn.bias_add(y, *context.to_product_type(context.arrays["bias"]))
    return y if rows is x else tf.reshape(y, [*x.shape[:-1], layer.features])


def _batch_norm(layer: BatchNorm, context: TensorFlowContext, x: Any) -> Any:
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
    n = int(np.prod([x.shape[i] for i in axes]))
    if n < 2:
        raise Unsupported(
            "batch normalization in training needs two values or more of a channel, and here a "
            "batch of 1 has an image of a single position. Set a batch of 2 or a larger image_size."
        )
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


def _response_norm(layer: LocalResponseNorm, context: TensorFlowContext, x: Any) -> Any:
    """The window is zero-padded; one of even size has one more element before its centre.
    TensorFlow's kernel supports odd windows across channels, in float32 and `nhwc`; its alpha
    applies to the sum of the squares."""
    full, across = context.to_array_type(x), layer.region == "across"
    if across and layer.size % 2 and full.dtype == tf.float32 and context.layout == "nhwc":
        y = tf.nn.lrn(full, layer.size // 2, layer.bias, layer.alpha / layer.size, layer.beta)
        return tf.cast(y, x.dtype)
    squares, reach = tf.square(full), (layer.size // 2, (layer.size - 1) // 2)
    if across:  # the mean of neighbouring channels: those of rows, in an image of one column
        axis = context.channels(x)
        rows = tf.reshape(squares, [x.shape[0], -1, x.shape[3], 1])
        rows = rows if axis == 3 else tf.reshape(squares, [x.shape[0], x.shape[1], -1, 1])
        along_rows = axis == 1
        around = (
            [[0, 0], list(reach), [0, 0], [0, 0]]
            if along_rows
            else [[0, 0], [0, 0], list(reach), [0, 0]]
        )
        window = (layer.size, 1) if along_rows else (1, layer.size)
        means = tf.nn.avg_pool2d(tf.pad(rows, around), window, 1, "VALID")
        means = tf.reshape(means, x.shape)
    else:
        padded = context.pad(squares, (reach, reach))
        means = tf.nn.avg_pool2d(padded, layer.size, 1, "VALID", data_format=context.format)
    return tf.cast(full / (layer.bias + layer.alpha * means) ** layer.beta, x.dtype)


def _dropout(layer: Dropout, context: TensorFlowContext, x: Any) -> Any:
    if not context.training or layer.rate == 0:
        return x
    if layer.rate == 1:
        return tf.zeros_like(x)
    return tf.nn.experimental.stateless_dropout(x, layer.rate, context.seed(), rng_alg="philox")


def _flatten(layer: Flatten, context: TensorFlowContext, x: Any) -> Any:
    if context.layout == "nhwc" and len(x.shape) == 4:
        x = tf.transpose(x, [0, 3, 1, 2])
    return tf.reshape(x, [x.shape[0], -1])


def far_padding(layer: MaxPool | AveragePool, shape: Shape, sizes: Any) -> list[tuple[int, int]]:
    """(before, after) of height and width. The padding at the far edge follows from the
    result's `shape`: longer than `layer.padding` in `ceil_mode`, shorter where the last pixels are
    left out."""
    axes = zip(sizes, shape[1:], layer.kernel, layer.stride, layer.padding, strict=True)
    return [
        (padding, max(0, (windows - 1) * stride + kernel - padding - size))
        for size, windows, kernel, stride, padding in axes
    ]


def window_shares(layer: AveragePool, shape: Shape, sizes: Any) -> NDArray[np.float64] | None:
    """Cells of a full window divided by those of each window without the cells beyond the padding,
    (height, width); None where every window is full."""
    axes = zip(sizes, shape[1:], layer.kernel, layer.stride, layer.padding, strict=True)
    rows, columns = (_cells(*axis) for axis in axes)
    cells = np.outer(rows, columns)
    whole = layer.kernel[0] * layer.kernel[1]
    return None if (cells == whole).all() else whole / cells


def _cells(size: int, windows: int, kernel: int, stride: int, padding: int) -> NDArray[np.int64]:
    first = np.arange(windows) * stride - padding
    return np.minimum(first + kernel, size + padding) - first


def _sizes(context: TensorFlowContext, x: Any) -> tuple[int, ...]:
    return tuple(x.shape[axis] for axis in context.positions)


def _max_pool(layer: MaxPool, context: TensorFlowContext, x: Any) -> Any:
    """XLA has no pooling with padding: the image is padded before, with −∞."""
    padding = far_padding(layer, context.shape, _sizes(context, x))
    how: Any = "VALID"
    if any(before or after for before, after in padding):
        if context.compiled:
            x = context.pad(x, padding, -np.inf)
        else:
            how = context.around(padding)
    return tf.nn.max_pool2d(x, layer.kernel, layer.stride, how, data_format=context.format)


def _average_pool(layer: AveragePool, context: TensorFlowContext, x: Any) -> Any:
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


def _global_average_pool(layer: GlobalAveragePool, context: TensorFlowContext, x: Any) -> Any:
    return tf.cast(tf.reduce_mean(context.to_array_type(x), context.positions), x.dtype)


LOWERINGS: dict[type[Layer], Lowering] = {
    Convolution: _convolution,
    Linear: _linear,
    BatchNorm: _batch_norm,
    LocalResponseNorm: _response_norm,
    ReLU: lambda layer, context, x: tf.nn.relu(x),
    Add: lambda layer, context, x, y: tf.add(*context.same_type(x, y)),
    Concat: lambda layer, context, *values: tf.concat(values, context.channels(values[0])),
    Dropout: _dropout,
    Flatten: _flatten,
    MaxPool: _max_pool,
    AveragePool: _average_pool,
    GlobalAveragePool: _global_average_pool,
    **SEQUENCE_LOWERINGS,
}
