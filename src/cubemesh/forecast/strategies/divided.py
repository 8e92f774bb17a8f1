"""What devices exchange within a step where they divide each sequence (`context-parallel`) or the
fully connected layers (`hybrid-by-layer`), from the sizes of the messages.

A device computes what one with its share of the samples does. The exchanges below end before the
next layer begins, so that nothing hides them; gradients that several devices have are averaged
in buckets during the backward pass, as with `all-reduce`.

Context parallel, c devices a group, at each attention: an all-gather of keys and values, forward,
and a reduce-scatter of their gradients, backward. Arrays are rearranged around both by PyTorch's
operations (frameworks/pytorch/distributed/context_parallel.py). Of K bytes of own keys and values
and Q of own queries, bytes read and written:

    own keys and values made contiguous                            2 K
    parts of all ranks put in order; samples before positions      2 c K (causal) + 2 c K
    results of both parts joined and transposed                    4 Q (causal)
    backward: of a slice of all keys an array of zeros and a copy, for both parts, and their sum
                                                                   (7 + 1 / c) c K (causal)
    gradients of keys and values joined                            2 c K
    parts put in order for the reduce-scatter                      3 c K (causal), 2 c K
    gradient of the queries' parts joined                          2 Q (causal)
    packed queries, keys and values: slices' zeros and copies, their sum, instead of one join
                                                                   5 (Q + K)

Hybrid by layer, n devices: each change of layout is an all-gather of a value of the samples of all
devices, forward, and a reduce-scatter, backward; the loss takes three all-reduces of a number for
each sample. A fully connected layer has n times the samples and an n-th of the features: the same
operations, an n-th of the weights to update, and no gradient to send. Its operations are those of
DTensors, which cost the host more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cubemesh.forecast.calibration import Calibration, Operation
from cubemesh.forecast.communication import Library, collective
from cubemesh.forecast.fabric import Fabric
from cubemesh.forecast.gradient_sync import SyncTime, sync_time
from cubemesh.forecast.launch_overhead import HostWork
from cubemesh.forecast.passes import Passes
from cubemesh.forecast.strategies.cpu_server import memory_rate
from cubemesh.frameworks.contract.divided_network import (
    DividedNetwork,
    GatheredKeys,
    Redistribution,
)
from cubemesh.networks.activation_memory import ELEMENT_BYTES
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Attention
from cubemesh.parallel.context_layouts import divide_sequence
from cubemesh.parallel.context_parallel import ContextParallel
from cubemesh.parallel.hybrid_by_layer import HybridByLayer, divide_fully_connected
from cubemesh.schema.spec import Precision

WITHIN_LAYERS = (ContextParallel.name, HybridByLayer.name)
"""The strategies forecast here: they divide the work of a layer, not only the samples."""
COPIES = "copies of keys and values"
NUMBER_BYTES = 4
LABEL_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Collectives within the layers of a step, of one kind and size."""

    operation: Operation
    size_bytes: float
    """Of the gathered or summed array."""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class LayerExchanges:
    """What the layers of a step exchange and copy on a device."""

    collectives: tuple[Exchange, ...]
    copied_bytes: float
    """Read and written to rearrange arrays."""


def context_exchanges(
    network: Network, devices: int, samples: int, precision: Precision
) -> LayerExchanges:
    """Of a group of so many devices with so many samples together. Unsupported where the sequences
    do not divide."""
    divided = divide_sequence(network, devices)
    width = ELEMENT_BYTES[precision]
    collectives, copied = [], 0.0
    layers = {node.name: node.layer for node in divided.network.nodes}
    readers = {v: n.name for n in divided.network.nodes for v in n.inputs}
    shapes = {node.name: node.shape for node in divided.network.nodes}
    for node in divided.network.nodes:
        if not isinstance(node.layer, GatheredKeys):
            continue
        whole = samples * math.prod(node.shape) * width
        collectives += [
            Exchange(operation="all-gather", size_bytes=whole),
            Exchange(operation="reduce-scatter", size_bytes=whole),
        ]
        attention = layers[readers[node.name]]
        assert isinstance(attention, Attention)
        queries = samples * math.prod(shapes[readers[node.name]]) * width / devices
        copied += copied_around_attention(
            queries, whole / devices, devices, attention.causal, node.layer.packed
        )
    return LayerExchanges(collectives=tuple(collectives), copied_bytes=copied)


def copied_around_attention(
    queries: float, keys: float, devices: int, causal: bool, packed: bool
) -> float:
    """Bytes read and written around an attention with so many bytes of own queries, and of own
    keys and values."""
    whole = devices * keys
    found = 2 * keys + 2 * whole + 2 * whole + 2 * whole
    if causal:
        found += 2 * whole + 4 * queries + (7 + 1 / devices) * whole + whole + 2 * queries
    return found + (5 * (queries + keys) if packed else 0.0)


