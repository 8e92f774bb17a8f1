"""Hybrid of data and model parallelism by layer: convolutions data parallel, fully connected layers
model parallel, on the same devices.

    rank 0   conv … pool ┐ own samples         ┌ fc6 ─ ReLU ┐              ┌ fc7 …  some features
                         ├─ gather of samples ─┤            ├─ gather of ──┤        of all samples
    rank 1   conv … pool ┘                     └ fc6 ─ ReLU ┘   features   └ fc7 …

A. Krizhevsky, One weird trick for parallelizing convolutional neural networks, arXiv:1404.5997,
scheme (a) of section 4: convolutions have most operations and few weights, fully connected layers
most weights and few operations. Each device computes the convolutions of its own samples; their
results are gathered, and each device computes some features of every fully connected layer for the
samples of all. Backward, each device gets the gradient of its own samples' results, added up over
the features. Gradients of the convolutions are averaged bucket by bucket as all-reduce does; those
of a fully connected layer are complete where its weights are. So a step is that of one device with
the global batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from cubemesh.frameworks.contract.divided_network import DividedNetwork, Style, ValueLayout
from cubemesh.frameworks.contract.gradient_sync import BUCKET_BYTES
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.activation_memory import ELEMENT_BYTES
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import Convolution, Linear
from cubemesh.parallel.all_reduce import AllReduce
from cubemesh.parallel.tensor_layouts import BY_VALUE, Divider, divisors, fills
from cubemesh.parallel.tensor_parallel import parameters_of_a_device
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.spec import ProgramSettings, RunSpec
from cubemesh.schema.work import AccumulatedWork


class HybridByLayer(AllReduce):
    """Each rank holds the weights of all convolutions, and a part of every fully connected
    layer."""

    name = "hybrid-by-layer"
    summary = "convolutions data parallel, fully connected layers model parallel (Krizhevsky 2014)"
    needs = "hybrid-by-layer"
    collective_passes = True
    tuned = False
    capturable = False
    cost = None
    own_samples = True

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.group = group
        self.size = group.size

    def divide(self, network: Network) -> DividedNetwork:
        """See `TensorParallelSync`."""
        return divide_fully_connected(network, self.size)

    def use_replicas(self, replicas: Group) -> None:
        """See `TensorParallelSync`: convolutions are averaged over all ranks, whatever the rest."""

    def configure(self, program: ProgramSettings) -> None:
        """Take the size of the buckets from the spec."""
        self.bucket_bytes = program.bucket_bytes or BUCKET_BYTES

    @classmethod
    def memory(cls, spec: RunSpec, network: Network, device: str) -> MemoryForecast:
        """With a part of the fully connected weights, their gradients and optimizer state, and the
        values that are gathered of the samples of all devices."""
        one = super().memory(spec, network, device)
        devices = spec.placement.devices
        if devices == 1:
            return one
        divided = divide_fully_connected(network, devices)
        share = parameters_of_a_device(divided) / network.parameter_count
        micro = spec.work.accumulation_steps if isinstance(spec.work, AccumulatedWork) else 1
        samples = devices * -(-(spec.batch_per_device or 1) // micro)
        gathered = samples * gathered_values(divided) * ELEMENT_BYTES[spec.program.precision]
        return replace(
            one,
            weight_bytes=round(share * one.weight_bytes),
            gradient_bytes=round(share * one.gradient_bytes),
            optimizer_bytes=round(share * one.optimizer_bytes),
            activation_bytes=one.activation_bytes + gathered,
        )


def divide_fully_connected(network: Network, devices: int) -> DividedNetwork:
    """`network` with its fully connected layers over so many devices, and everything before them on
    each device's own samples. Unsupported where it has no such layers after convolutions, or their
    features cannot be divided."""
    part = _fully_connected_part(network)
    _check_part(network, part)
    judged = {head.value for head in network.heads}
    judged -= {value for node in network.nodes for value in node.inputs}
    styles: dict[str, Style] = {}
    for node in part.values():
        if not isinstance(node.layer, Linear):
            continue
        features = node.layer.features
        uneven = node.name in judged  # the loss reads each device's own scores
        divides = fills(features, devices) if uneven else features % devices == 0
        if not divides:
            raise Unsupported(
                f"sync={HybridByLayer.name}: the {features} features of {node.name} in "
                f"{network.name} do not divide over devices={devices}. Set devices to one of "
                f"{divisors(features)}, or sync=all-reduce."
            )
        styles[node.name] = "columns"
    return _ByLayer(network, devices, styles, part).divided()


def gathered_values(divided: DividedNetwork) -> int:
    """Values of a sample that each device has of the samples of all, between the layers whose
    features are divided."""
    return sum(
        math.prod(node.shape)
        for node in divided.network.nodes
        if divided.layouts[node.name] == "whole"
    )


def _fully_connected_part(network: Network) -> Mapping[str, Node]:
    """The linear layers after which only vectors are computed, and what reads them, in execution
    order: not those of a squeeze-and-excitation, which convolutions follow."""
    vectors: set[str] = set()
    for node in reversed(network.nodes):
        readers = (other for other in network.nodes if node.name in other.inputs)
        if len(node.shape) == 1 and all(reader.name in vectors for reader in readers):
            vectors.add(node.name)
    part: dict[str, Node] = {}
    for node in network.nodes:
        reads = any(value in part for value in node.inputs)
        if node.name in vectors and (isinstance(node.layer, Linear) or reads):
            part[node.name] = node
    return part


def _check_part(network: Network, part: Mapping[str, Node]) -> None:
    """Unsupported for a network that is not convolutions and then fully connected layers."""
    refused = f"sync={HybridByLayer.name}: {network.name}"
    others = [node for node in network.nodes if node.name not in part]
    if not any(isinstance(node.layer, Convolution) for node in others):
        raise Unsupported(
            f"{refused} has no convolutions to compute data parallel. Set sync=all-reduce, or "
            "tensor-parallel for a network of linear layers."
        )
    undivided = [head.value for head in network.heads if head.value not in part]
    if undivided:
        raise Unsupported(
            f"{refused} does not end in fully connected layers: {undivided[0]} is computed by "
            "other layers, so there is nothing to divide. Set sync=all-reduce."
        )
    elsewhere = {name for node in others for name in node.parameters.values()}
    for node in part.values():
        shared = elsewhere.intersection(node.parameters.values())
        if shared:
            raise Unsupported(
                f"{refused} shares '{min(shared)}' between {node.name} and a layer before the "
                "fully connected part. Set sync=all-reduce."
            )


class _ByLayer(Divider):
    """Nodes before the fully connected part have samples, those within it features."""

    def __init__(
        self,
        network: Network,
        devices: int,
        styles: dict[str, Style],
        part: Mapping[str, Node],
    ) -> None:
        super().__init__(network, devices, styles, inside=set(), packed={}, sequence=False)
        self._part = part
        self._layouts |= dict.fromkeys(self._layouts, "samples")

    def _reads(self, node: Node, style: Style | None) -> ValueLayout:
        if node.name not in self._part:
            return "samples"
        given = {self._layouts[value] for value in node.inputs}
        if style is None and isinstance(node.layer, BY_VALUE) and given == {"features"}:
            return "features"
        return "whole"
