"""The optimizers of TensorFlow programs, with the update rules of pytorch/optimizers.py.

SGD and Adam are TensorFlow's fused updates, one pass over
each array. Its RMSprop has epsilon under the root, so RMSprop is written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from cubemesh.schema.work import NetworkWork, Training

_RMSPROP_DECAY = 0.99
_ADAM_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class TensorFlowOptimizer:
    """An update rule for `weights`, with its state."""

    def __init__(self, work: Training, weights: Sequence[Any]) -> None:
        self._weights = weights
        self._rate, self._momentum = work.learning_rate, work.momentum
        self._decay = work.weight_decay
        count, self._update = self._rule(work.optimizer)
        self._slots = [[tf.Variable(tf.zeros_like(w)) for w in weights] for _ in range(count)]
        self._steps = tf.Variable(0, dtype=tf.int64)

    def _rule(self, name: str) -> tuple[int, Callable[..., None]]:
        """Number of state arrays of a weight, and its update."""
        if name == "rmsprop":
            return 1, self._rmsprop
        if name == "adam":
            return 2, self._adam
        return (1, self._sgd) if self._momentum else (0, self._descent)

    def start(self) -> None:
        """Reset the state."""
        self._steps.assign(0)
        for array in (a for arrays in self._slots for a in arrays):
            array.assign(tf.zeros_like(array))

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update every weight; traced into the step."""
        steps = self._steps.assign_add(1)
        for i, (weight, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            if self._decay:
                gradient = gradient + self._decay * weight
            self._update(weight, gradient, steps, *(arrays[i] for arrays in self._slots))

    def _descent(self, weight: Any, gradient: Any, steps: Any) -> None:
        weight.assign_sub(self._rate * gradient)

    def _sgd(self, weight: Any, gradient: Any, steps: Any, velocity: Any) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle,
            accum=velocity.handle,
            lr=_scalar(self._rate, weight),
            grad=gradient,
            momentum=_scalar(self._momentum, weight),
        )

    def _rmsprop(self, weight: Any, gradient: Any, steps: Any, square: Any) -> None:
        keep = _RMSPROP_DECAY
        square.assign(keep * square + (1 - keep) * tf.square(gradient))
        weight.assign_sub(self._rate * gradient / (tf.sqrt(square) + _EPSILON))

    def _adam(self, weight: Any, gradient: Any, steps: Any, mean: Any, square: Any) -> None:
        """With c = 1 − βᵗ: rate / c₁ · m / (√v / √c₂ + ε) = rate √c₂ / c₁ · m / (√v + ε √c₂). The
        right-hand side is TensorFlow's form; its own c, powers subtracted in float32, is put to
        1 and the exact one given with the rate and epsilon."""
        t = tf.cast(steps, tf.float64)
        c1, c2 = (-tf.math.expm1(t * math.log(beta)) for beta in _ADAM_BETAS)
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=_scalar(0.0, weight),
            beta2_power=_scalar(0.0, weight),
            lr=_scalar(self._rate * tf.sqrt(c2) / c1, weight),
            beta1=_scalar(_ADAM_BETAS[0], weight),
            beta2=_scalar(_ADAM_BETAS[1], weight),
            epsilon=_scalar(_EPSILON * tf.sqrt(c2), weight),
            grad=gradient,
        )


def make_optimizer(work: NetworkWork, weights: Sequence[Any]) -> TensorFlowOptimizer | None:
    """The optimizer of `work` over `weights`; None for work that does not train."""
    return TensorFlowOptimizer(work, weights) if isinstance(work, Training) else None


def _scalar(value: Any, weight: Any) -> Any:
    return tf.cast(value, weight.dtype) if tf.is_tensor(value) else tf.constant(value, weight.dtype)
