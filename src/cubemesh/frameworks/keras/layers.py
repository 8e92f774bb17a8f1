"""The lowerings of layers to Keras layers, one line a layer type.

A lowering takes the layer's settings, its context (`KerasContext`) and its inputs, and returns the
result in Keras's functional API. Images are (batch, height, width, channels), as TensorFlow's CPU
kernels need them, and as Keras has them by default. Where Keras has no equivalent layer,
`keras.ops` are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from cubemesh.frameworks.pooling import far_padding, pads_as_same, window_shares
from cubemesh.networks import layers


@dataclass(frozen=True, kw_only=True)
class KerasContext:
    """Shape, seed and variables of one layer."""

    shape: layers.Shape
    """Of one sample of the result, channels first."""
    seed: int
    full: str
    """Type of statistics."""
    arrays: dict[str, Any] = field(default_factory=dict)
    """Filled by the lowering with its variables, by role."""


class UnbiasedBatchNorm(keras.layers.Layer):  # type: ignore[misc]
    """Batch normalization whose running variance uses the unbiased variance of the batch, as
    PyTorch's; Keras uses the biased one."""

    def __init__(self, epsilon: float, momentum: float) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum

    def build(self, shape: Any) -> None:
        """Four arrays of one value per channel, read in their own type."""
        add = partial(self.add_weight, shape=shape[-1:], autocast=False)
        self.gamma, self.beta = add(initializer="ones"), add(initializer="zeros")
        self.mean = add(initializer="zeros", trainable=False)
        self.variance = add(initializer="ones", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        """Unchanged in shape."""
        full, axes = ops.cast(x, self.variable_dtype), tuple(range(x.ndim - 1))
        gamma, beta = (ops.cast(a, self.variable_dtype) for a in (self.gamma, self.beta))
        if not training:
            mean, variance = self.mean.value, self.variance.value
        else:
            mean, variance = ops.moments(full, axes)
            n = ops.cast(ops.size(x) // x.shape[-1], self.variable_dtype)
            keep, new = 1 - self.momentum, self.momentum
            unbiased = variance * n / (n - 1)
            self.mean.assign(keep * self.mean.value + new * mean)
            self.variance.assign(keep * self.variance.value + new * unbiased)
        y = ops.batch_normalization(full, mean, variance, -1, beta, gamma, self.epsilon)
        return ops.cast(y, self.compute_dtype)


Lowering = Callable[..., Any]
"""(layer, context, input, …) → result."""


def _convolution(layer: layers.Convolution, context: KerasContext, x: Any) -> Any:
    """`same` where it pads the same cells; else the image is padded before."""
    same = pads_as_same(layer)
    if any(layer.padding) and not same:
        x = keras.layers.ZeroPadding2D(layer.padding)(x)
    made = keras.layers.Conv2D(
        layer.filters,
        layer.kernel,
        layer.stride,
        padding="same" if same else "valid",
        dilation_rate=layer.dilation,
        groups=layer.groups,
        use_bias=layer.bias,
    )
    return _weighted(made, context, x)


def _linear(layer: layers.Linear, context: KerasContext, x: Any) -> Any:
    return _weighted(keras.layers.Dense(layer.features, use_bias=layer.bias), context, x)


def _weighted(made: Any, context: KerasContext, x: Any) -> Any:
    y = made(x)
    context.arrays["weight"] = made.kernel
    if made.use_bias:
        context.arrays["bias"] = made.bias
    return y


def _batch_norm(layer: layers.BatchNorm, context: KerasContext, x: Any) -> Any:
    made = UnbiasedBatchNorm(layer.epsilon, layer.momentum)
    y = made(x)
    context.arrays.update(
        weight=made.gamma,
        bias=made.beta,
        running_mean=made.mean,
        running_variance=made.variance,
    )
    return y


def _response_norm(layer: layers.LocalResponseNorm, context: KerasContext, x: Any) -> Any:
    """The window is zero-padded; one of even size has one more element before its centre."""
    full = ops.cast(x, context.full)
    squares, reach = ops.square(full), (layer.size // 2, (layer.size - 1) // 2)
    _, height, width, channels = x.shape
    if layer.region == "across":  # neighbouring channels as neighbours in an image of one value
        squares = ops.reshape(squares, (-1, height * width, channels, 1))
        padded = ops.pad(squares, ((0, 0), (0, 0), reach, (0, 0)))
        means = ops.average_pool(padded, (1, layer.size), 1, "valid", "channels_last")
        means = ops.reshape(means, (-1, height, width, channels))
    else:
        padded = ops.pad(squares, ((0, 0), reach, reach, (0, 0)))
        means = ops.average_pool(padded, layer.size, 1, "valid", "channels_last")
    return ops.cast(full / (layer.bias + layer.alpha * means) ** layer.beta, x.dtype)


def _flatten(layer: layers.Flatten, context: KerasContext, x: Any) -> Any:
    return keras.layers.Flatten()(keras.layers.Permute((3, 1, 2))(x) if len(x.shape) == 4 else x)


def _padded(
    layer: layers.MaxPool | layers.AveragePool, context: KerasContext, x: Any, value: float
) -> Any:
    padding = far_padding(layer, context.shape, x.shape[1:3])
    if not any(before or after for before, after in padding):
        return x
    return ops.pad(x, ((0, 0), *padding, (0, 0)), constant_values=value)


def _max_pool(layer: layers.MaxPool, context: KerasContext, x: Any) -> Any:
    x = _padded(layer, context, x, -np.inf)
    return keras.layers.MaxPooling2D(layer.kernel, layer.stride)(x)


def _average_pool(layer: layers.AveragePool, context: KerasContext, x: Any) -> Any:
    shares = window_shares(layer, context.shape, x.shape[1:3])
    y = keras.layers.AveragePooling2D(layer.kernel, layer.stride)(_padded(layer, context, x, 0.0))
    return y if shares is None else y * ops.cast(shares[None, :, :, None], y.dtype)


def _concat(layer: layers.Concat, context: KerasContext, *values: Any) -> Any:
    return keras.layers.Concatenate(axis=-1)(values)


LOWERINGS: dict[type[layers.Layer], Lowering] = {
    layers.Convolution: _convolution,
    layers.Linear: _linear,
    layers.BatchNorm: _batch_norm,
    layers.LocalResponseNorm: _response_norm,
    layers.ReLU: lambda layer, context, x: keras.layers.ReLU()(x),
    layers.Add: lambda layer, context, x, y: keras.layers.Add()([x, y]),
    layers.Concat: _concat,
    layers.Dropout: lambda layer, context, x: keras.layers.Dropout(
        layer.rate,
        noise_shape=(None, *[1] * (len(x.shape) - 1)) if layer.per_sample else None,
        seed=context.seed,
    )(x),
    layers.Flatten: _flatten,
    layers.MaxPool: _max_pool,
    layers.AveragePool: _average_pool,
    layers.GlobalAveragePool: lambda layer, context, x: keras.layers.GlobalAveragePooling2D()(x),
}


class TorchRules(keras.optimizers.Optimizer):  # type: ignore[misc]
    """SGD, RMSprop and Adam by PyTorch's rules (frameworks/pytorch/optimizers.py)."""

    def __init__(self, rule: str, rate: float, momentum: float, decay: float) -> None:
        super().__init__(learning_rate=rate)
        self.rule, self.momentum, self.decay = rule, momentum, decay

    def build(self, variables: Any) -> None:
        """The optimizer state of each weight."""
        if self.built:
            return
        super().build(variables)
        names = {"sgd": ["velocity"], "rmsprop": ["square"], "adam": ["mean", "square"]}[self.rule]
        self.slots = {name: self.add_optimizer_variables(variables, [name])[0] for name in names}

    def updates(self) -> int:
        """Updates so far."""
        return int(ops.convert_to_numpy(self.iterations.value))

    def continue_after(self, updates: int) -> None:
        """Count from so many updates."""
        self.iterations.assign(updates)

    def set_rate(self, rate: float) -> None:
        """Change the learning rate."""
        self.learning_rate = rate

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one weight."""
        slots = [arrays[self._get_variable_index(variable)] for arrays in self.slots.values()]
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        if self.decay:
            gradient = gradient + self.decay * variable
        if self.rule == "sgd":
            (velocity,) = slots
            self.assign(velocity, self.momentum * velocity + gradient)
            self.assign_sub(variable, rate * velocity)
        elif self.rule == "rmsprop":
            (square,) = slots
            self.assign(square, 0.99 * square + 0.01 * ops.square(gradient))
            self.assign_sub(variable, rate * gradient / (ops.sqrt(square) + 1e-8))
        else:
            mean, square = slots
            t = ops.cast(self.iterations + 1, variable.dtype)
            c1, c2 = (ops.cast(-ops.expm1(t * np.log(b)), variable.dtype) for b in (0.9, 0.999))
            self.assign(mean, 0.9 * mean + 0.1 * gradient)
            self.assign(square, 0.999 * square + 0.001 * ops.square(gradient))
            root = ops.sqrt(square) / ops.sqrt(c2)
            self.assign_sub(variable, rate / c1 * mean / (root + 1e-8))
