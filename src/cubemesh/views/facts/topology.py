"""What is told about a topology, in a terminal, a page or JSON?

Its links by kind, its rings, its bisection, the steps of a broadcast, and for a cluster its fat
tree. Everything is computed from the graph when it is asked for; nothing is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from cubemesh.errors import CubemeshError
from cubemesh.machines.catalogue.system import Cluster, System
from cubemesh.machines.topology import (
    NETWORKS,
    Bisection,
    Link,
    RingSet,
    Step,
    Topology,
    bisection,
    broadcast_steps,
    fat_tree,
    find_rings,
    hops,
)
from cubemesh.machines.topology.probed import topology_of
from cubemesh.machines.topology.routes import describe
from cubemesh.schema import Cell, Column, Machine, Table
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_number, format_quantity
from cubemesh.views.formatting import clean
from cubemesh.views.topology.drawing import bandwidth_words, draw_topology

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Seen:
    """A topology with what is computed of it, each thing once."""

    topology: Topology

    @cached_property
    def rings(self) -> RingSet:
        """Through all of its GPUs."""
        return find_rings(self.topology)

    @cached_property
    def cut(self) -> Bisection | None:
        """None for a single device."""
        return bisection(self.topology) if len(self.topology.devices) > 1 else None

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Of a broadcast from the first device."""
        return broadcast_steps(self.topology)

    @cached_property
    def hops(self) -> int | None:
        """NVLinks between the two GPUs that are farthest apart; None where it does not join all."""
        names = [node.name for node in self.topology.gpus]
        found = [hops(self.topology, a, b) for a, b in combinations(names, 2)]
        return None if not found or None in found else max(n for n in found if n is not None)

    def facts(self) -> Facts:
        """Rings, bisection and the rest in words."""
        rings, cut = self.rings, self.cut
        if cut is None:
            return (("rings", "none: a single device"),)
        facts = [
            ("rings", f"{_count(len(rings.rings), 'directed ring')}, {bandwidth_words(rings)}"),
            ("farthest hop", f"over {describe(rings.reach or 'system')}"),
            (
                "bisection",
                f"{format_quantity(cut.bandwidth_bytes_per_s, 'B/s')} one way"
                + ("" if cut.exact else " at most")
                + f", between {_numbers(self.topology, cut.half)} and the others",
            ),
        ]
        if self.hops is not None:
            facts.append(("NVLink hops", f"{self.hops} at most between two GPUs"))
        sends = "; ".join(
            ", ".join(f"{_bare(a)}→{_bare(b)}" for a, b in step.transfers)
            + f" at {format_quantity(step.slowest_bytes_per_s, 'B/s')}"
            for step in self.steps
        )
        facts.append(("broadcast", sends))
        if not rings.complete:
            facts.append(("search", f"stopped early; {rings.most} rings at most may fit"))
        return tuple(facts)

    def plain(self) -> dict[str, Any]:
        """As data; see docs/topology.md."""
        index = {n.name: n.index for n in self.topology.devices}
        cut = self.cut
        return {
            "name": self.topology.name,
            "nodes": to_plain(self.topology.nodes),
            "links": to_plain(self.topology.links),
            "rings": {
                "count": len(self.rings.rings),
                "bandwidth_bytes_per_s": self.rings.bandwidth_bytes_per_s,
                "farthest": self.rings.reach,
                "most": self.rings.most,
                "complete": self.rings.complete,
                "rings": [
                    {
                        "order": [index[name] for name in ring.order],
                        "bandwidth_bytes_per_s": ring.bandwidth_bytes_per_s,
                    }
                    for ring in self.rings.rings
                ],
            },
            "bisection": None
            if cut is None
            else {
                "bandwidth_bytes_per_s": cut.bandwidth_bytes_per_s,
                "half": [index[name] for name in cut.half],
                "exact": cut.exact,
            },
            "most_hops": self.hops,
            "broadcast": [
                {
                    "transfers": [[index[a], index[b]] for a, b in step.transfers],
                    "slowest_bytes_per_s": step.slowest_bytes_per_s,
                }
                for step in self.steps
            ],
            "notes": list(self.topology.notes),
        }

    def draw(self, *, title: str = "", in_page: bool = False) -> str:
        """As SVG, with its rings."""
        return draw_topology(self.topology, self.rings, title=title, in_page=in_page)


