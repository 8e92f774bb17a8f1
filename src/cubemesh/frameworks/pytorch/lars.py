"""LARS: how far does each layer move, when a large minibatch calls for a large rate?

You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks" (2017, arXiv:1708.03888),
algorithm 1: every weight array has a rate of its own, in proportion to its size over that of its
gradient.

    trust = eta · |w| / (|g| + decay · |w|)           eta 0.001, the norms those of the whole array
    v     = momentum · v + trust · (g + decay · w)
    w    −= rate · v

As in the implementations in use, arrays of one axis (biases, the weights of normalisations) take
part neither in the adaptation nor in the decay: for them, and where a norm is 0, trust is 1. The
paper has the rate inside v, which is the same while the rate does not change.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn, optim

ETA = 0.001
"""The paper's trust coefficient."""


class Lars(optim.Optimizer):
    """LARS over `parameters`. A step works in the gradients' own arrays and never waits for the
    device: the norms stay there."""

    def __init__(
        self, parameters: list[nn.Parameter], *, rate: float, momentum: float, decay: float
    ) -> None:
        super().__init__(parameters, {"lr": rate, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient. There is no closure to call."""
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            if not weights:
                continue
            gradients = _gradients(weights)
            _adapt([w for w in weights if w.ndim > 1], group["decay"])
            if group["momentum"]:
                velocities = [self._velocity(w) for w in weights]
                torch._foreach_mul_(velocities, group["momentum"])
                torch._foreach_add_(velocities, gradients)
                gradients = velocities
            torch._foreach_add_(weights, gradients, alpha=-group["lr"])

    def _velocity(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(weight)
        velocity: Tensor = state["velocity"]
        return velocity


def _adapt(weights: list[Tensor], decay: float) -> None:
    """Turn the gradient of each weight array into trust · (g + decay · w), in place."""
    if not weights:
        return
    gradients = _gradients(weights)
    own = torch.stack(torch._foreach_norm(weights))
    slopes = torch.stack(torch._foreach_norm(gradients))
    trust = ETA * own / (slopes + decay * own)
    trust = torch.where((own > 0) & (slopes > 0), trust, torch.ones_like(trust))
    if decay:
        torch._foreach_add_(gradients, weights, alpha=decay)
    torch._foreach_mul_(gradients, trust.unbind())


def _gradients(weights: list[Tensor]) -> list[Tensor]:
    return [w.grad for w in weights if w.grad is not None]
