"""Routes between GPUs, and bandwidth sharing between concurrent transfers.

A route is chosen as in NCCL: over NVLink where it joins the two, directly or through NVSwitches,
else over PCIe by the fewest links, between sockets only without a nearer path. It never goes
through another GPU; `hops` counts such forwarding, which a program may do itself. Concurrent
transfers share every link and direction fairly: rates rise together until a link is full, its
transfers stay, and the others rise further (max-min fairness; Bertsekas and Gallager, Data
Networks, section 6.5.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cubemesh.errors import UsageError
from cubemesh.machines.topology.graph import Link, Topology

Reach = Literal["nvlink", "pcie-switch", "host-bridge", "numa-node", "system"]
REACHES: tuple[Reach, ...] = get_args(Reach)
"""The nearest thing that two devices share, the nearest first. What `nvidia-smi topo -m` calls
NV#, PIX or PXB, PHB, NODE, SYS."""

Arc = tuple[str, str, str]
"""A link used one way: (from, to, kind)."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """A way from one node to another, link by link."""

    nodes: tuple[str, ...]
    links: tuple[Link, ...]
    reach: Reach

    @property
    def arcs(self) -> tuple[Arc, ...]:
        """The links with the direction in which they are used."""
        ends = itertools.pairwise(self.nodes)
        return tuple((a, b, link.kind) for (a, b), link in zip(ends, self.links, strict=True))

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Of its narrowest link, one way, while nothing else uses it."""
        return min(link.bandwidth_bytes_per_s for link in self.links)

    @property
    def latency_s(self) -> float:
        """Of all its links together."""
        return sum(link.latency_s for link in self.links)


def route(topology: Topology, first: str, second: str) -> Route:
    """The way from one device to another; UsageError for one and the same, or an unknown name."""
    for name in (first, second):
        if name not in topology.graph:
            known = ", ".join(node.name for node in topology.devices)
            raise UsageError(f"{topology.name} has no {name}. Its devices: {known}.")
    if first == second:
        raise UsageError(f"A route needs two devices; {first} was given twice.")
    for kinds in ({"nvlink"}, {"pcie", "smp"}, {"nvlink", "pcie", "smp"}):
        found = _shortest(topology, first, second, kinds)
        if found is not None:
            return found
    # GPUs joined by other GPUs alone: only forwarding reaches, which no route does.
    raise UsageError(
        f"In {topology.name} {first} reaches {second} only through other GPUs. Give the PCIe "
        "switches and processors of the system as well."
    )


def routes(topology: Topology, names: Sequence[str]) -> dict[tuple[str, str], Route]:
    """The route of every ordered pair of these devices."""
    found = {}
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            there = route(topology, first, second)
            found[first, second] = there
            found[second, first] = Route(
                nodes=there.nodes[::-1], links=there.links[::-1], reach=there.reach
            )
    return found


def hops(topology: Topology, first: str, second: str) -> int | None:
    """NVLinks on the shortest way between two GPUs, forwarding GPUs included; an NVSwitch is no
    stop. None where NVLink does not join them."""
    import networkx

    graph = networkx.Graph()
    for link in topology.links:
        if link.kind == "nvlink":
            graph.add_edge(link.first, link.second, weight=_hop_weight(topology, link))
    if first not in graph or second not in graph:
        return None
    try:
        return int(networkx.shortest_path_length(graph, first, second, weight="weight") / 2)
    except networkx.NetworkXNoPath:
        return None


def shared_rates(topology: Topology, transfers: Sequence[tuple[str, str]]) -> tuple[float, ...]:
    """Bytes per second that each of several transfers (from, to) gets while all of them run."""
    ways = [route(topology, first, second).arcs for first, second in transfers]
    left = capacities(topology)
    rates = [0.0] * len(ways)
    rising = set(range(len(ways)))
    while rising:
        users = {arc: sum(arc in ways[i] for i in rising) for i in rising for arc in ways[i]}
        step = min(left[arc] / count for arc, count in users.items())
        full = {arc for arc, count in users.items() if left[arc] / count <= step * (1 + 1e-12)}
        for i in rising:
            rates[i] += step
        for arc, count in users.items():
            left[arc] -= step * count
        rising = {i for i in rising if not full & set(ways[i])}
    return tuple(rates)


def capacities(topology: Topology) -> dict[Arc, float]:
    """Bytes per second of every link in each direction."""
    return {
        arc: link.bandwidth_bytes_per_s
        for link in topology.links
        for arc in (
            (link.first, link.second, link.kind),
            (link.second, link.first, link.kind),
        )
    }


def _hop_weight(topology: Topology, link: Link) -> int:
    """Two of a link from GPU to GPU, one of a link to an NVSwitch: in and out make a hop."""
    kinds = {topology.node(link.first).kind, topology.node(link.second).kind}
    return 1 if "nvswitch" in kinds else 2


def _shortest(topology: Topology, first: str, second: str, kinds: set[str]) -> Route | None:
    """The way of fewest links of these kinds, of those the widest, that passes no other device;
    None where there is none."""
    import networkx

    stops = {n.name for n in topology.nodes if n.kind in ("gpu", "nic")} - {first, second}
    graph = networkx.Graph()
    best: dict[frozenset[str], Link] = {}
    for link in topology.links:
        ends = frozenset((link.first, link.second))
        if link.kind in kinds and not ends & stops:
            known = best.get(ends)
            if known is None or link.bandwidth_bytes_per_s > known.bandwidth_bytes_per_s:
                best[ends] = link
    for ends, link in best.items():
        # Of ways with equally many links, the one of the highest bandwidth is the shortest.
        graph.add_edge(*ends, weight=1 + 1e-3 / (1 + link.bandwidth_bytes_per_s / 1e9))
    try:
        nodes = networkx.shortest_path(graph, first, second, weight="weight")
    except (networkx.NetworkXNoPath, networkx.NodeNotFound):
        return None
    links = tuple(best[frozenset(pair)] for pair in itertools.pairwise(nodes))
    return Route(nodes=tuple(nodes), links=links, reach=_reach(topology, nodes, links))


def _reach(topology: Topology, nodes: Sequence[str], links: Sequence[Link]) -> Reach:
    kinds = {topology.node(name).kind for name in nodes[1:-1]}
    if all(link.kind == "nvlink" for link in links):
        return "nvlink"
    if any(link.kind == "smp" for link in links):
        return "system"
    if "cpu" in kinds:
        return "numa-node" if "host-bridge" in kinds else "host-bridge"
    return "host-bridge" if "host-bridge" in kinds else "pcie-switch"


def describe(reach: str) -> str:
    """A reach in words."""
    return _WORDS[reach]


_WORDS: Mapping[str, str] = {
    "nvlink": "NVLink",
    "pcie-switch": "a PCIe switch",
    "host-bridge": "a host bridge",
    "numa-node": "a processor",
    "system": "the link between processors",
}
