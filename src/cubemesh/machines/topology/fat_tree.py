"""Fat trees: the switches of a cluster, its bisection, and the cost of one more system.

A fat tree: every switch below the top has as many links up as down, so that half of the systems can
talk to the other half at full speed (C. Leiserson, Fat-trees, IEEE Transactions on Computers C-34,
1985). A system's ports all go to one leaf switch. A leaf's links up are spread evenly over the
spine switches; so the number of spines divides the number of links up, and every leaf and every
spine has room for the links between them.

Formulas and figures, DGX-1 V100 white paper [002], table 1 with its notes:

    bisection  = systems × ports × (in + out) ÷ 8 bit × ½   (counts both directions)
    latency    = from system to system + switches on the way × latency of one
    124 × 4 × 200 Gb/s ÷ 8 × ½ = 6,200 GB/s;   1.01 µs + 3 × 0.09 µs = 1.28 µs

The document has 6,012 GB/s: it deducts 64b/66b from a data rate that has it deducted already.

In that document's design (figure 8) leaves take four systems of four ports and 16 links up, so
they, and the spines, use 32 of the 36 ports of an EDR switch: 32 leaves and 16 spines, 128 systems.

An oversubscribed tree has fewer links up than down at its leaves, by the ratio of the two (5/4 on
TACC Stampede: Gawande et al. 2018 [004], section 2.2). The bisection falls by that ratio as soon as
there are several leaves; a ring through the systems in the order of the leaves loses nothing, as
only two of its links leave each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cubemesh.errors import UsageError
from cubemesh.machines.topology.interconnects import Network

MOST_LEVELS = 3
MOST_OVERSUBSCRIPTION = 100


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a cluster's network is built of: a fat tree, or the dragonfly of its network."""

    network: Network
    ports_per_system: int
    switch_ports: int
    """Ports of one switch, at every level."""
    ports_used: int | None = None
    """Ports that are used at most of a switch; all of them where None."""
    systems_per_leaf: int | None = None
    """As many as fit with their links up where None."""
    oversubscription: float = 1.0
    """Links of a leaf down for each link up."""
    links_between_groups: int | None = None
    """Of a dragonfly, between every two groups; as many as its routers have where None."""

    def __post_init__(self) -> None:
        for field in (
            *("ports_per_system", "switch_ports", "ports_used", "systems_per_leaf"),
            "links_between_groups",
        ):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise UsageError(f"{field}={value}: it must be 1 or more.")
        if not 1 <= self.oversubscription <= MOST_OVERSUBSCRIPTION:
            raise UsageError(
                f"oversubscription={self.oversubscription:g}: links down for each link up, from 1 "
                f"to {MOST_OVERSUBSCRIPTION}."
            )
        if self.network.dragonfly is not None:
            self._check_dragonfly()
            return
        if self.links_between_groups is not None:
            raise UsageError(
                f"links_between_groups={self.links_between_groups}: {self.network.name} has no "
                "groups; only a dragonfly does."
            )
        if self.usable > self.switch_ports:
            raise UsageError(
                f"ports_used={self.ports_used}: a switch has {self.switch_ports} ports."
            )
        if self.per_leaf < 1 or self.leaf_ports > self.usable:
            links = "as many links up" if self.oversubscription == 1 else "their links up"
            raise UsageError(
                f"{self.systems_per_leaf or 1} systems of {self.ports_per_system} ports and "
                f"{links} do not fit a switch of {self.usable} usable ports. Use larger "
                "switches, or fewer ports a system."
            )

    def _check_dragonfly(self) -> None:
        if self.oversubscription != 1:
            raise UsageError(
                f"oversubscription={self.oversubscription:g}: {self.network.name} is a dragonfly; "
                "links_between_groups sets its taper."
            )

    @property
    def usable(self) -> int:
        """Ports of a switch that the design uses at most."""
        return self.switch_ports if self.ports_used is None else self.ports_used

    @property
    def per_leaf(self) -> int:
        """Systems on one leaf switch."""
        if self.systems_per_leaf is not None:
            return self.systems_per_leaf
        most = self.usable // self.ports_per_system
        return next((n for n in range(most, 0, -1) if self._ports(n) <= self.usable), 0)

    @property
    def leaf_links(self) -> int:
        """Links of a full leaf up: as many as its systems have down, or fewer by the
        oversubscription."""
        return math.ceil(self.per_leaf * self.ports_per_system / self.oversubscription)

    @property
    def leaf_ports(self) -> int:
        """Ports used of a full leaf."""
        return self._ports(self.per_leaf)

    def _ports(self, systems: int) -> int:
        """Ports of a leaf with so many systems and their links up."""
        down = systems * self.ports_per_system
        return down + math.ceil(down / self.oversubscription)

    def most_systems(self, levels: int) -> int:
        """The most systems on so many levels of switches (1 to 3)."""
        if levels == 1:
            return self.usable // self.ports_per_system
        if levels == 2:
            return self.usable * self.per_leaf
        return (self.usable // 2) * self.usable * self.per_leaf


@dataclass(frozen=True, kw_only=True)
class Level:
    """The switches of one level."""

    name: str
    switches: int
    ports_used: int
    """Of the fullest switch."""
    switch_ports: int
    links_up: int
    """All links from this level to the next one."""


@dataclass(frozen=True, kw_only=True)
class FatTree:
    """A cluster's network, laid out."""

    systems: int
    design: Design
    levels: tuple[Level, ...]
    """The leaves first."""

    @property
    def switches(self) -> int:
        """On all levels together."""
        return sum(level.switches for level in self.levels)

    @property
    def hops(self) -> int:
        """Switches between the two most distant systems."""
        return 2 * len(self.levels) - 1

    @property
    def system_gbit_per_s(self) -> float:
        """Peak of one system's ports, in and out added."""
        return 2 * self.design.ports_per_system * self.design.network.gbit_per_s

    @property
    def bisection_bytes_per_s(self) -> float:
        """Peak between two halves of the systems, both directions added."""
        ports = self.systems * self.design.ports_per_system
        return ports * 2 * self.design.network.port_bytes_per_s / 2 / self.taper

    @property
    def taper(self) -> float:
        """What half of the systems could send, over what reaches the other half."""
        return self.design.oversubscription if len(self.levels) > 1 else 1.0

    @property
    def latency_s(self) -> float:
        """From system to system, over all switches of the longest way."""
        network = self.design.network
        return network.latency_s + self.hops * network.hop_latency_s


def fat_tree(systems: int, design: Design) -> FatTree:
    """Lay out a fat tree for so many systems, on as few levels as possible.

    UsageError for fewer than one system, or more than fit on three levels.
    """
    if systems < 1:
        raise UsageError(f"A cluster needs 1 system or more; {systems} were given.")
    levels = next((n for n in (1, 2, 3) if systems <= design.most_systems(n)), None)
    if levels is None:
        most = design.most_systems(MOST_LEVELS)
        raise UsageError(
            f"{systems:,} systems need more than three levels of {design.usable}-port switches, "
            f"which hold {most:,}. Use larger switches, or fewer ports a system."
        )
    if levels == 1:
        made: tuple[Level, ...] = (
            _level(design, "first", 1, systems * design.ports_per_system, 0),
        )
    else:
        made = _two_levels(systems, design) if levels == 2 else _three_levels(systems, design)
    return FatTree(systems=systems, design=design, levels=made)


def _level(design: Design, name: str, switches: int, used: int, up: int) -> Level:
    return Level(
        name=name,
        switches=switches,
        ports_used=used,
        switch_ports=design.switch_ports,
        links_up=up,
    )


def _two_levels(systems: int, design: Design) -> tuple[Level, ...]:
    leaves = -(-systems // design.per_leaf)
    links = design.leaf_links
    spines = _spread(links, leaves, design.usable)
    return (
        _level(design, "first", leaves, design.leaf_ports, leaves * links),
        _level(design, "second", spines, leaves * (links // spines), 0),
    )


def _three_levels(systems: int, design: Design) -> tuple[Level, ...]:
    """Pods of two levels, each second-level switch with half its ports down to its pod's leaves
    and half up; the third level joins switches of the same place in every pod."""
    leaves = -(-systems // design.per_leaf)
    links, half = design.leaf_links, design.usable // 2
    pods = -(-leaves // half)
    tops = _spread(half, pods, design.usable)
    return (
        _level(design, "first", leaves, design.leaf_ports, leaves * links),
        _level(design, "second", pods * links, 2 * half, pods * links * half),
        _level(design, "third", links * tops, pods * (half // tops), 0),
    )


def _spread(links: int, below: int, ports: int) -> int:
    """The fewest switches over which each of `below` switches can spread its links evenly."""
    return next(n for n in range(1, links + 1) if links % n == 0 and below * (links // n) <= ports)
