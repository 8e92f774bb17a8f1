"""Dragonfly networks: groups of routers, all joined to all, their bisection and latency.

A dragonfly (J. Kim et al., Technology-driven, highly-scalable dragonfly topology, ISCA 2008): each
router has some systems; the routers of a group are linked closely, and every two groups by one or
several global links. In a group of Cray Aries the routers form rows and columns (a chassis, and the
same slot of all chassis); routers of a row are linked all to all, and so are those of a column, so
two hops reach any router of the group (Cray XC Series Network, WP-Aries01-1112).

    bisection  = the smaller of systems × port × (in + out) × ½ and of the links that are cut:
                 between groups, half of them × the other half × links between two × (in + out);
                 within one group, the row and column links between its halves
    latency    = from system to system + routers on the way × latency of one
                 + that of a global link where one is crossed

Systems are placed on as few routers, rows and groups as they fit, and only the links between those
count: in a larger machine, adaptive routing may use other routers as well, over twice the links.
Cori: 34 groups and six cables of four links between every two (NERSC, Cori Interconnect).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cubemesh.errors import UsageError
from cubemesh.machines.topology.fat_tree import Design, FatTree, Level, fat_tree
from cubemesh.machines.topology.interconnects import DragonflyShape


@dataclass(frozen=True, kw_only=True)
class Dragonfly:
    """A cluster's dragonfly, laid out."""

    systems: int
    design: Design
    shape: DragonflyShape

    @property
    def routers(self) -> int:
        """Routers that have systems."""
        return math.ceil(self.systems / self.shape.systems_per_router)

    @property
    def groups(self) -> int:
        """Groups that have systems."""
        return math.ceil(self.systems / self.shape.systems_per_group)

    @property
    def links_between_groups(self) -> int:
        """Global links between every two groups; 0 for one group."""
        if self.groups == 1:
            return 0
        return self.design.links_between_groups or self.shape.global_links // (self.groups - 1)

    @property
    def switches(self) -> int:
        """Routers."""
        return self.routers

    @property
    def levels(self) -> tuple[Level, ...]:
        """The routers, as one level of switches."""
        return (
            Level(
                name="first",
                switches=self.routers,
                ports_used=self.design.switch_ports,
                switch_ports=self.design.switch_ports,
                links_up=self.links_between_groups * self.groups * (self.groups - 1) // 2,
            ),
        )

    @property
    def hops(self) -> int:
        """Routers between the two most distant systems."""
        shape = self.shape
        if self.routers == 1:
            return 1
        if self.routers <= shape.routers_per_row:
            return 2
        return 3 if self.groups == 1 else 6

    @property
    def system_gbit_per_s(self) -> float:
        """Peak of one system's ports, in and out added."""
        return 2 * self.design.ports_per_system * self.design.network.gbit_per_s

    @property
    def bisection_bytes_per_s(self) -> float:
        """Peak between two halves of the systems, both directions added."""
        return 2 * min(self._sent_by_half, self._cut_bytes_per_s)

    @property
    def taper(self) -> float:
        """What half of the systems could send, over what reaches the other half."""
        return max(1.0, self._sent_by_half / self._cut_bytes_per_s)

    @property
    def latency_s(self) -> float:
        """From system to system, over all routers of the longest way."""
        network = self.design.network
        crossed = self.shape.global_latency_s if self.groups > 1 else 0.0
        return network.latency_s + self.hops * network.hop_latency_s + crossed

    @property
    def _sent_by_half(self) -> float:
        """One way, of the ports of half of the systems."""
        ports = self.systems * self.design.ports_per_system
        return ports / 2 * self.design.network.port_bytes_per_s

    @property
    def _cut_bytes_per_s(self) -> float:
        """One way, of the links between two halves of the groups, or of one group's routers."""
        shape = self.shape
        if self.groups > 1:
            links = _cut_pairs(self.groups) * self.links_between_groups
            return links * shape.global_bytes_per_s
        if self.routers == 1:
            return math.inf
        rows = math.ceil(self.routers / shape.routers_per_row)
        columns = min(self.routers, shape.routers_per_row)
        cuts = (
            columns * _cut_pairs(rows) * shape.links_in_column,
            rows * _cut_pairs(columns),
        )
        return min(links for links in cuts if links) * shape.local_bytes_per_s


def _cut_pairs(count: int) -> int:
    """Pairs of which one is in either half of so many."""
    return (count // 2) * (count - count // 2)


def lay_out(systems: int, design: Design) -> FatTree | Dragonfly:
    """The network of so many systems: the dragonfly of the design's network, else a fat tree.

    UsageError for fewer than one system, or more than fit.
    """
    shape = design.network.dragonfly
    if shape is None:
        return fat_tree(systems, design)
    if systems < 1:
        raise UsageError(f"A cluster needs 1 system or more; {systems} were given.")
    most = most_systems(design)
    if systems > most:
        groups = most // shape.systems_per_group
        raise UsageError(
            f"{systems:,} systems need more than {groups} groups of {design.network.name}, which "
            f"hold {most:,}. Use fewer links between groups, or another network."
        )
    return Dragonfly(systems=systems, design=design, shape=shape)


def most_systems(design: Design) -> int:
    """The most systems of a design: on three levels of a fat tree, or in the groups of its
    dragonfly, each with the links of the design to every other (at least one)."""
    shape = design.network.dragonfly
    if shape is None:
        return design.most_systems(3)
    return (shape.global_links // (design.links_between_groups or 1) + 1) * shape.systems_per_group
