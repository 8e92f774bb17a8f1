"""Drawing of links, rings and nodes in their layout: links first, rings over them, nodes on top."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from cubemesh.machines.topology import Link, Ring, RingSet, Topology
from cubemesh.views.topology.layout import Layout, Place, arc_dip
from cubemesh.views.topology.svg import Drawing, Point, line, number, rounded, shifted

COLOURS = ("c2", "c5", "c1", "c3", "c4", "c6")
"""Colours of the rings, reused cyclically."""
STRAND, SPACING = 3.0, 6.0
"""Width of an NVLink's line, and its distance from the next one."""
PCIE = 1.6

_FILLS: Mapping[str, tuple[str, str, str]] = {
    "gpu": ("accent", "accent", "paper"),
    "cpu": ("wash", "soft", "ink"),
    "host-bridge": ("paper", "soft", "soft"),
    "pcie-switch": ("paper", "soft", "soft"),
    "nic": ("paper", "published", "soft"),
    "nvswitch": ("wash", "accent", "ink"),
}
"""Fill, border and text of a node by its kind."""


def cycled(count: int) -> list[str]:
    """`count` colours of rings."""
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def plain_colour(ringed: bool) -> str:
    """The colour of NVLinks that no ring uses: grey where rings are drawn."""
    return "published" if ringed else "accent"


