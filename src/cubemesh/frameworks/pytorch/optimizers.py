"""Optimizers of a spec: PyTorch's fused ones where available, and LARS.

    sgd       g + decay · w;  v = momentum · v + g;  w −= rate · v      Sutskever et al. 2013
    rmsprop   v = 0.99 v + 0.01 g²;  w −= rate · g / (√v + 1e-8)        Tieleman and Hinton 2012
    adam      betas 0.9 and 0.999, epsilon 1e-8                         Kingma and Ba 2015
    adamw     w −= rate · decay · w;  then as adam, without decay       Loshchilov and Hutter 2019
    adamw-8bit  as adamw, with 8-bit moments (`adamw_8bit.py`)          Dettmers et al. 2022
    lars      v = momentum · v + trust · (g + decay · w);  w −= rate · v     You et al. 2017

In the first three weight decay is added to the gradient. A fused update is one kernel over all
arrays (SGD, Adam, AdamW); RMSprop has none and uses PyTorch's default of a loop or `foreach`.

LARS (You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", arXiv:1708.03888,
algorithm 1): trust = eta · |w| / (|g| + decay · |w|), eta 0.001, norms of the whole array. As in
other implementations, arrays of one axis (biases, weights of normalizations) are excluded from
adaptation and decay: for them, and where a norm is 0, trust is 1. The paper has the rate inside v,
which is the same while the rate is constant.

PyTorch decorates methods of its optimizers with functions that import TorchDynamo, to keep them out
of compiled code. That import takes as long as the one of PyTorch, and no framework here compiles an
update, so `_undecorated` leaves the decorators out.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn, optim

from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.frameworks.pytorch.adamw_8bit import AdamW8bit
from cubemesh.schema.work import NetworkWork, Training

ETA = 0.001
"""The paper's trust coefficient."""
_DECORATED = ("step", "zero_grad", "add_param_group")

Kind = TypeVar("Kind", bound=optim.Optimizer)


def _undecorated(kind: type[Kind]) -> type[Kind]:
    """The optimizer `kind`, which computes the same without importing TorchDynamo."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _DECORATED}
    methods["step"] = torch.no_grad()(methods["step"])
    return cast(type[Kind], type(kind.__name__, (kind,), methods))


_SGD = _undecorated(optim.SGD)
_RMSprop = _undecorated(optim.RMSprop)
_Adam = _undecorated(optim.Adam)
_AdamW = _undecorated(optim.AdamW)
_AdamW8bit = _undecorated(AdamW8bit)


WHOLE_ARRAYS = {"lars": "the norm", "adamw-8bit": "blocks of 256 values"}
"""Optimizers that do not work on a part of an array, and what they need."""


def check_divided_arrays(request: BuildRequest) -> None:
    """Unsupported for settings that a step cannot have where each rank has a part of every
    array."""
    settings, work, sync = request.program, request.work, request.sync.name
    if settings.precision == "fp16" or settings.precision_of:
        raise Unsupported(
            f"sync={sync} supports neither loss scaling nor precision by layer. Set precision=bf16 "
            "or fp32, and leave precision_of out."
        )
    if isinstance(work, Training) and work.optimizer in WHOLE_ARRAYS:
        raise Unsupported(
            f"sync={sync}: optimizer={work.optimizer} needs {WHOLE_ARRAYS[work.optimizer]} of "
            "whole arrays, and each device has a part of them. Set optimizer=sgd, rmsprop, adam or "
            "adamw, or sync=all-reduce."
        )


def make_optimizer(
    work: NetworkWork, parameters: list[nn.Parameter], sparse: Collection[nn.Parameter] = ()
) -> optim.Optimizer | None:
    """The optimizer of `work` over `parameters`, of which some have `sparse` gradients; None for
    work that does not train."""
    if not isinstance(work, Training):
        return None
    kind, settings = optimizer_class(work)
    optimizer: optim.Optimizer
    if sparse:  # whose update is not fused: it changes the rows of the gradient alone
        own = {id(parameter) for parameter in sparse}
        dense = [parameter for parameter in parameters if id(parameter) not in own]
        tables = {"params": list(sparse), "fused": False, "foreach": False}
        optimizer = kind([{"params": dense}, tables], **settings)
    else:
        optimizer = kind(parameters, **settings)
    if work.optimizer == "sgd" and work.momentum:
        # Its first step would allocate them, uninitialized (PyTorch 2.13) when scaled gradients
        # overflow and the step is skipped. From zero the first step is the same.
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def optimizer_class(work: Training) -> tuple[Any, dict[str, Any]]:
    """The class of the optimizer of `work`, and its settings."""
    settings: dict[str, Any] = {"lr": work.learning_rate, "weight_decay": work.weight_decay}
    if work.optimizer == "rmsprop":
        return _RMSprop, settings
    if work.optimizer == "adam":
        return _Adam, {**settings, "fused": True}
    if work.optimizer == "adamw":
        return _AdamW, {**settings, "fused": True}
    own = {"rate": work.learning_rate, "decay": work.weight_decay}
    if work.optimizer == "adamw-8bit":
        return _AdamW8bit, {**own, "small": _AdamW}
    if work.optimizer == "lars":
        return Lars, {**own, "momentum": work.momentum}
    return _SGD, {**settings, "momentum": work.momentum, "fused": True}


@_undecorated
class Lars(optim.Optimizer):
    """LARS over `parameters`. A step works in place on the gradients, without synchronizing: the
    norms stay on the device."""

    def __init__(
        self, parameters: list[nn.Parameter], *, rate: float, momentum: float, decay: float
    ) -> None:
        super().__init__(parameters, {"lr": rate, "momentum": momentum, "decay": decay})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
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
    weight_norms = torch.stack(torch._foreach_norm(weights))
    gradient_norms = torch.stack(torch._foreach_norm(gradients))
    trust = ETA * weight_norms / (gradient_norms + decay * weight_norms)
    trust = torch.where((weight_norms > 0) & (gradient_norms > 0), trust, torch.ones_like(trust))
    if decay:
        torch._foreach_add_(gradients, weights, alpha=decay)
    torch._foreach_mul_(gradients, trust.unbind())


def _gradients(weights: list[Tensor]) -> list[Tensor]:
    return [w.grad for w in weights if w.grad is not None]
