"""The optimizers of JAX programs, with the update rules of pytorch/optimizers.py.

An optimizer is an initial state and a pure function of it and of the learning rate, an array, so
that another rate compiles nothing; XLA fuses the update of each array into one pass. (optax is not
used: its RMSprop and its decay differ from PyTorch's by default.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from cubemesh.schema.work import NetworkWork, Training

Arrays = dict[str, jax.Array]
State = dict[str, Any]
Update = Callable[[Arrays, State, Arrays, jax.Array], tuple[Arrays, State]]

_RMSPROP_DECAY = 0.99
_ADAM_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class JaxOptimizer:
    """An update rule as pure functions."""

    start: Callable[[Arrays], State]
    """Parameters → initial state."""
    update: Update
    """(gradients, state, parameters, learning rate) → (parameters, state)."""


def make_optimizer(work: NetworkWork) -> JaxOptimizer | None:
    """The optimizer of `work`; None for work that does not train."""
    if not isinstance(work, Training):
        return None
    return _MAKERS[work.optimizer](work)


def _sgd(work: Training) -> JaxOptimizer:
    momentum = work.momentum

    def start(weights: Arrays) -> State:
        return {"velocity": _zeros(weights)} if momentum else {}

    def update(
        gradients: Arrays, state: State, weights: Arrays, rate: jax.Array
    ) -> tuple[Arrays, State]:
        velocity = _decayed(gradients, weights, work.weight_decay)
        if momentum:
            velocity = jax.tree.map(lambda v, g: momentum * v + g, state["velocity"], velocity)
            state = {"velocity": velocity}
        return jax.tree.map(lambda w, v: w - rate * v, weights, velocity), state

    return JaxOptimizer(start=start, update=update)


def _rmsprop(work: Training) -> JaxOptimizer:
    keep = _RMSPROP_DECAY

    def start(weights: Arrays) -> State:
        return {"square": _zeros(weights)}

    def update(
        gradients: Arrays, state: State, weights: Arrays, rate: jax.Array
    ) -> tuple[Arrays, State]:
        gradients = _decayed(gradients, weights, work.weight_decay)
        square = jax.tree.map(
            lambda s, g: keep * s + (1 - keep) * g * g, state["square"], gradients
        )
        weights = jax.tree.map(
            lambda w, g, s: w - rate * g / (jnp.sqrt(s) + _EPSILON), weights, gradients, square
        )
        return weights, {"square": square}

    return JaxOptimizer(start=start, update=update)


def _adam(work: Training, decoupled: bool = False) -> JaxOptimizer:
    beta1, beta2 = _ADAM_BETAS

    def start(weights: Arrays) -> State:
        return {"mean": _zeros(weights), "square": _zeros(weights), "steps": jnp.int32(0)}

    def update(
        gradients: Arrays, state: State, weights: Arrays, rate: jax.Array
    ) -> tuple[Arrays, State]:
        if decoupled:
            weights = {name: w * (1 - rate * work.weight_decay) for name, w in weights.items()}
        else:
            gradients = _decayed(gradients, weights, work.weight_decay)
        steps = state["steps"] + 1
        mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["mean"], gradients)
        square = jax.tree.map(
            lambda s, g: beta2 * s + (1 - beta2) * g * g, state["square"], gradients
        )

        def change(w: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
            # 1 − βᵗ without cancellation in float32.
            t = steps.astype(w.dtype)
            bias1, bias2 = (-jnp.expm1(t * math.log(b)) for b in _ADAM_BETAS)
            return w - rate / bias1 * m / (jnp.sqrt(s) / jnp.sqrt(bias2) + _EPSILON)

        weights = jax.tree.map(change, weights, mean, square)
        return weights, {"mean": mean, "square": square, "steps": steps}

    return JaxOptimizer(start=start, update=update)


_MAKERS: dict[str, Callable[[Training], JaxOptimizer]] = {
    "sgd": _sgd,
    "rmsprop": _rmsprop,
    "adam": _adam,
    "adamw": partial(_adam, decoupled=True),
}


def _zeros(weights: Arrays) -> Arrays:
    return {name: jnp.zeros_like(w) for name, w in weights.items()}


def _decayed(gradients: Arrays, weights: Arrays, decay: float) -> Arrays:
    if decay == 0:
        return gradients
    return {name: g + decay * weights[name] for name, g in gradients.items()}
