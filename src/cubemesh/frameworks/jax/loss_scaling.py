"""Loss scaling for fp16 in JAX, which keeps small gradients from underflow.

The loss is multiplied by a scale before the backward pass and the gradients are divided by it
(Micikevicius et al. 2018, "Mixed Precision Training", section 3.2: 8 to 32,768 suffice).

    static    a number, 1,024 by default; gradients are not checked
    dynamic   as PyTorch's GradScaler: from 65,536; halved when a gradient is not finite, and that
              step's update is skipped; doubled after 2,000 finite steps

All of it is inside the compiled step: updated arrays are selected or discarded one by one, and the
host never waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from cubemesh.schema.spec import ProgramSettings

DEFAULT_SCALE = 1024.0
_FIRST_SCALE = 65536.0
_GROWTH_STEPS = 2000

State = dict[str, jax.Array]


@dataclass(frozen=True, kw_only=True)
class JaxLossScaling:
    """A rule for the scale; `constant` is None where it is dynamic."""

    constant: float | None

    @property
    def method(self) -> str:
        """Its name in a record."""
        return "dynamic" if self.constant is None else "static"

    def start(self) -> State:
        """The initial state: empty, or the scale and the number of finite steps."""
        if self.constant is not None:
            return {}
        return {"scale": jnp.float32(_FIRST_SCALE), "finite_steps": jnp.int32(0)}

    def scale(self, state: State) -> Any:
        """The factor of the loss."""
        return state["scale"] if self.constant is None else self.constant

    def apply_or_skip(self, state: State, gradients: Any, new: Any, old: Any) -> tuple[Any, State]:
        """(`new`, or `old` where a gradient is not finite and the scale is dynamic; next state)."""
        if self.constant is not None:
            return new, state
        each = (jnp.isfinite(g).all() for g in jax.tree.leaves(gradients))
        finite = reduce(jnp.logical_and, each)
        selected = jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
        steps = jnp.where(finite, state["finite_steps"] + jnp.int32(1), jnp.int32(0))
        grows = steps == jnp.int32(_GROWTH_STEPS)
        factor = jnp.where(grows, jnp.float32(2.0), jnp.float32(1.0))
        factor = jnp.where(finite, factor, jnp.float32(0.5))
        return selected, {
            "scale": state["scale"] * factor,
            "finite_steps": jnp.where(grows, jnp.int32(0), steps),
        }


def make_scaling(settings: ProgramSettings) -> JaxLossScaling | None:
    """The scaling of a program; None except in fp16."""
    if settings.precision != "fp16":
        return None
    if settings.loss_scale == "dynamic":
        return JaxLossScaling(constant=None)
    return JaxLossScaling(constant=settings.loss_scale or DEFAULT_SCALE)
