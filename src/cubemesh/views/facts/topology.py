"""Facts, tables and JSON of a topology: links by kind, rings, bisection, broadcast, fat tree."""

from __future__ import annotations

from typing import Any

from cubemesh.machines.catalogue.system import Cluster, System
from cubemesh.machines.topology import NETWORKS, Dragonfly, Link, Topology, lay_out
from cubemesh.machines.topology.analysis import TopologyAnalysis
from cubemesh.machines.topology.routes import describe
from cubemesh.schema import Table
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_number, format_quantity
from cubemesh.untrusted import clean
from cubemesh.views.facts.equipment import equipment_facts
from cubemesh.views.tables import table_of_figures
from cubemesh.views.topology.drawing import bandwidth_words

Facts = tuple[tuple[str, str], ...]


def topology_facts(found: TopologyAnalysis) -> Facts:
    """Rings, bisection and broadcast in words."""
    rings, cut, graph = found.rings, found.bisection, found.topology
    if cut is None:
        return (("rings", "none: a single device"),)
    facts = [
        ("rings", f"{_count(len(rings.rings), 'directed ring')}, {bandwidth_words(rings)}"),
        ("longest hop", f"over {describe(rings.reach or 'system')}"),
        (
            "bisection",
            f"{format_quantity(cut.bandwidth_bytes_per_s, 'B/s')} one way"
            + ("" if cut.exact else " at most")
            + f", between {_numbers(graph, cut.half)} and the others",
        ),
    ]
    if found.max_hops is not None:
        facts.append(("NVLink hops", f"{found.max_hops} at most between two GPUs"))
    sends = "; ".join(
        ", ".join(f"{_bare(a)}→{_bare(b)}" for a, b in step.transfers)
        + f" at {format_quantity(step.slowest_bytes_per_s, 'B/s')}"
        for step in found.broadcast
    )
    facts.append(("broadcast", sends))
    if not rings.complete:
        facts.append(("ring search", f"stopped early; at most {rings.most} rings are possible"))
    return tuple(facts)


def topology_json(found: TopologyAnalysis) -> dict[str, Any]:
    """As data; see docs/topology.md."""
    graph, rings, cut = found.topology, found.rings, found.bisection
    index = {n.name: n.index for n in graph.devices}
    return {
        "name": graph.name,
        "nodes": to_plain(graph.nodes),
        "links": to_plain(graph.links),
        "rings": {
            "count": len(rings.rings),
            "bandwidth_bytes_per_s": rings.bandwidth_bytes_per_s,
            "farthest": rings.reach,
            "most": rings.most,
            "complete": rings.complete,
            "rings": [
                {
                    "order": [index[name] for name in ring.order],
                    "bandwidth_bytes_per_s": ring.bandwidth_bytes_per_s,
                }
                for ring in rings.rings
            ],
        },
        "bisection": None
        if cut is None
        else {
            "bandwidth_bytes_per_s": cut.bandwidth_bytes_per_s,
            "half": [index[name] for name in cut.half],
            "exact": cut.exact,
        },
        "most_hops": found.max_hops,
        "broadcast": [
            {
                "transfers": [[index[a], index[b]] for a, b in step.transfers],
                "slowest_bytes_per_s": step.slowest_bytes_per_s,
            }
            for step in found.broadcast
        ],
        "notes": list(graph.notes),
    }


def link_table(topology: Topology) -> Table:
    """One row for each kind of link."""
    kinds: dict[tuple[str, int], list[Link]] = {}
    for link in topology.links:
        kinds.setdefault((link.name, link.count), []).append(link)
    columns = {"link": "", "count": "", "peak": "GB/s", "NCCL expects": "GB/s", "latency": "µs"}
    rows = []
    for (name, count), links in kinds.items():
        one = links[0]
        sustained = one.sustained_bytes_per_s
        rows.append(
            (
                f"{count} × {name}" if count > 1 else name,
                len(links),
                one.bandwidth_bytes_per_s / 1e9,
                "no figure in NCCL" if sustained is None else sustained / 1e9,
                one.latency_s * 1e6,
            )
        )
    return table_of_figures("Links, one way", columns, rows)


def ring_table(found: TopologyAnalysis) -> Table:
    """One row for each order of GPUs."""
    counts: dict[tuple[str, ...], list[int]] = {}
    for there, back in found.rings.pairs:
        ways = counts.setdefault(there.order, [0, 0])
        ways[0] += 1
        ways[1] += back is not None
    one = found.rings.rings[0].bandwidth_bytes_per_s if found.rings.rings else 0.0
    columns = {"order": "", "forward": "", "backward": "", "bandwidth each": "GB/s"}
    rows = [
        ("–".join(map(_bare, order)), there, back, one / 1e9)
        for order, (there, back) in counts.items()
    ]
    return table_of_figures("Rings", columns, rows)


