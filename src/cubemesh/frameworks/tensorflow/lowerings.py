"""Which operations of TensorFlow compute a layer? The table of lowerings, one line a layer type.

A lowering is a function of the layer's settings, of where it stands (`Place`) and of its inputs.
Values hold the batch on their first axis; images have their channels on the last (`nhwc`) or, where
XLA compiles, on the second (`nchw`). It runs once, while the step is traced. Where XLA and
TensorFlow's CPU kernels do not know the same operation, `Place.compiled` decides. Layers of
sequences are in `sequence_lowerings.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from cubemesh.frameworks.api.program import Unsupported
from cubemesh.frameworks.tensorflow.place import Lowering, Place
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


def _convolution(layer: Convolution, place: Place, x: Any) -> Any:
    """TensorFlow's CPU kernels have no backward pass in groups: each group is then a convolution
    of its own. Nor are those with explicit padding oneDNN's: a step of LittleCNN took 1.7 times as
    long. `SAME` is named where it pads the same cells; else the image is padded before."""
    x, weight = place.narrow(x, place.arrays["weight"])
    around = [(p, p) for p in layer.padding]
    same = pads_as_same(layer)
    padding: Any = place.around(around)
    if not place.compiled:
        padding = "SAME" if same else "VALID"
        x = x if same or not any(layer.padding) else place.pad(x, around)

    def convolve(x: Any, weight: Any) -> Any:
        return tf.nn.conv2d(x, weight, layer.stride, padding, data_format=place.format)

    if layer.groups == 1 or place.compiled:
        y = convolve(x, weight)
    else:
        axis = place.channels(x)
        groups = zip(
            tf.split(x, layer.groups, axis), tf.split(weight, layer.groups, -1), strict=True
        )
        y = tf.concat([convolve(*group) for group in groups], axis)
    if not layer.bias:
        return y
    (bias,) = place.narrow(place.arrays["bias"])
    return tf.nn.bias_add(y, bias, data_format=place.format)


def pads_as_same(layer: Convolution) -> bool:
    """Whether TensorFlow's padding `SAME` pads the cells that `layer` does."""
    return layer.stride == (1, 1) and layer.kernel == tuple(2 * p + 1 for p in layer.padding)


def _linear(layer: Linear, place: Place, x: Any) -> Any:
    """Positions of a sequence are rows of one product, as samples are."""
    x, weight = place.narrow(x, place.arrays["weight"])
    rows = x if len(x.shape) == 2 else tf.reshape(x, [-1, x.shape[-1]])
    y = tf.matmul(rows, weight, transpose_b=True)  # the weight lies (out, in)
    if layer.bias:
        y = tf.nn.bias_add(y, *place.narrow(place.arrays["bias"]))
    return y if rows is x else tf.reshape(y, [*x.shape[:-1], layer.features])


def _batch_norm(layer: BatchNorm, place: Place, x: Any) -> Any:
    """In float32 and narrower TensorFlow's fused kernel, whose variance for the running statistics
    is the unbiased one. It has no float64: there the mean of (x − mean)² is written out. Without
    an image the features are the channels of one of a single position."""
    own, axis = place.arrays, place.channels(x)
    axes = [i for i in range(len(x.shape)) if i != axis]
    if not place.training:
        scale = own["weight"] * tf.math.rsqrt(own["running_variance"] + layer.epsilon)
        shift = own["bias"] - own["running_mean"] * scale
        y = place.wide(x) * place.per_channel(scale, x) + place.per_channel(shift, x)
        return tf.cast(y, x.dtype)
    n = int(np.prod([x.shape[i] for i in axes]))
    if n < 2:
        raise Unsupported(
            "batch normalisation in training needs two values or more of a channel, and here a "
            "batch of 1 has an image of a single position. Set a batch of 2 or a larger image_size."
        )
    if x.dtype == tf.float64:
        mean, variance = tf.nn.moments(x, axes)
        unbiased = variance * (n / (n - 1))
        y = tf.nn.batch_normalization(
            x,
            *(place.per_channel(a, x) for a in (mean, variance, own["bias"], own["weight"])),
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
            data_format=place.format if image is x else "NHWC",
        )
        y = tf.reshape(y, x.shape)
    keep, new = 1 - layer.momentum, layer.momentum
    place.new_state["running_mean"] = keep * own["running_mean"] + new * mean
    place.new_state["running_variance"] = keep * own["running_variance"] + new * unbiased
    return y


