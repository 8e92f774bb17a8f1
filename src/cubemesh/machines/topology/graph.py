"""Topology graph: devices and links of one system, with bandwidths and distances.

Nodes are GPUs, processors, PCIe switches, host bridges, NVSwitches and network adapters; links have
a bandwidth for one way (both ways may be used at once) and a latency. All NVSwitches of a system
are one node, as in NCCL's own graph (NVIDIA/nccl, src/graph/topo.cc): every GPU has the same number
of links to each of them, so they are never the bottleneck before a GPU's own links.

networkx is imported lazily, because its import takes a fifth of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from cubemesh.errors import DataError, UsageError

NodeKind = Literal["gpu", "cpu", "host-bridge", "pcie-switch", "nvswitch", "nic"]
LinkKind = Literal["nvlink", "pcie", "smp"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A device, switch or bridge."""

    name: str
    """`gpu0`, `cpu1`, `switch2`, `nic0`, `nvswitch`."""
    kind: NodeKind
    index: int = 0
    """Among those of its kind, as the system counts them."""
    device: str = ""
    """Its id in the catalogue; empty where that is not known."""
    label: str = ""
    """A label in addition to the name: `mlx5_0`."""
    count: int = 1
    """Number of chips in this node: six NVSwitches are one node."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What joins two nodes: one link, or several of a kind side by side."""

    first: str
    second: str
    kind: LinkKind
    bandwidth_bytes_per_s: float
    """One way, all `count` of them together, by specification."""
    latency_s: float
    count: int = 1
    name: str = ""
    """`NVLink 2`, `PCIe 3 x16`, `QPI`."""
    sustained_bytes_per_s: float | None = None
    """What NCCL's tuning model expects of it one way; None where it has no figure."""

    @property
    def one_bytes_per_s(self) -> float:
        """Bandwidth of one of the parallel links."""
        return self.bandwidth_bytes_per_s / self.count


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A system's graph, checked: ends exist, bandwidths are above zero, all devices are linked.

    DataError for what does not fit; it names the node or link and the field.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    notes: tuple[str, ...] = ()
    """Assumptions made for what the source does not give."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def gpus(self) -> tuple[Node, ...]:
        """The GPUs in the order of their numbers."""
        return self.of_kind("gpu")

    @property
    def devices(self) -> tuple[Node, ...]:
        """What computes: the GPUs, or the processors of a system that has none."""
        return self.gpus or self.of_kind("cpu")

    def of_kind(self, kind: NodeKind) -> tuple[Node, ...]:
        """The nodes of a kind, in the order of their numbers."""
        return tuple(sorted((n for n in self.nodes if n.kind == kind), key=lambda n: n.index))

    def node(self, name: str) -> Node:
        """The node called `name`; KeyError if there is none."""
        found: Node = self.graph.nodes[name]["node"]
        return found

    @cached_property
    def graph(self) -> Any:
        """The same as a `networkx.MultiGraph`: nodes carry `node`, edges `link`, keyed by kind."""
        import networkx

        graph = networkx.MultiGraph(name=self.name)
        for node in self.nodes:
            graph.add_node(node.name, node=node)
        for link in self.links:
            graph.add_edge(link.first, link.second, key=link.kind, link=link)
        return graph

    def links_of(self, name: str, kind: LinkKind | None = None) -> tuple[Link, ...]:
        """The links that end at a node, those of one kind where it is given."""
        return tuple(
            link
            for link in self.links
            if name in (link.first, link.second) and kind in (None, link.kind)
        )

    def named(self, gpus: Iterable[int] | None = None) -> tuple[str, ...]:
        """Names of the devices with these numbers, all where None is given, in rising order.

        UsageError for none, for a number twice, or for one the system does not have.
        """
        names = {node.index: node.name for node in self.devices}
        if gpus is None:
            return tuple(names.values())
        wanted = list(gpus)
        what = "GPU" if self.gpus else "processor"
        if not wanted:
            raise UsageError(f"0 devices are given; {self.name} has {len(names)}.")
        for number in wanted:
            if number not in names:
                known = ", ".join(map(str, names))
                raise UsageError(f"{self.name} has no {what} {number}. It has {what}s {known}.")
        if len(set(wanted)) < len(wanted):
            given = ", ".join(map(str, wanted))
            raise UsageError(f"{what}s {given}: one is named twice. Name each once.")
        return tuple(names[number] for number in sorted(wanted))

    def subset(self, gpus: Sequence[int]) -> Topology:
        """The same system with only these GPUs; UsageError as in `named`."""
        names = set(self.named(gpus))
        removed = {node.name for node in self.gpus} - names
        return Topology(
            name=self.name,
            nodes=tuple(n for n in self.nodes if n.name not in removed),
            links=tuple(x for x in self.links if not {x.first, x.second} & removed),
            notes=self.notes,
        )


def _check(topology: Topology) -> None:
    names = [node.name for node in topology.nodes]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise DataError(f"{topology.name}: there are two nodes called {twice}.")
    if not topology.devices:
        raise DataError(f"{topology.name} has 0 devices: it needs at least a GPU or a processor.")
    seen = set()
    for link in topology.links:
        _check_link(topology.name, link, set(names))
        ends = (frozenset((link.first, link.second)), link.kind)
        if ends in seen:
            between = f"{link.first} and {link.second}"
            raise DataError(f"{topology.name}: {link.kind} between {between} is given twice.")
        seen.add(ends)
    _check_connected(topology)


def _check_link(name: str, link: Link, nodes: set[str]) -> None:
    where = f"{name}, {link.kind} between {link.first} and {link.second}"
    for end in (link.first, link.second):
        if end not in nodes:
            raise DataError(f"{where}: there is no {end}.")
    if link.first == link.second:
        raise DataError(f"{where}: a link needs two ends.")
    if link.count < 1:
        raise DataError(f"{where}: count is {link.count} and must be 1 or more.")
    rates = {"bandwidth_bytes_per_s": link.bandwidth_bytes_per_s}
    if link.sustained_bytes_per_s is not None:
        rates["sustained_bytes_per_s"] = link.sustained_bytes_per_s
    for field, value in rates.items():
        if not (math.isfinite(value) and value > 0):
            raise DataError(f"{where}: {field} is {value} and must be above 0.")
    if not (math.isfinite(link.latency_s) and link.latency_s >= 0):
        raise DataError(f"{where}: latency_s is {link.latency_s} and must be 0 or more.")


def _check_connected(topology: Topology) -> None:
    """Every device must reach every other, over whatever links there are."""
    import networkx

    first, *others = topology.devices
    reached = networkx.node_connected_component(topology.graph, first.name)
    lost = [node.name for node in others if node.name not in reached]
    if lost:
        raise DataError(
            f"{topology.name} is disconnected: no links lead from {first.name} to "
            f"{', '.join(lost)}. Add what joins them, a PCIe switch or a processor."
        )
