"""Bisection bandwidth: what one half of the GPUs can send to the other half.

The bisection bandwidth: of all ways to halve the GPUs, the smallest maximum flow from one half to
the other, one way, over all links (max-flow min-cut; DGX-1 V100 white paper [002], footnote 4, adds
the links that are split, both directions of them: twice this).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.machines.topology.graph import Topology

MOST_TO_TRY = 12
"""GPUs up to which every way to halve them is tried (462 for 12)."""


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The narrowest way to halve the GPUs."""

    bandwidth_bytes_per_s: float
    """From one half to the other, one way."""
    half: tuple[str, ...]
    """The half with the first GPU."""
    exact: bool
    """Whether every way to halve them was tried; else this is an upper bound."""


def bisection(topology: Topology, gpus: Sequence[int] | None = None) -> Bisection:
    """The bisection bandwidth between these GPUs; with an odd number one half has one more.

    If NVLink joins the GPUs, only NVLink counts. UsageError for fewer than two GPUs.
    """
    names = topology.named(gpus)
    if len(names) < 2:
        raise UsageError(f"A bisection needs 2 GPUs or more; {len(names)} was given.")
    graph = _flow_graph(topology, set(names))
    exact = len(names) <= MOST_TO_TRY
    halves = _all_halves(names) if exact else _neighbouring_halves(names)
    flow, half = min((_flow(graph, half, names), half) for half in halves)
    return Bisection(bandwidth_bytes_per_s=flow, half=half, exact=exact)


def _flow_graph(topology: Topology, names: set[str]) -> Any:
    import networkx

    left_out = {n.name for n in topology.devices} - names if topology.gpus else set()
    links = [x for x in topology.links if not {x.first, x.second} & left_out]
    nvlinks = [link for link in links if link.kind == "nvlink"]
    meshed = networkx.Graph([(x.first, x.second) for x in nvlinks])
    meshed.add_nodes_from(names)
    one_mesh = names <= networkx.node_connected_component(meshed, min(names))
    graph = networkx.DiGraph()
    for link in nvlinks if one_mesh else links:
        for a, b in ((link.first, link.second), (link.second, link.first)):
            before = graph.get_edge_data(a, b, {"capacity": 0.0})["capacity"]
            graph.add_edge(a, b, capacity=before + link.bandwidth_bytes_per_s)
    return graph


def _all_halves(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Every half with the first GPU in it; of an odd number, halves of either size."""
    first, *others = names
    sizes = {len(names) // 2, len(names) - len(names) // 2}
    return [(first, *rest) for size in sorted(sizes) for rest in combinations(others, size - 1)]


def _neighbouring_halves(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Halves of GPUs with neighbouring numbers, around the circle."""
    size = len(names) // 2
    return [
        tuple(sorted((names * 2)[start : start + size], key=names.index))
        for start in range(len(names) // 2 + 1)
    ]


def _flow(graph: Any, half: tuple[str, ...], names: tuple[str, ...]) -> float:
    """From one half to the other, with a source before the one and a sink behind the other."""
    import networkx

    graph = graph.copy()
    for name in names:
        # An edge without a capacity carries any flow.
        graph.add_edge(*((0, name) if name in half else (name, 1)))
    return float(networkx.maximum_flow_value(graph, 0, 1))
