"""The parameter server in the memory of a CPU: weights and optimizer on rank 0's host.

    rank r    gradients ─ one flat array ─▶ host memory ── gloo ──▶ row r of one buffer, N × numbers
    rank 0                                     mean of the rows ─▶ optimizer ─▶ weights, on the CPU
    rank r    weights ◀─ one flat array ◀─ host memory ◀─ gloo ──┘

As in the towers of Keras with the model on the CPU (`multi_gpu_model`), whose gradients are
concatenated there (NVIDIA's DGX-1 white paper [001]). Nothing overlaps with the backward pass, and
the server's host makes the update with its own threads. Between GPUs, too, the bytes go through
gloo, which is TCP.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from cubemesh.frameworks.pytorch.distributed.buckets import places
from cubemesh.frameworks.pytorch.distributed.weight_server import MakeOptimizer

SERVER = 0
"""The rank whose CPU has the weights."""


class TorchCpuServer:
    """See `CpuServer`. `own_optimizer` has the current learning rate; `make_optimizer` creates
    another like it."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        own_optimizer: optim.Optimizer,
        make_optimizer: MakeOptimizer,
        rank: int,
        ranks: int,
    ) -> None:
        """Every rank calls this, with the same weights."""
        self._parameters = list(parameters.values())
        self._weights = [parameter.data for parameter in self._parameters]
        first = self._weights[0]
        numbers = sum(weight.numel() for weight in self._weights)
        on_cpu = first.device.type == "cpu"
        self._flat = first.new_empty(numbers)
        """On the rank's device: gradients, then weights."""
        self._views = list(places(self._flat, parameters).values())
        self._host = self._flat
        """The same in the host's memory."""
        if not on_cpu:
            self._host = torch.empty(numbers, dtype=first.dtype, pin_memory=True)
        self._group = dist.new_group(backend="gloo")
        self._own_optimizer = own_optimizer
        self._served: _Served | None = None
        if rank == SERVER:
            self._served = _Served(parameters, self._host, make_optimizer, ranks)

    def step(self) -> None:
        """See `CpuServer`."""
        torch._foreach_copy_(self._views, self._gradients())
        if self._host is not self._flat:
            self._host.copy_(self._flat)
        served = self._served
        dist.gather(
            self._host, None if served is None else served.rows, dst=SERVER, group=self._group
        )
        if served is not None:
            served.update(self._own_optimizer)
            self._host.copy_(served.weights)
        dist.broadcast(self._host, SERVER, group=self._group)
        if self._host is not self._flat:
            self._flat.copy_(self._host)
        torch._foreach_copy_(self._weights, self._views)

    def _gradients(self) -> list[Tensor]:
        return [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in self._parameters
        ]


class _Served:
    """What is on the server alone."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        like: Tensor,
        make_optimizer: MakeOptimizer,
        ranks: int,
    ) -> None:
        gathered = torch.zeros(ranks, like.numel(), dtype=like.dtype)
        self.rows = list(gathered.unbind())
        """The gradients of each rank: one buffer, concatenated."""
        self._gathered, self._gradient = gathered, torch.empty_like(self.rows[0])
        self.weights = torch.empty_like(self.rows[0])
        """All of them, flat."""
        of_server = []
        gradients = places(self._gradient, parameters)
        for name, weight in places(self.weights, parameters).items():
            weight.copy_(parameters[name].data)
            of_server.append(nn.Parameter(weight))
            of_server[-1].grad = gradients[name]
        optimizer = make_optimizer(of_server)
        assert optimizer is not None, "only a program that trains has gradients to apply"
        self._optimizer = optimizer

    def update(self, own_optimizer: optim.Optimizer) -> None:
        """One update with the mean of the rows, at the current learning rate."""
        torch.mean(self._gathered, 0, out=self._gradient)
        pairs = zip(self._optimizer.param_groups, own_optimizer.param_groups, strict=True)
        for group, own in pairs:
            group["lr"] = own["lr"]
        self._optimizer.step()
