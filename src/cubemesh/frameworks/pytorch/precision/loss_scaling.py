"""How is the loss scaled in fp16, so that small gradients do not become zero?

The loss is multiplied by a scale before the backward pass and the gradients are divided by it
(Micikevicius et al. 2018, "Mixed Precision Training", section 3.2).

    dynamic   PyTorch's GradScaler: from 65,536; halved when a gradient is not finite, and that
              step's update is left out; doubled after 2,000 steps that were
    static    a number; no gradient is looked at, so one that is not finite reaches the weights

The default is dynamic, as in PyTorch's own examples. Where one rank updates the weights of all, it
alone sees whether a gradient was finite: the others take over its scale with its weights, for
gradients of different scales have no mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, optim

from cubemesh.frameworks.api.gradient_sync import GradientSync, SingleUpdaterSync
from cubemesh.schema.spec import ProgramSettings


class Scaling(Protocol):
    """One backward pass and one update, the loss scaled between them. What is exchanged between
    devices are the scaled gradients: one that is not finite reaches every device."""

    method: str

    def backward(self, loss: Tensor) -> None:
        """Queue the backward pass of `loss`, scaled."""

    def update(self, optimizer: optim.Optimizer) -> None:
        """Queue the update by the gradients, scaled back."""

    def scale(self) -> float:
        """What the next step multiplies by; waits for it."""

    def state(self) -> dict[str, Any]:
        """What the next steps depend on, as plain data."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


class DynamicScaling:
    """PyTorch's own."""

    method = "dynamic"

    def __init__(self, kind: str) -> None:
        self._scaler = torch.amp.GradScaler(kind)

    def backward(self, loss: Tensor) -> None:
        """The scaled loss's."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def update(self, optimizer: optim.Optimizer) -> None:
        """Look, update or leave out, and adapt the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def tell(self, into: Tensor) -> None:
        """Copy the scale into an array of the device, which does not wait for it."""
        into.copy_(self._scaler.scale(torch.ones_like(into)))

    def take(self, scale: Tensor) -> None:
        """Go on with the scale in an array of the device."""
        self._scaler.update(scale)

    def scale(self) -> float:
        """As the last step left it."""
        return float(self._scaler.get_scale())

    def state(self) -> dict[str, Any]:
        """The scale, and how many good steps it has had."""
        return self._scaler.state_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set both."""
        self._scaler.load_state_dict(dict(state))


class StaticScaling:
    """A constant. It enters the backward pass as the loss's own gradient, which spares a kernel."""

    method = "static"

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def backward(self, loss: Tensor) -> None:
        """The loss's, its own gradient being the scale."""
        loss.backward(torch.full_like(loss, self._scale))  # type: ignore[no-untyped-call]

    def update(self, optimizer: optim.Optimizer) -> None:
        """Divide all gradients at once, and update."""
        owned = (p for group in optimizer.param_groups for p in group["params"])
        torch._foreach_div_([p.grad for p in owned if p.grad is not None], self._scale)
        optimizer.step()

    def scale(self) -> float:
        """The constant."""
        return self._scale

    def state(self) -> dict[str, Any]:
        """A constant is in the settings."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """There is nothing to set."""


def make_scaling(settings: ProgramSettings, kind: str) -> Scaling | None:
    """The scaling of a program on a `kind` of device (`cpu`, `cuda`); None but in fp16."""
    if settings.precision != "fp16":
        return None
    if settings.loss_scale is None or settings.loss_scale == "dynamic":
        return DynamicScaling(kind)
    return StaticScaling(settings.loss_scale)


def update_weights(
    sync: GradientSync,
    apply: Callable[[], None],
    weights: Sequence[Tensor],
    scaling: Scaling | None,
) -> None:
    """Have the exchange bring `weights` to where the gradients lead; with a dynamic scale, and one
    rank that applies them for all, every rank's scale to that rank's."""
    if not isinstance(scaling, DynamicScaling) or not isinstance(sync, SingleUpdaterSync):
        sync.update(apply, weights)
        return
    dynamic, scale = scaling, torch.empty((), device=weights[0].device)

    def apply_and_tell() -> None:
        apply()
        dynamic.tell(scale)

    sync.update(apply_and_tell, [*weights, scale])
    dynamic.take(scale)
