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
        self._first_rate, self._momentum = work.learning_rate, work.momentum
        self._decay = work.weight_decay
        names, self._update = self._rule(work.optimizer)
        self.slots = {name: [tf.Variable(tf.zeros_like(w)) for w in weights] for name in names}
        """Arrays by name, one for each weight."""
        self.steps = tf.Variable(0, dtype=tf.int64)
        self.rate = tf.Variable(work.learning_rate, dtype=tf.float64)

    def _rule(self, name: str) -> tuple[tuple[str, ...], Callable[..., None]]:
        """Names of the state arrays of a weight, and its update."""
        if name == "rmsprop":
            return ("square",), self._rmsprop
        if name == "adam":
            return ("mean", "square"), self._adam
        return (("velocity",), self._sgd) if self._momentum else ((), self._descent)

    def start(self) -> None:
        """Reset the state and the learning rate."""
        self.steps.assign(0)
        self.rate.assign(self._first_rate)
        for array in (a for arrays in self.slots.values() for a in arrays):
            array.assign(tf.zeros_like(array))

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update every weight; traced into the step."""
        steps = self.steps.assign_add(1)
        rate = self.rate.read_value()
        for i, (weight, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            if self._decay:
                gradient = gradient + self._decay * weight
            slots = (arrays[i] for arrays in self.slots.values())
            self._update(weight, gradient, rate, steps, *slots)

    def _descent(self, weight: Any, gradient: Any, rate: Any, steps: Any) -> None:
        weight.assign_sub(_scalar(rate, weight) * gradient)

    def _sgd(self, weight: Any, gradient: Any, rate: Any, steps: Any, velocity: Any) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle,
            accum=velocity.handle,
            lr=_scalar(rate, weight),
            grad=gradient,
            momentum=_scalar(self._momentum, weight),
        )

    def _rmsprop(self, weight: Any, gradient: Any, rate: Any, steps: Any, square: Any) -> None:
        keep = _RMSPROP_DECAY
        square.assign(keep * square + (1 - keep) * tf.square(gradient))
        weight.assign_sub(_scalar(rate, weight) * gradient / (tf.sqrt(square) + _EPSILON))

    def _adam(
        self, weight: Any, gradient: Any, rate: Any, steps: Any, mean: Any, square: Any
    ) -> None:
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
            lr=_scalar(rate * tf.sqrt(c2) / c1, weight),
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
