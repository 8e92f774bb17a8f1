"""16-bit copies of large weights for a captured step: the update writes them.

Under autocast each step reads the fp32 weights to convert them, and writes 16-bit gradients to fp32
for the update. Here a large weight has a copy in the type of autocast. Layers read the copy, its
gradient stays in 16 bits, as the product computes it, and one kernel reads the gradient, updates
the fp32 weight and its optimizer state, and writes the copy (`kernels/triton/master_update.py`).
Values are rounded as by autocast. The optimizer sees no gradient of these weights and updates the
others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim

FEWEST_VALUES = 2**19
"""Of a weight with a copy: the update of a smaller one by a kernel of its own takes longer than
what is saved."""
UPDATED = (optim.SGD, optim.Adam)
"""Optimizers whose update there is a kernel for; AdamW is an Adam."""


class LowPrecisionWeights:
    """The copies."""

    def __init__(self, masters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        self._copies = {
            id(master): (
                master,
                nn.Parameter(
                    torch.empty_like(master, dtype=dtype, requires_grad=False), requires_grad=True
                ),
            )
            for master in masters
            if master.numel() >= FEWEST_VALUES
        }

    def __bool__(self) -> bool:
        return bool(self._copies)

    def copy_of(self, master: Tensor | None) -> nn.Parameter | None:
        """The copy of a weight, if it has one."""
        found = self._copies.get(id(master))
        return None if found is None else found[1]

    def layer(self, layer: nn.Module) -> nn.Module:
        """A convolution or product that reads the copy of its weight; others as they are."""
        copy = self.copy_of(getattr(layer, "weight", None))
        if copy is None:
            return layer
        made: nn.Module = object.__new__(type(layer))
        made.__dict__.update(layer.__dict__)
        made.__dict__["_parameters"] = {**layer._parameters, "weight": copy}
        return made

    def refresh(self) -> None:
        """Copy all weights, which were set."""
        if self:
            with torch.no_grad():
                masters, copies = zip(*self._copies.values(), strict=True)
                torch._foreach_copy_(list(copies), list(masters))

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for _, copy in self._copies.values():
            copy.grad = None

    @torch.no_grad()
    def update(self, optimizer: optim.Optimizer, scale: float) -> None:
        """Update the weights whose copies have a gradient; gradients are those
        of the loss times `scale`."""
        from cubemesh.kernels.triton import master_update

        (group,) = optimizer.param_groups
        found = [(master, copy) for master, copy in self._copies.values() if copy.grad is not None]
        if isinstance(optimizer, optim.SGD):
            for master, copy in found:
                velocity = optimizer.state[master]["momentum_buffer"] if group["momentum"] else None
                assert copy.grad is not None
                master_update.sgd(
                    master, copy.grad, copy, velocity, rate=group["lr"],
                    momentum=group["momentum"], decay=group["weight_decay"], scale=scale,
                )  # fmt: skip
            return
        states = [_adam_state(optimizer, master) for master, _ in found]
        if not states:
            return
        torch._foreach_add_([state["step"] for state in states], 1)
        beta1, beta2 = group["betas"]
        step = states[0]["step"].double()
        corrections = torch.stack([1 - beta1**step, (1 - beta2**step).sqrt()]).float()
        for (master, copy), state in zip(found, states, strict=True):
            assert copy.grad is not None
            master_update.adam(
                master, copy.grad, copy, state["exp_avg"], state["exp_avg_sq"], corrections,
                rate=group["lr"], betas=(beta1, beta2), epsilon=group["eps"],
                decay=group["weight_decay"], decoupled=isinstance(optimizer, optim.AdamW),
                scale=scale,
            )  # fmt: skip


def _adam_state(optimizer: optim.Optimizer, master: nn.Parameter) -> Mapping[str, Any]:
    """The optimizer's state of a weight, which PyTorch allocates in its first update."""
    state: dict[str, Any] = optimizer.state[master]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=master.device)
        state["exp_avg"] = torch.zeros_like(master, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(master, memory_format=torch.preserve_format)
    return state
