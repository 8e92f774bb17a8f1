"""Model parallelism: each device holds and computes a part of the network.

    rank 0  ├ stem layer1 ┤─ value ─▶ rank 1  ├ layer2 layer3 ┤─ value ─▶ rank 2  ├ layer4 … loss ┤
                           ◀ gradient ┘                        ◀ gradient ┘

NVIDIA's DGX-1 with Tesla V100 white paper, section 3.2, describes it next to data parallelism. A
network can be cut between two segments where a single activation crosses and no weights are shared;
the cuts minimize the operations (forward and backward, as counted by networks/cost.py) of the
largest part. Every part computes the whole global batch, so a step equals that of one device, and
one device computes at a time: the gain is memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.cost import costs
from cubemesh.networks.graph import Head, Input, Network, Segment
from cubemesh.networks.memory import forecast, memory_settings
from cubemesh.parallel.strategy import Strategy
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.spec import RunSpec


class ModelParallel(Strategy):
    """Each rank holds and updates the weights of its own part."""

    name = "model-parallel"
    summary = "activations and their gradients: each rank has a part of the network"
    needs = "model-parallel"
    same_samples = True
    profiled = False
    sequential_step = False

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.group = group

    def parts(self, network: Network) -> Sequence[Network]:
        """The part of every rank."""
        return parts(network, self.group.size)

    @classmethod
    def memory(cls, spec: RunSpec, network: Network, device: str) -> MemoryForecast:
        """Of the largest part, with the samples of all devices."""
        if spec.placement.devices == 1:
            return super().memory(spec, network, device)
        found = (
            forecast(part, spec.global_batch or 1, **memory_settings(spec, device, part))
            for part in parts(network, spec.placement.devices)
        )
        return max(found, key=lambda one: one.total_bytes)


def parts(network: Network, devices: int) -> tuple[Network, ...]:
    """`network` in as many parts, each a network whose output is the input of the next; the last
    has the heads. Unsupported where it cannot be cut so often."""
    links = cut_where_possible(network)
    if devices > len(links):
        raise Unsupported(
            f"{network.name} can be cut into {len(links)} parts, and devices={devices} need "
            f"one each{_why_not_more(network)}. Set devices={len(links)}, or another sync."
        )
    flops = [_flops(network, link) for link in links]
    ends = min(
        (
            (*inner, len(links))
            for inner in itertools.combinations(range(1, len(links)), devices - 1)
        ),
        key=lambda ends: max(sum(flops[a:b]) for a, b in itertools.pairwise((0, *ends))),
    )
    runs = [
        [segment for link in links[a:b] for segment in link]
        for a, b in itertools.pairwise((0, *ends))
    ]
    return tuple(_parts(network, runs))


def cut_where_possible(network: Network) -> list[list[Segment]]:
    """The segments in groups; the network can be cut between two groups."""
    links: list[list[Segment]] = [[]]
    for number, segment in enumerate(network.segments, start=1):
        links[-1].append(segment)
        if number < len(network.segments) and not _obstacle(network, number):
            links.append([])
    return links


def crossing(network: Network, number: int) -> list[str]:
    """The activations that cross from the first `number` segments to the others, or to the loss."""
    before = {name for segment in network.segments[:number] for name in segment.nodes}
    later = [node for node in network.nodes if node.name not in before]
    made = before | {i.name for i in network.inputs}
    read = [value for node in later for value in node.inputs]
    read += [head.value for head in network.heads]
    return [value for value in dict.fromkeys(read) if value in made]


def _obstacle(network: Network, number: int) -> str:
    """Why the network cannot be cut after the first `number` segments; empty where it can."""
    after = network.segments[number - 1].name
    values = crossing(network, number)
    fed = [value for value in values if value in {i.name for i in network.inputs}]
    if len(values) != 1 or fed:
        return f"{', '.join(values)} all cross segment '{after}'"
    before = {name for segment in network.segments[:number] for name in segment.nodes}
    owners: dict[str, set[bool]] = {}
    for node in network.nodes:
        for name in node.parameters.values():
            owners.setdefault(name, set()).add(node.name in before)
    shared = [name for name, sides in owners.items() if len(sides) > 1]
    return f"'{shared[0]}' is shared across segment '{after}'" if shared else ""


def _why_not_more(network: Network) -> str:
    """The first reason, as the end of a sentence."""
    obstacles = (_obstacle(network, number) for number in range(1, len(network.segments)))
    first = next(filter(None, obstacles), "")
    return f": {first}" if first else ""


def _flops(network: Network, segments: Sequence[Segment]) -> int:
    """FLOPs per sample of a step in these segments."""
    counted = costs(network)
    return sum(counted[name].total.flops for segment in segments for name in segment.nodes)


def _parts(network: Network, runs: Sequence[Sequence[Segment]]) -> Iterator[Network]:
    done, fed = 0, network.inputs
    for run in runs:
        done += len(run)
        own = {name for segment in run for name in segment.nodes}
        nodes = tuple(node for node in network.nodes if node.name in own)
        heads = network.heads
        passed: tuple[Input, ...] = ()
        if run is not runs[-1]:
            (value,) = crossing(network, done)
            heads = (Head(value=value, target=network.targets[0].name),)
            passed = (Input(name=value, shape=network.shapes[value]),)
        used = {
            name for node in nodes for name in (*node.parameters.values(), *node.state.values())
        }
        yield dataclasses.replace(
            network,
            inputs=fed,
            nodes=nodes,
            parameters={n: p for n, p in network.parameters.items() if n in used},
            state={n: s for n, s in network.state.items() if n in used},
            heads=heads,
            segments=tuple(run),
        )
        fed = passed