class Picture:
    """The links, rings and nodes of one topology, in its layout."""

    def __init__(
        self, drawing: Drawing, topology: Topology, layout: Layout, rings: RingSet | None
    ) -> None:
        self.drawing, self.topology, self.layout = drawing, topology, layout
        self.pairs: list[tuple[Ring, Ring | None]] = [] if rings is None else list(rings.pairs)
        orders = list(dict.fromkeys(there.order for there, _ in self.pairs))
        self.colour = dict(zip(orders, cycled(len(orders)), strict=True))

    def _at(self, name: str) -> Point:
        place = self.layout.places[name]
        return place.x, place.y

    def draw(self) -> None:
        """Add everything to the drawing."""
        for link in self.topology.links:
            if link.kind == "smp":
                self._between_sockets(link)
        for link in self.topology.links:
            if link.kind == "pcie":
                self.drawing.path(self._branch(link), "published", PCIE)
        if any(way.reach != "nvlink" for pair in self.pairs for way in pair[0].routes):
            self._around_the_tree()
        if self.topology.of_kind("nvswitch"):
            self._switched()
        else:
            self._strands()
        for node in self.topology.nodes:
            if node.kind != "nvswitch":  # drawn already, below its rings
                self._node(node.name)

    def _branch(self, link: Link) -> str:
        """A link of the PCIe tree; next to a cube the processor's go around it."""
        (x, y), (to_x, to_y) = self._ends(link)
        kinds = {self.topology.node(link.first).kind, self.topology.node(link.second).kind}
        if self.layout.shape == "cube" and "cpu" in kinds and kinds & {"pcie-switch", "nic"}:
            cpu = link.first if self.topology.node(link.first).kind == "cpu" else link.second
            if (to_x, to_y) == self._at(cpu):
                x, y, to_x, to_y = to_x, to_y, x, y
            return rounded([(x, y), (x, to_y), (to_x, to_y)], 18)
        return line([(x, y), (to_x, to_y)])

    def _ends(self, link: Link) -> tuple[Point, Point]:
        """The middles of a link's two nodes, the upper one first; nodes are drawn over them."""
        upper, lower = sorted((link.first, link.second), key=lambda n: (self._at(n)[1], n))
        return self._at(upper), self._at(lower)

    def _between_sockets(self, link: Link) -> None:
        a, b = self.layout.places[link.first], self.layout.places[link.second]
        cpus = [n.name for n in self.topology.of_kind("cpu")]
        if abs(cpus.index(link.first) - cpus.index(link.second)) > 1:
            return  # lines to neighbours suffice; the legend says that all are joined
        if self.layout.shape == "cube":
            low = self.layout.height - 14
            points: list[Point] = [
                (a.x - 26, a.y + a.height / 2),
                (a.x - 26, low),
                (b.x + 26, low),
                (b.x + 26, b.y + b.height / 2),
            ]
            self.drawing.path(rounded(points, 16), "soft", 2, dash="1 5")
        else:
            self.drawing.path(line([(a.x, a.y), (b.x, b.y)]), "soft", 2, dash="1 5")

    def _strands(self) -> None:
        """NVLinks between GPUs, a line each, in the colours of the rings that use them."""
        users: dict[frozenset[str], list[str]] = {}
        for there, _ in self.pairs:
            for way in there.routes:
                if way.reach == "nvlink":
                    ends = frozenset((way.nodes[0], way.nodes[-1]))
                    users.setdefault(ends, []).append(self.colour[there.order])
        links = [link for link in self.topology.links if link.kind == "nvlink"]
        plain = plain_colour(bool(self.pairs))
        colours = {
            link: (used + [plain] * link.count)[: max(link.count, len(used))]
            for link in links
            for used in (users.get(frozenset((link.first, link.second)), []),)
        }
        if self.layout.shape == "cube":
            self._across_the_cube(colours)
        elif colours:
            self._arcs(colours)

    def _across_the_cube(self, colours: Mapping[Link, Sequence[str]]) -> None:
        """Straight from GPU to GPU; those further up first, as if farther away."""
        for link in sorted(colours, key=lambda x: self._at(x.first)[1] + self._at(x.second)[1]):
            for i, colour in enumerate(colours[link]):
                offset = (i - (len(colours[link]) - 1) / 2) * SPACING
                ends = shifted(self._at(link.first), self._at(link.second), offset)
                self.drawing.path(line(ends), colour, STRAND, halo=1.6)

    def _arcs(self, colours: Mapping[Link, Sequence[str]]) -> None:
        """Below the row of GPUs, the farther apart the deeper, without crossings."""
        row = sorted((node.name for node in self.topology.gpus), key=lambda n: self._at(n)[0])
        rank = {name: i for i, name in enumerate(row)}
        ends: list[tuple[str, str, int, str]] = []
        for link, found in colours.items():
            a, b = sorted((link.first, link.second), key=rank.__getitem__)
            ends += [(a, b, i, colour) for i, colour in enumerate(found)]
        ports: dict[tuple[str, str, int], float] = {}
        for name in row:
            # From left to right: near ones on the left, far ones, far ones on the right, near.
            left = sorted((-rank[a], i, a) for a, b, i, _ in ends if b == name)
            right = sorted((-rank[b], -i, b) for a, b, i, _ in ends if a == name)
            order = [(other, abs(i)) for _, i, other in (*left, *right)]
            step = min(SPACING, 48 / max(len(order) - 1, 1))
            for place, (other, i) in enumerate(order):
                ports[name, other, i] = (place - (len(order) - 1) / 2) * step
        y = self.layout.places[row[0]].y + self.layout.places[row[0]].height / 2
        for a, b, i, colour in sorted(ends, key=lambda e: rank[e[0]] - rank[e[1]]):
            x, to_x = self._at(a)[0] + ports[a, b, i], self._at(b)[0] + ports[b, a, i]
            low = number(y + arc_dip(rank[b] - rank[a]) + SPACING * i)
            d = f"M{number(x)} {number(y)}C{number(x)} {low} {number(to_x)} {low} "
            self.drawing.path(d + f"{number(to_x)} {number(y)}", colour, STRAND, halo=1.6)

    def _gpu_xs(self) -> list[float]:
        return [self._at(node.name)[0] for node in self.topology.gpus]

    def _around_the_tree(self) -> None:
        """Rings with hops over PCIe: next to each link, to the right of each direction."""
        ends: dict[frozenset[str], tuple[str, tuple[Point, Point]]] = {}
        for link in self.topology.links:
            if link.kind != "nvlink":
                upper = min((link.first, link.second), key=lambda n: (self._at(n)[1], n))
                ends[frozenset((link.first, link.second))] = (upper, self._ends(link))
        counts: dict[tuple[str, str], int] = {}
        rings = [
            (ring, self.colour[there.order])
            for there, back in self.pairs
            for ring in (there, back)
            if ring is not None
        ]
        for ring, colour in rings:
            for way in ring.routes:
                for first, second, kind in way.arcs:
                    if kind == "pcie":
                        upper, (a, b) = ends[frozenset((first, second))]
                        start, end = (a, b) if first == upper else (b, a)
                        rank = counts[first, second] = counts.get((first, second), 0) + 1
                        self._one_way(start, end, 5.0 + 5.0 * (rank - 1), colour)
                    elif kind == "smp" and self.layout.shape == "tree":
                        self._across(first, second, colour, counts)

    def _across(
        self, first: str, second: str, colour: str, counts: dict[tuple[str, str], int]
    ) -> None:
        rank = counts[first, second] = counts.get((first, second), 0) + 1
        start, end = self._at(first), self._at(second)
        self._one_way(start, end, 5.0 + 5.0 * (rank - 1), colour)

    def _one_way(self, start: Point, end: Point, offset: float, colour: str) -> None:
        start, end = shifted(start, end, offset)
        self.drawing.path(line([start, end]), colour, 2.4)
        angle = math.atan2(end[1] - start[1], end[0] - start[0])
        tip = (start[0] + 0.6 * (end[0] - start[0]), start[1] + 0.6 * (end[1] - start[1]))
        self.drawing.arrow(tip, angle, colour, 5.4)

    def _switched(self) -> None:
        """The links of each GPU to the NVSwitches, and the rings through them."""
        bar = self.layout.places["nvswitch"]
        top = bar.y - bar.height / 2
        orders = list(self.colour)
        for link in self.topology.links:
            if link.kind == "nvlink":
                gpu = link.first if link.second == "nvswitch" else link.second
                place = self.layout.places[gpu]
                start = (place.x, place.y + place.height / 2)
                colour = "line" if orders else "accent"
                self.drawing.path(line([start, (place.x, top)]), colour, 18 if orders else 10)
                self.drawing.text(
                    (place.x + (27 if orders else 22), (start[1] + top) / 2),
                    f"× {link.count}",
                    colour="soft",
                    size=11.5,
                )
        self._node("nvswitch")
        for order in orders[:1]:
            self._through(order, bar)

    def _through(self, order: Sequence[str], bar: Place) -> None:
        """One ring from GPU to GPU, dipping into the bar."""
        colour = self.colour[tuple(order)]
        for first, second in zip(order, (*order[1:], order[0]), strict=True):
            a, b = self.layout.places[first], self.layout.places[second]
            # Out on the right of a GPU and in on the left of the next, so that no two lines meet.
            start = (a.x + 4.5, a.y + a.height / 2)
            end = (b.x - 4.5, b.y + b.height / 2)
            deep = bar.y - 9 if 0 < b.x - a.x < 1.9 * self._nearest() else bar.y + 10
            points = [start, (start[0], deep), (end[0], deep), end]
            self.drawing.path(rounded(points, 12), colour, 2.4)
            self.drawing.arrow((end[0], end[1] + 12), -math.pi / 2, colour, 4.6)

    def _nearest(self) -> float:
        """The distance between neighbours in the row of GPUs."""
        xs = sorted(self._gpu_xs())
        return min((b - a for a, b in itertools.pairwise(xs)), default=1.0)

    def _node(self, name: str) -> None:
        node, place = self.topology.node(name), self.layout.places[name]
        fill, stroke, ink = _FILLS[node.kind]
        words = {
            "gpu": f"GPU {node.index}",
            "cpu": f"CPU {node.index}",
            "host-bridge": "bridge",
            "pcie-switch": "PCIe",
            "nic": f"NIC {node.index}",
            "nvswitch": f"{node.count} × NVSwitch" if node.count > 1 else "NVSwitch",
        }[node.kind]
        self.drawing.box(
            (place.x, place.y),
            (place.width, place.height),
            fill=fill,
            stroke=stroke,
            round_by=8 if node.kind in ("gpu", "cpu", "nvswitch") else 5,
            title=" ".join(filter(None, (words, node.device, node.label))),
        )
        gpu = node.kind == "gpu"
        size = 12.5 if node.kind in ("gpu", "cpu") else 11 if node.kind != "nvswitch" else 12.5
        at = (place.x, place.y)
        if node.kind == "nvswitch" and self.pairs:
            at = (place.x, place.y + 1.5)
        self.drawing.text(at, words, colour=ink, size=size, weight=600 if gpu else 400)
