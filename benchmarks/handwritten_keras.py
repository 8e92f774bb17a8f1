"""Networks written by hand in Keras: functional models, and `train_on_batch`.

They share no code with cubemesh and hold their layers in the graph's order, so that weights can be
copied one by one; images are (batch, height, width, channels). Keras has the backend that
KERAS_BACKEND names, or that it was imported with: TensorFlow, JAX or PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from keras import layers, ops
from numpy.typing import NDArray

from handwritten_layout import turned

BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}


class Made(list[Any]):
    """The layers of a network, in the order they are made: a model sorts them by their depth."""

    def __call__(self, layer: Any, x: Any) -> Any:
        """What `layer` makes of `x`."""
        self.append(layer)
        return layer(x)


def little_cnn(x: Any, made: Made) -> Any:
    """LittleCNN, of the DGX-1 best practices [001]."""
    for filters in (32, 64):
        x = made(layers.Conv2D(filters, 3, padding="same", activation="relu"), x)
        x = made(layers.Conv2D(filters, 3, padding="same", activation="relu"), x)
        x = layers.Dropout(0.25)(layers.MaxPooling2D()(x))
    x = made(layers.Dense(512, activation="relu"), layers.Flatten()(x))
    return made(layers.Dense(10), layers.Dropout(0.5)(x))


def alexnet(x: Any, made: Made) -> Any:
    """AlexNet in one column."""
    x = made(layers.Conv2D(64, 11, 4, activation="relu"), layers.ZeroPadding2D(2)(x))
    x = layers.MaxPooling2D(3, 2)(x)
    x = made(layers.Conv2D(192, 5, padding="same", activation="relu"), x)
    x = layers.MaxPooling2D(3, 2)(x)
    for filters in (384, 256, 256):
        x = made(layers.Conv2D(filters, 3, padding="same", activation="relu"), x)
    x = layers.Dropout(0.5)(layers.Flatten()(layers.MaxPooling2D(3, 2)(x)))
    x = layers.Dropout(0.5)(made(layers.Dense(4096, activation="relu"), x))
    x = made(layers.Dense(4096, activation="relu"), x)
    return made(layers.Dense(1000), x)


def resnet_50(x: Any, made: Made) -> Any:
    """ResNet-50, its bottlenecks halving the image in their 3×3 convolutions (v1.5)."""

    def conv_norm(x: Any, filters: int, size: int, stride: int = 1) -> Any:
        if size > 1 and stride > 1:
            x = layers.ZeroPadding2D(size // 2)(x)
        padding = "same" if stride == 1 else "valid"
        x = made(layers.Conv2D(filters, size, stride, padding=padding, use_bias=False), x)
        return made(layers.BatchNormalization(**BATCH_NORM), x)

    x = layers.ReLU()(conv_norm(x, 64, 7, 2))
    # Nothing after a ReLU is below the zeros it is padded with.
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for filters, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(depth):
            stride = 2 if filters > 64 and i == 0 else 1
            y = layers.ReLU()(conv_norm(x, filters, 1))
            y = layers.ReLU()(conv_norm(y, filters, 3, stride))
            y = conv_norm(y, 4 * filters, 1)
            x = conv_norm(x, 4 * filters, 1, stride) if i == 0 else x
            x = layers.ReLU()(layers.Add()([y, x]))
    return made(layers.Dense(1000), layers.GlobalAveragePooling2D()(x))


NETWORKS = {"little-cnn": little_cnn, "alexnet": alexnet, "resnet-50": resnet_50}


def train_step(
    name: str,
    weights: Sequence[NDArray[np.float32]],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    rate: float,
    momentum: float,
) -> Callable[[], Any]:
    """A step on the network `name`: copy the batch, forward, backward, update; it gives the loss.
    `weights` are its parameters in their order, `images` (batch, channels, height, width)."""
    own = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    given = keras.Input(own.shape[1:])
    made = Made()
    model = keras.Model(given, NETWORKS[name](given, made))
    variables = [v for layer in made for v in layer.trainable_variables]
    for variable, array in zip(variables, turned(weights), strict=True):
        variable.assign(array)
    model.compile(
        optimizer=keras.optimizers.SGD(rate, momentum),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras.backend.backend() == "jax",
    )
    return lambda: model.train_on_batch(ops.array(own), ops.array(labels))
