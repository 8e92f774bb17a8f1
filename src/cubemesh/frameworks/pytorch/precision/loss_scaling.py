"""Loss scaling for fp16: keeps small gradients from underflowing to zero.

The loss is multiplied by a scale before the backward pass and the gradients are divided by it
(Micikevicius et al. 2018, "Mixed Precision Training", section 3.2).

    dynamic   PyTorch's GradScaler: from 65,536; halved when a gradient is not finite, and that
              step's update is skipped; doubled after 2,000 finite steps
    static    a constant; gradients are not checked, so a non-finite one reaches the weights

The default is dynamic, as in PyTorch's examples. Where one rank updates the weights of all, only it
checks the gradients: the others receive its scale with its weights, since gradients of different
scales cannot be averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, optim

from cubemesh.frameworks.contract.gradient_sync import GradientSync, SingleUpdaterSync
from cubemesh.schema.spec import ProgramSettings


class DynamicScaling:
    """PyTorch's GradScaler. Devices synchronize the scaled gradients, so a non-finite one reaches
    every device."""

    method = "dynamic"

    def __init__(self, kind: str) -> None:
        self._scaler = torch.amp.GradScaler(kind)

    def backward(self, loss: Tensor) -> None:
        """Queue the backward pass of the scaled `loss`."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def update(self, optimizer: optim.Optimizer) -> None:
        """Unscale and check the gradients, queue the update or skip it, and adapt the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def copy_scale(self, into: Tensor) -> None:
        """Copy the scale into an array of the device, without synchronizing."""
        into.copy_(self._scaler.scale(torch.ones_like(into)))

    def load_scale(self, scale: Tensor) -> None:
        """Set the scale from an array of the device."""
        self._scaler.update(scale)

    def scale(self) -> float:
        """The scale of the next step; synchronizes."""
        return float(self._scaler.get_scale())

    def state(self) -> dict[str, Any]:
        """The scale, and its number of finite steps, as plain data."""
        return self._scaler.state_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set both."""
        self._scaler.load_state_dict(dict(state))


class StaticScaling:
    """A constant, used as the gradient of the loss, which saves a kernel."""

    method = "static"

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def backward(self, loss: Tensor) -> None:
        """Queue the backward pass of the scaled `loss`."""
        loss.backward(torch.full_like(loss, self._scale))  # type: ignore[no-untyped-call]

    def update(self, optimizer: optim.Optimizer) -> None:
        """Divide all gradients in one kernel, and update."""
        owned = (p for group in optimizer.param_groups for p in group["params"])
        torch._foreach_div_([p.grad for p in owned if p.grad is not None], self._scale)
        optimizer.step()

    def scale(self) -> float:
        """The constant."""
        return self._scale

    def state(self) -> dict[str, Any]:
        """Empty: the constant is in the settings."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """No state."""


Scaling = DynamicScaling | StaticScaling


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
    """Update `weights` by the synchronization strategy; with a dynamic scale and a single updating
    rank, also every rank's scale."""
    if not isinstance(scaling, DynamicScaling) or not isinstance(sync, SingleUpdaterSync):
        sync.update(apply, weights)
        return
    dynamic, scale = scaling, torch.empty((), device=weights[0].device)

    def apply_and_copy_scale() -> None:
        apply()
        dynamic.copy_scale(scale)

    sync.update(apply_and_copy_scale, [*weights, scale])
    dynamic.load_scale(scale)