def layer_exchanges(divided: DividedNetwork, batch: int, precision: Precision) -> LayerExchanges:
    """Of a hybrid by layer, with so many samples of each device."""
    samples, width = batch * divided.devices, ELEMENT_BYTES[precision]
    found: list[Exchange] = []
    copied = 0.0
    for node in divided.network.nodes:
        if isinstance(node.layer, Redistribution):
            size = samples * math.prod(node.shape) * width
            found += [
                Exchange(operation="all-gather", size_bytes=size),
                Exchange(operation="reduce-scatter", size_bytes=size),
            ]
            if node.layer.source == "features":  # gathered along the last axis, by another copy
                copied += 4 * size
    found += [
        Exchange(operation="all-gather", size_bytes=LABEL_BYTES * samples),
        Exchange(operation="all-reduce", size_bytes=NUMBER_BYTES * samples, count=3),
    ]
    return LayerExchanges(collectives=tuple(found), copied_bytes=copied)


def exchange_time(
    found: LayerExchanges, on: Fabric, known: Calibration, library: Library, bytes_per_s: float
) -> tuple[float, str, float]:
    """(seconds, what bounds them, bytes of messages) on the devices of a group, which copy at so
    many bytes a second."""
    seconds, longest, limit, total = 0.0, 0.0, "", 0.0
    for one in found.collectives:
        each = collective(on, one.operation, one.size_bytes, known, library)
        seconds += one.count * each.seconds
        total += one.count * one.size_bytes
        if each.seconds > longest:
            longest, limit = each.seconds, each.limit
    copied_s = found.copied_bytes / bytes_per_s
    return seconds + copied_s, COPIES if copied_s > seconds else limit, total


def context_time(
    network: Network,
    batch: int,
    precision: Precision,
    *,
    group: Fabric,
    on: Fabric,
    own: Passes,
    known: Calibration,
    library: Library,
    bytes_per_s: float,
) -> SyncTime:
    """Of context parallelism with `batch` samples for each device, in groups like `group` of all
    devices `on`; zero on one device."""
    if on.devices == 1:
        return SyncTime()
    reduced = sync_time("all-reduce", on, own, known, library)
    if group.devices == 1:
        return reduced
    found = context_exchanges(network, group.devices, batch * group.devices, precision)
    return _with_exchanges(reduced, found, group, known, library, bytes_per_s)


def by_layer_time(
    network: Network,
    batch: int,
    precision: Precision,
    *,
    on: Fabric,
    own: Passes,
    known: Calibration,
    library: Library,
    bytes_per_s: float,
) -> SyncTime:
    """Of a hybrid by layer with `batch` samples for each device; zero on one device."""
    if on.devices == 1:
        return SyncTime()
    divided = divide_fully_connected(network, on.devices)
    nodes = [node.name for node in reversed(network.nodes)]
    whole = [divided.layouts[name] == "samples" for name in nodes]
    # The losses come first and have no node.
    sent = [
        gradient if number == 0 or whole[number - 1] else replace(gradient, gradient_bytes=0)
        for number, gradient in enumerate(own.backward)
    ]
    averaged = replace(own, backward=tuple(sent))
    reduced = sync_time("all-reduce", on, averaged, known, library)
    found = layer_exchanges(divided, batch, precision)
    timed = _with_exchanges(reduced, found, on, known, library, bytes_per_s)
    share = averaged.gradient_bytes / own.gradient_bytes
    return replace(timed, update_share=share + (1 - share) / on.devices)


def by_layer_host_work(network: Network, devices: int, known: Calibration) -> HostWork:
    """Seconds of the host in a step of a hybrid by layer, for the operations on DTensors."""
    divided = divide_fully_connected(network, devices)
    forward, backward = [0.0] * len(network.nodes), [0.0] * len(network.nodes)
    place = {node.name: number for number, node in enumerate(network.nodes)}
    number = 0
    for node in divided.network.nodes:
        if isinstance(node.layer, Redistribution):
            forward[number] += known["dtensor_move_forward_s"]
            backward[number] += known["dtensor_move_backward_s"]
            continue
        number = min(place[node.name] + 1, len(network.nodes) - 1)
        if divided.layouts[node.name] != "samples":
            forward[place[node.name]] += known["dtensor_forward_s"]
            backward[place[node.name]] += known["dtensor_backward_s"]
    return HostWork(forward=tuple(forward), backward=tuple(reversed(backward)))


def copy_rate(on: Fabric, known: Calibration, library: Library, device: float) -> float:
    """Bytes/s of copies on a device that attains so many; of processors at most of their host's
    memory, which they share."""
    if library == "nccl":
        return device
    return min(device, memory_rate(on, known) / on.devices_per_system)


def _with_exchanges(
    reduced: SyncTime,
    found: LayerExchanges,
    group: Fabric,
    known: Calibration,
    library: Library,
    bytes_per_s: float,
) -> SyncTime:
    seconds, limit, sent = exchange_time(found, group, known, library, bytes_per_s)
    visible_s = reduced.exposed_s + reduced.slowdown_s
    return replace(
        reduced,
        exposed_s=reduced.exposed_s + seconds,
        busy_s=reduced.busy_s + seconds,
        limit=limit if seconds > visible_s else reduced.limit,
        bytes=reduced.bytes + round(sent),
    )