def system_facts(system: System) -> Facts:
    """The catalogue entry or file of a system."""
    facts = [
        ("name", system.name),
        ("devices", _devices(system)),
        ("processors", _processors(system)),
    ]
    rate = system.network_bytes_per_s
    if rate is not None:
        network = NETWORKS[system.network].name
        facts.append(
            ("network", f"{system.ports} × {network}, {format_quantity(rate, 'B/s')} one way")
        )
    facts += equipment_facts(system)
    facts += list(system.facts.items())
    facts += [("source", source) for source in system.sources]
    return tuple((clean(name), clean(value)) for name, value in facts)


def cluster_shape(cluster: Cluster) -> str:
    """`fat tree` or `dragonfly`."""
    return "fat tree" if cluster.network.dragonfly is None else "dragonfly"


def cluster_facts(cluster: Cluster) -> Facts:
    """A cluster's fat tree or dragonfly in words."""
    tree = lay_out(cluster.systems, cluster)
    levels = "; ".join(
        f"{_count(level.switches, f'{level.name}-level switch', 'es')}, "
        f"{level.ports_used} of {level.switch_ports} ports used"
        for level in tree.levels
    )
    if isinstance(tree, Dragonfly):
        each, groups = tree.shape.systems_per_router, _count(tree.groups, "group")
        place = f"{each} on a router, {tree.shape.systems_per_group} in a group"
        levels = f"{_count(tree.routers, 'router')} in {groups}"
        if tree.groups > 1:
            levels += f", {tree.links_between_groups} links between every two"
    else:
        place = f"{cluster.per_leaf} on a leaf switch"
    facts = [("systems", f"{cluster.systems:,}, {place}"), ("switches", levels)]
    if cluster.oversubscription > 1:
        ratio = f"{format_number(cluster.oversubscription)} links down for each link up"
        facts.append(("oversubscription", ratio))
    reached = "" if tree.taper == 1 else f", 1/{format_number(tree.taper)} of what the ports send"
    return (
        *facts,
        (
            "bisection",
            f"{format_number(tree.bisection_bytes_per_s / 1e9, 4)} GB/s in both directions"
            f"{reached}",
        ),
        (
            "latency",
            f"{format_number(tree.latency_s * 1e6)} µs over {_count(tree.hops, 'switch', 'es')}",
        ),
    )


def cluster_json(cluster: Cluster) -> dict[str, Any]:
    """A cluster's fat tree or dragonfly as data."""
    tree = lay_out(cluster.systems, cluster)
    dragonfly = tree if isinstance(tree, Dragonfly) else None
    return {
        "systems": cluster.systems,
        "network": cluster.network.id,
        "ports_per_system": cluster.ports_per_system,
        "shape": cluster_shape(cluster),
        "systems_per_leaf": (
            tree.design.per_leaf if dragonfly is None else dragonfly.shape.systems_per_router
        ),
        "oversubscription": cluster.oversubscription,
        "groups": None if dragonfly is None else dragonfly.groups,
        "links_between_groups": None if dragonfly is None else dragonfly.links_between_groups,
        "levels": to_plain(tree.levels),
        "bisection_bytes_per_s": tree.bisection_bytes_per_s,
        "taper": tree.taper,
        "latency_s": tree.latency_s,
    }


def _devices(system: System) -> str:
    kind = "GPUs" if system.topology.gpus else "processors"
    what = f" {system.device}" if system.device else f" {kind}, of any kind"
    total = f"; {system.devices * system.cluster.systems:,} in all" if system.cluster else ""
    return f"{system.devices} ×{what}{total}"


def _processors(system: System) -> str:
    count = len(system.topology.of_kind("cpu"))
    return f"{count} × {system.host_device}" if system.host_device else f"{count}, of any kind"


def _numbers(topology: Topology, names: tuple[str, ...]) -> str:
    kind = "GPU" if topology.gpus else "processor"
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(map(_bare, names))}"


def _bare(name: str) -> str:
    """`3` of `gpu3`."""
    return name.removeprefix("gpu").removeprefix("cpu")


def _count(count: int, word: str, plural: str = "s") -> str:
    return f"{count} {word}{'' if count == 1 else plural}"