def seen_of(machine: Machine) -> Seen | None:
    """The topology of a probed machine of two GPUs or more; None where it is not known, for which
    `machine.unknown` has the reason."""
    if len(machine.gpus) < 2:
        return None
    try:
        seen = Seen(topology_of(machine))
        _ = seen.rings
    except CubemeshError:
        return None
    return seen


def link_table(topology: Topology) -> Table:
    """One row for each kind of link."""
    kinds: dict[tuple[str, int], list[Link]] = {}
    for link in topology.links:
        kinds.setdefault((link.name, link.count), []).append(link)
    rows = []
    for (name, count), links in kinds.items():
        one = links[0]
        kept = one.sustained_bytes_per_s
        rows.append(
            (
                Cell(text=f"{count} × {name}" if count > 1 else name),
                Cell(value=len(links)),
                Cell(value=one.bandwidth_bytes_per_s / 1e9),
                Cell(reason="NCCL has no figure") if kept is None else Cell(value=kept / 1e9),
                Cell(value=one.latency_s * 1e6),
            )
        )
    return Table(
        title="Links, one way",
        columns=(
            Column(name="link"),
            Column(name="times"),
            Column(name="peak", unit="GB/s"),
            Column(name="NCCL expects", unit="GB/s"),
            Column(name="latency", unit="µs"),
        ),
        rows=tuple(rows),
    )


def ring_table(seen: Seen) -> Table:
    """One row for each order of GPUs."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for there, back in seen.rings.pairs:
        counts = rows.setdefault(there.order, [0, 0])
        counts[0] += 1
        counts[1] += back is not None
    one = seen.rings.rings[0].bandwidth_bytes_per_s if seen.rings.rings else 0.0
    return Table(
        title="Rings",
        columns=(
            Column(name="order"),
            Column(name="that way"),
            Column(name="the other way"),
            Column(name="each", unit="GB/s"),
        ),
        rows=tuple(
            (
                Cell(text="–".join(_bare(name) for name in order)),
                Cell(value=there),
                Cell(value=back),
                Cell(value=one / 1e9),
            )
            for order, (there, back) in rows.items()
        ),
    )


def system_facts(system: System) -> Facts:
    """What the catalogue or a file says of a system."""
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
    facts += list(system.facts.items())
    facts += [("source", source) for source in system.sources]
    return tuple((clean(name), clean(value)) for name, value in facts)


def cluster_facts(cluster: Cluster) -> Facts:
    """A cluster's fat tree in words."""
    tree = fat_tree(cluster.systems, cluster.design())
    levels = "; ".join(
        f"{_count(level.switches, f'{level.name}-level switch', 'es')}, "
        f"{level.ports_used} of {level.switch_ports} ports used"
        for level in tree.levels
    )
    return (
        ("systems", f"{cluster.systems}, {cluster.design().per_leaf} on a leaf switch"),
        ("switches", levels),
        (
            "bisection",
            f"{format_number(tree.bisection_bytes_per_s / 1e9, 4)} GB/s, both ways added",
        ),
        (
            "latency",
            f"{format_number(tree.latency_s * 1e6)} µs over {_count(tree.hops, 'switch', 'es')}",
        ),
    )


def cluster_plain(cluster: Cluster) -> dict[str, Any]:
    """A cluster's fat tree as data."""
    tree = fat_tree(cluster.systems, cluster.design())
    return {
        "systems": cluster.systems,
        "network": cluster.network.id,
        "ports_per_system": cluster.ports_per_system,
        "systems_per_leaf": tree.design.per_leaf,
        "levels": to_plain(tree.levels),
        "bisection_bytes_per_s": tree.bisection_bytes_per_s,
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
