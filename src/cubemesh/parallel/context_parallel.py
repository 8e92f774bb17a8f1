"""Context parallelism: several devices divide each sequence; and its mesh with data parallelism.

    data=2 × context=2    replica 0: ranks 0 and 1      replica 1: ranks 2 and 3
                          half of the positions each    the same of other samples
                          └─────────── gradients: mean over all four ranks ──────────┘

The devices of a replica work on the same samples; before each attention they gather its keys and
values (context_layouts.py). Each has all weights. Its loss counts its own positions times the
number of devices, so that the mean of the gradients over all ranks, bucket by bucket as with
all-reduce, is the gradient of one device with the global batch.
"""

from __future__ import annotations

from dataclasses import replace

from cubemesh.frameworks.contract.divided_network import DividedSequence, GatheredKeys
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.activation_memory import ELEMENT_BYTES
from cubemesh.networks.graph import Network
from cubemesh.networks.memory_simulation import Sharding
from cubemesh.parallel.all_reduce import AllReduce
from cubemesh.parallel.context_layouts import divide_sequence
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.spec import ProgramSettings, RunSpec
from cubemesh.schema.work import AccumulatedWork


class ContextParallel(AllReduce):
    """Each rank computes a part of the positions of every sequence."""

    name = "context-parallel"
    summary = (
        "keys and values before each attention, gradients as all-reduce: every rank has a part of "
        "each sequence; data × context parallel"
    )
    needs = "context-parallel"
    same_samples = True
    group_setting = "context_parallel_size"
    tuned = False
    capturable = False
    cost = None

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.group = group
        self.size = group.size

    @classmethod
    def ranks_per_sample(cls, ranks: int, program: ProgramSettings) -> int:
        """The devices that divide each sequence. Unsupported where they do not divide the ranks."""
        size = program.context_parallel_size or ranks
        if ranks > 1 and ranks % size:
            raise Unsupported(
                f"sync=context-parallel: groups of context_parallel_size={size} do not divide "
                f"devices={ranks}. Set context_parallel_size to a divisor of {ranks}, or devices "
                f"to a multiple of {size}."
            )
        return size if ranks > 1 else 1

    @classmethod
    def sharding(cls, spec: RunSpec) -> Sharding | None:
        """Every rank has all gradients in buckets, as with all-reduce."""
        if spec.placement.devices == 1:
            return None
        return Sharding(
            ranks=spec.placement.devices, zero_stage=0, unit_bytes=spec.program.bucket_bytes
        )

    @classmethod
    def memory(cls, spec: RunSpec, network: Network, device: str) -> MemoryForecast:
        """Activations are those of one device with its share of the samples: of all samples of the
        group and its share of their positions. Added are the keys and values that an attention
        saves of all positions, but for its own where nothing else saves those."""
        one = super().memory(spec, network, device)
        size = cls.ranks_per_sample(spec.placement.devices, spec.program)
        if size == 1:
            return one
        divided = divide_sequence(network, size)
        micro = spec.work.accumulation_steps if isinstance(spec.work, AccumulatedWork) else 1
        samples = -(-(spec.batch_per_device or 1) // micro)
        gathered = sum(
            node.shape[0] * node.shape[1] * (size if node.layer.packed else size - 1)
            for node in divided.network.nodes
            if isinstance(node.layer, GatheredKeys)
        )
        more = samples * gathered * ELEMENT_BYTES[spec.program.precision]
        return replace(
            one,
            activation_bytes=one.activation_bytes + more,
            input_bytes=size * one.input_bytes,
        )

    def configure(self, program: ProgramSettings) -> None:
        """Take the size from the spec."""
        self.size = self.ranks_per_sample(self.group.size, program)

    def divide_sequence(self, network: Network) -> DividedSequence:
        """See `ContextParallelSync`."""
        return divide_sequence(network, self.size)