def _response_norm(layer: LocalResponseNorm, place: Place, x: Any) -> Any:
    """The window is zero-padded, and of an even size one longer before its centre than after.
    TensorFlow's own kernel knows odd windows across channels, in float32 and `nhwc`; its alpha is
    that of the sum of the squares."""
    wide, across = place.wide(x), layer.region == "across"
    if across and layer.size % 2 and wide.dtype == tf.float32 and place.layout == "nhwc":
        y = tf.nn.lrn(wide, layer.size // 2, layer.bias, layer.alpha / layer.size, layer.beta)
        return tf.cast(y, x.dtype)
    squares, reach = tf.square(wide), (layer.size // 2, (layer.size - 1) // 2)
    if across:  # the mean of neighbouring channels: those of rows, in an image of one column
        axis = place.channels(x)
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
        padded = place.pad(squares, (reach, reach))
        means = tf.nn.avg_pool2d(padded, layer.size, 1, "VALID", data_format=place.format)
    return tf.cast(wide / (layer.bias + layer.alpha * means) ** layer.beta, x.dtype)


def _dropout(layer: Dropout, place: Place, x: Any) -> Any:
    if not place.training or layer.rate == 0:
        return x
    if layer.rate == 1:
        return tf.zeros_like(x)
    return tf.nn.experimental.stateless_dropout(x, layer.rate, place.seed(), rng_alg="philox")


def _flatten(layer: Flatten, place: Place, x: Any) -> Any:
    if place.layout == "nhwc" and len(x.shape) == 4:
        x = tf.transpose(x, [0, 3, 1, 2])
    return tf.reshape(x, [x.shape[0], -1])


def far_padding(layer: MaxPool | AveragePool, shape: Shape, sizes: Any) -> list[tuple[int, int]]:
    """(before, after) of height and width. The padding at the far edge is as long as the last
    window needs, which the result's `shape` tells: beyond `layer.padding` in `ceil_mode`, and
    shorter where a rest of the image is left out."""
    axes = zip(sizes, shape[1:], layer.kernel, layer.stride, layer.padding, strict=True)
    return [
        (padding, max(0, (windows - 1) * stride + kernel - padding - size))
        for size, windows, kernel, stride, padding in axes
    ]


def window_shares(layer: AveragePool, shape: Shape, sizes: Any) -> NDArray[np.float64] | None:
    """Cells of a whole window by those of each, the cells beyond the padding left out, (height,
    width); None where every window is whole."""
    axes = zip(sizes, shape[1:], layer.kernel, layer.stride, layer.padding, strict=True)
    rows, columns = (_cells(*axis) for axis in axes)
    cells = np.outer(rows, columns)
    whole = layer.kernel[0] * layer.kernel[1]
    return None if (cells == whole).all() else whole / cells


def _cells(size: int, windows: int, kernel: int, stride: int, padding: int) -> NDArray[np.int64]:
    first = np.arange(windows) * stride - padding
    return np.minimum(first + kernel, size + padding) - first


def _sizes(place: Place, x: Any) -> tuple[int, ...]:
    return tuple(x.shape[axis] for axis in place.positions)


def _max_pool(layer: MaxPool, place: Place, x: Any) -> Any:
    """XLA knows no pooling that pads: the image is padded for it, with what never wins."""
    padding = far_padding(layer, place.shape, _sizes(place, x))
    how: Any = "VALID"
    if any(before or after for before, after in padding):
        if place.compiled:
            x = place.pad(x, padding, -np.inf)
        else:
            how = place.around(padding)
    return tf.nn.max_pool2d(x, layer.kernel, layer.stride, how, data_format=place.format)


def _average_pool(layer: AveragePool, place: Place, x: Any) -> Any:
    sizes = _sizes(place, x)
    padding = far_padding(layer, place.shape, sizes)
    shares = window_shares(layer, place.shape, sizes)
    if any(before or after for before, after in padding):
        x = place.pad(x, padding)
    y = tf.nn.avg_pool2d(x, layer.kernel, layer.stride, "VALID", data_format=place.format)
    if shares is None:
        return y
    shape = [1] * 4
    for axis, size in zip(place.positions, shares.shape, strict=True):
        shape[axis] = size
    return y * tf.constant(shares.reshape(shape), y.dtype)


def _global_average_pool(layer: GlobalAveragePool, place: Place, x: Any) -> Any:
    return tf.cast(tf.reduce_mean(place.wide(x), place.positions), x.dtype)


LOWERINGS: dict[type[Layer], Lowering] = {
    Convolution: _convolution,
    Linear: _linear,
    BatchNorm: _batch_norm,
    LocalResponseNorm: _response_norm,
    ReLU: lambda layer, place, x: tf.nn.relu(x),
    Add: lambda layer, place, x, y: tf.add(*place.alike(x, y)),
    Concat: lambda layer, place, *values: tf.concat(values, place.channels(values[0])),
    Dropout: _dropout,
    Flatten: _flatten,
    MaxPool: _max_pool,
    AveragePool: _average_pool,
    GlobalAveragePool: _global_average_pool,
    **SEQUENCE_LOWERINGS,
}
