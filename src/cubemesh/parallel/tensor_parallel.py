"""Tensor parallelism: several devices divide each layer; and its mesh with data parallelism.

    data=2 × tensor=2     replica 0: ranks 0 and 1      replica 1: ranks 2 and 3
                          each layer in two parts       the same parts
                          └────────── gradients of a part: mean over ranks 0, 2 and 1, 3

The devices of a replica work on the same samples; within each layer they exchange activations
(tensor_layouts.py has what is divided). After the backward pass each has the gradients of its own
part, which replicas average bucket by bucket as all-reduce does, so the update is that of one
device with the global batch.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cubemesh.frameworks.contract.divided_network import DividedNetwork
from cubemesh.frameworks.contract.gradient_sync import BUCKET_BYTES
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.graph import Network
from cubemesh.parallel.all_reduce import AllReduce
from cubemesh.parallel.tensor_layouts import divide
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.spec import ProgramSettings, RunSpec


class TensorParallel(AllReduce):
    """Each rank holds and updates a part of every divided layer."""

    name = "tensor-parallel"
    summary = "activations, within each layer: every rank has a part of it; data × tensor parallel"
    needs = "tensor-parallel"
    same_samples = True
    group_setting = "tensor_parallel_size"
    tuned = False
    capturable = False
    cost = None
    own_samples = False

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.group = group
        self.size = group.size
        self.sequence: bool | None = None
        self.bucket_bytes: int | None = None

    @classmethod
    def ranks_per_sample(cls, ranks: int, program: ProgramSettings) -> int:
        """The devices that divide each layer. Unsupported where they do not divide the ranks."""
        size = program.tensor_parallel_size or ranks
        if ranks > 1 and ranks % size:
            raise Unsupported(
                f"sync=tensor-parallel: groups of tensor_parallel_size={size} do not divide "
                f"devices={ranks}. Set tensor_parallel_size to a divisor of {ranks}, or devices to "
                f"a multiple of {size}."
            )
        return size if ranks > 1 else 1

    @classmethod
    def memory(cls, spec: RunSpec, network: Network, device: str) -> MemoryForecast:
        """Of a device's parts of the weights, with their gradients and optimizer state. Where the
        positions are divided its activations are those of its share of the samples; elsewhere
        those of all samples of the group are counted, also the ones that are divided."""
        one = super().memory(spec, network, device)
        size = cls.ranks_per_sample(spec.placement.devices, spec.program)
        if size == 1:
            return one
        divided = divide(network, size, spec.program.sequence_parallel)
        share = parameters_of_a_device(divided) / network.parameter_count
        samples = 1 if divided.sequence else size
        return replace(
            one,
            weight_bytes=round(share * one.weight_bytes),
            gradient_bytes=round(share * one.gradient_bytes),
            optimizer_bytes=round(share * one.optimizer_bytes),
            activation_bytes=samples * one.activation_bytes,
            workspace_bytes=samples * one.workspace_bytes,
            input_bytes=size * one.input_bytes,
        )

    def configure(self, program: ProgramSettings) -> None:
        """Take the sizes from the spec."""
        self.size = self.ranks_per_sample(self.group.size, program)
        self.sequence = program.sequence_parallel
        if self.group.size > self.size:
            self.bucket_bytes = program.bucket_bytes or BUCKET_BYTES

    def divide(self, network: Network) -> DividedNetwork:
        """See `TensorParallelSync`."""
        return divide(network, self.size, self.sequence)

    def use_replicas(self, replicas: Group) -> None:
        """See `TensorParallelSync`."""
        self._group = replicas


def parameters_of_a_device(divided: DividedNetwork) -> float:
    """The parameters that each device has."""
    return sum(
        math.prod(spec.shape) / (1 if divided.axes[name] is None else divided.devices)
        for name, spec in divided.network.parameters.items()
    )
