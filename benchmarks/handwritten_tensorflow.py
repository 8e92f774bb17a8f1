"""Networks written by hand in TensorFlow: functions over variables, and a traced step.

They share no code with cubemesh. Variables are a list in the graph's order, taken one by one as the
network is traced; images are (batch, height, width, channels), which TensorFlow's CPU kernels need,
and weights (height, width, in, out) and (in, out).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from handwritten_layout import turned

Variables = Iterator[tf.Variable]
KEEP = 0.9
"""Of a running statistic, in each step."""


def conv(
    x: tf.Tensor, p: Variables, stride: int = 1, padding: int = 0, bias: bool = True
) -> tf.Tensor:
    """A convolution; `SAME` pads as wanted where the stride is 1."""
    if padding and stride > 1:
        x = tf.pad(x, [[0, 0], [padding, padding], [padding, padding], [0, 0]])
    y = tf.nn.conv2d(x, next(p), stride, "SAME" if stride == 1 else "VALID")
    return tf.nn.bias_add(y, next(p)) if bias else y


def linear(x: tf.Tensor, p: Variables) -> tf.Tensor:
    """A fully connected layer."""
    return tf.nn.bias_add(tf.matmul(x, next(p)), next(p))


def max_pool(x: tf.Tensor, size: int, stride: int) -> tf.Tensor:
    """The largest value of each window."""
    return tf.nn.max_pool2d(x, size, stride, "VALID")


def batch_norm(x: tf.Tensor, p: Variables, s: Variables) -> tf.Tensor:
    """Normalize by the batch's statistics, and move the running ones towards them."""
    y, mean, variance = tf.compat.v1.nn.fused_batch_norm(x, next(p), next(p), epsilon=1e-5)
    for running, new in ((next(s), mean), (next(s), variance)):
        running.assign(KEEP * running + (1 - KEEP) * new)
    return y


def little_cnn(x: tf.Tensor, p: Variables, s: Variables) -> tf.Tensor:
    """LittleCNN, of the DGX-1 best practices [001]."""
    for _ in range(2):
        x = tf.nn.relu(conv(x, p))
        x = tf.nn.relu(conv(x, p))
        x = tf.nn.dropout(max_pool(x, 2, 2), 0.25)
    x = tf.reshape(x, [x.shape[0], -1])
    return linear(tf.nn.dropout(tf.nn.relu(linear(x, p)), 0.5), p)


def alexnet(x: tf.Tensor, p: Variables, s: Variables) -> tf.Tensor:
    """AlexNet in one column."""
    x = max_pool(tf.nn.relu(conv(x, p, 4, 2)), 3, 2)
    x = max_pool(tf.nn.relu(conv(x, p)), 3, 2)
    for _ in range(3):
        x = tf.nn.relu(conv(x, p))
    x = max_pool(x, 3, 2)
    x = tf.nn.dropout(tf.reshape(x, [x.shape[0], -1]), 0.5)
    x = tf.nn.dropout(tf.nn.relu(linear(x, p)), 0.5)
    return linear(tf.nn.relu(linear(x, p)), p)


def resnet_50(x: tf.Tensor, p: Variables, s: Variables) -> tf.Tensor:
    """ResNet-50, its bottlenecks halving the image in their 3×3 convolutions (v1.5)."""

    def conv_norm(x: tf.Tensor, stride: int = 1, padding: int = 0) -> tf.Tensor:
        return batch_norm(conv(x, p, stride, padding, bias=False), p, s)

    x = tf.nn.relu(conv_norm(x, 2, 3))
    # Nothing after a ReLU is below the zeros it is padded with.
    x = max_pool(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2)
    for stage, depth in enumerate((3, 4, 6, 3)):
        for i in range(depth):
            stride = 2 if stage > 0 and i == 0 else 1
            y = tf.nn.relu(conv_norm(x))
            y = conv_norm(tf.nn.relu(conv_norm(y, stride, 1)))
            x = tf.nn.relu(y + (conv_norm(x, stride) if i == 0 else x))
    return linear(tf.reduce_mean(x, [1, 2]), p)


NETWORKS = {"little-cnn": little_cnn, "alexnet": alexnet, "resnet-50": resnet_50}


def train_step(
    name: str,
    weights: Sequence[NDArray[np.float32]],
    state: Sequence[NDArray[np.float32]],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    rate: float,
    momentum: float,
    compiled: bool = False,
) -> Callable[[], tf.Tensor]:
    """A step on the network `name`: copy the batch, forward, backward, update; it gives the loss.
    `weights` and `state` are in the network's order, `images` (batch, channels, height, width);
    XLA compiles the step where `compiled`."""
    forward = NETWORKS[name]
    p = [tf.Variable(w) for w in turned(weights)]
    s = [tf.Variable(a, trainable=False) for a in state]
    velocity = [tf.Variable(tf.zeros_like(w), trainable=False) for w in p]

    @tf.function(autograph=False, jit_compile=compiled or None)
    def update(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            scores = forward(x, iter(p), iter(s))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores)
            loss = tf.reduce_mean(losses)
        for w, v, g in zip(p, velocity, tape.gradient(loss, p), strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=w.handle, accum=v.handle, lr=rate, grad=g, momentum=momentum
            )
        return loss

    own = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return lambda: update(tf.constant(own), tf.constant(labels))
