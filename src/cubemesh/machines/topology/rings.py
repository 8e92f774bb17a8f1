"""Rings for collectives on the GPUs of a system, and their total bandwidth.

A ring goes through every GPU once and back to the first. As in NCCL (NVIDIA/nccl,
src/graph/search.cc), the search is over NVLink alone first, then with hops over NVLink through one
other GPU of the ring, which forwards (five GPUs of a hybrid cube mesh), then with hops over ever
farther parts of the PCIe tree; the first of these levels with any rings gives the set of the
highest total bandwidth. On NVLink every ring uses single links, on PCIe a ring is as fast as the
narrowest link it goes through. No link is used by more rings, in either direction, than it can
carry: the rings are disjoint.

The search is a backtracking one over Hamiltonian cycles, nearest GPUs first, rings in opposite
directions in pairs first (DGX-1 V100 white paper [002], figure 13: three bidirectional rings). How
many rings there can be at most is known beforehand: every ring crosses every cut between two GPUs,
so the smallest of the maximum flows from the first GPU to each other one bounds them (max-flow
min-cut). A search that reaches the bound ends at once; one that does not ends when all is tried, or
after a fixed number of steps, which makes no difference to the result from one machine to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.routes import REACHES, Arc, Reach, Route, capacities, routes

MOST_STEPS = 12_000
"""GPUs looked at in one search, of which there may be some ten: a twentieth of a second each."""
SHARES = (1, 2, 3, 4)
"""How many hops of a ring may share a PCIe link in one direction."""


@dataclass(frozen=True, kw_only=True)
class Ring:
    """One directed ring: each GPU sends to the next, the last to the first."""

    order: tuple[str, ...]
    routes: tuple[Route, ...]
    """Of each hop, the closing one included."""
    bandwidth_bytes_per_s: float
    """What the ring carries one way along all its hops at once."""


@dataclass(frozen=True, kw_only=True)
class RingSet:
    """Rings that run side by side."""

    rings: tuple[Ring, ...]
    """Those in opposite directions are neighbours."""
    reach: Reach | None
    """The farthest hop any of them makes; None where there are no rings: a single GPU."""
    most: int
    """The bound on their number that the cuts give."""
    complete: bool
    """Whether it is certain that no more rings of this bandwidth fit."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """What all rings carry together: the bus bandwidth they allow a collective at most."""
        return sum(ring.bandwidth_bytes_per_s for ring in self.rings)

    @property
    def forwards(self) -> bool:
        """Whether a hop goes through another GPU of its ring."""
        return any(
            not set(ring.order).isdisjoint(way.nodes[1:-1])
            for ring in self.rings
            for way in ring.routes
        )

    @property
    def pairs(self) -> tuple[tuple[Ring, Ring | None], ...]:
        """Every ring with the one that runs the other way, None where there is none."""
        left = list(self.rings)
        found: list[tuple[Ring, Ring | None]] = []
        while left:
            ring = left.pop(0)
            back = _turned(ring.order)
            other = next((r for r in left if r.order == back), None)
            if other is not None:
                left.remove(other)
            found.append((ring, other))
        return tuple(found)


def find_rings(topology: Topology, gpus: Sequence[int] | None = None) -> RingSet:
    """The rings through these GPUs (all where None is given).

    UsageError for no GPUs, for unknown ones, or where the system's only way from one to another is
    through GPUs that are left out.
    """
    names = topology.named(gpus)
    if len(names) == 1:
        return RingSet(rings=(), reach=None, most=0, complete=True)
    within = topology if gpus is None else topology.subset(gpus) if topology.gpus else topology
    ways = routes(within, names)
    direct = {ends: w for ends, w in ways.items() if w.reach == "nvlink"}
    levels: list[tuple[Reach, dict[tuple[str, str], Route]]] = [
        ("nvlink", direct),
        ("nvlink", _forwarded(names, direct) | direct),
        *((r, {e: w for e, w in ways.items() if _no_farther(w, r)}) for r in REACHES[1:]),
    ]
    for reach, allowed in levels:
        best = RingSet(rings=(), reach=None, most=0, complete=True)
        for speed in _speeds(allowed, reach):
            found = _search(within, names, allowed, speed, best.bandwidth_bytes_per_s)
            best = max(best, found, key=_merit)
        if best.rings:
            return replace(best, reach=reach)
    raise UsageError(f"No ring joins {', '.join(names)} of {topology.name}.")


def _forwarded(
    names: Sequence[str], direct: dict[tuple[str, str], Route]
) -> dict[tuple[str, str], Route]:
    """The widest way through one of these GPUs, of every ordered pair that both have direct ways
    to."""
    found: dict[tuple[str, str], Route] = {}
    for (first, middle), there in direct.items():
        for last in names:
            on = direct.get((middle, last))
            if on is None or last == first:
                continue
            nodes, links = (*there.nodes, *on.nodes[1:]), there.links + on.links
            way = Route(nodes=nodes, links=links, reach="nvlink")
            known = found.get((first, last))
            if known is None or way.bandwidth_bytes_per_s > known.bandwidth_bytes_per_s:
                found[first, last] = way
    return found


def _no_farther(way: Route, reach: Reach) -> bool:
    return REACHES.index(way.reach) <= REACHES.index(reach)


def _merit(found: RingSet) -> tuple[float, int]:
    """Most bandwidth first, to a kilobyte a second; then fewest rings."""
    return round(found.bandwidth_bytes_per_s / 1e3), -len(found.rings)


def _speeds(ways: dict[tuple[str, str], Route], reach: Reach) -> list[float]:
    """The bandwidths to try for a single ring, the highest first."""
    links = {link for way in ways.values() for link in way.links}
    if reach == "nvlink":
        return [min(link.one_bytes_per_s for link in links)] if links else []
    rates = {link.bandwidth_bytes_per_s for link in links if link.kind != "nvlink"}
    return sorted({rate / share for rate in rates for share in SHARES}, reverse=True)


def _search(
    topology: Topology,
    names: tuple[str, ...],
    ways: dict[tuple[str, str], Route],
    speed: float,
    to_beat: float,
) -> RingSet:
    """As many rings of this speed as are found over these ways; none where they could not carry
    more together than `to_beat`."""
    room = {arc: int(rate / speed * (1 + 1e-9)) for arc, rate in capacities(topology).items()}
    used = {arc for way in ways.values() for arc in way.arcs}
    least = int(to_beat / speed * (1 + 1e-9)) + 1
    most = _bound(names, {arc: room[arc] for arc in used}, least)
    orders: list[tuple[str, ...]] = []
    sure = True
    for paired in (True, False) if len(names) > 2 else (False,):
        if len(orders) == most:
            break
        search = _Search(names, ways, dict(room), paired=paired)
        search.run(most // 2 if paired else most)
        sure = not search.gave_up
        there = [[order, _turned(order)] if paired else [order] for order in search.best]
        if sum(map(len, there)) > len(orders):
            orders = [order for both in there for order in both]
    rings = tuple(
        Ring(
            order=order,
            routes=tuple(ways[ends] for ends in _ends(order)),
            bandwidth_bytes_per_s=speed,
        )
        for order in orders
    )
    return RingSet(rings=rings, reach=None, most=most, complete=sure or len(rings) == most)


def _ends(order: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(order, (*order[1:], order[0]), strict=True))


def _turned(order: tuple[str, ...]) -> tuple[str, ...]:
    """The ring in the opposite direction, from the same GPU."""
    return (order[0], *order[:0:-1])


def _bound(names: tuple[str, ...], room: dict[Arc, int], least: int) -> int:
    """The smallest cut between two of the GPUs, in rings; 0 where it is below `least`."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(names)
    for (first, second, _), count in room.items():
        before = graph.get_edge_data(first, second, {"capacity": 0})["capacity"]
        graph.add_edge(first, second, capacity=before + count)
    # What can leave or enter a single GPU often decides; then the flows need not be computed.
    most = min(
        min(graph.out_degree(n, weight="capacity"), graph.in_degree(n, weight="capacity"))
        for n in names
    )
    for other in names[1:]:
        if most < least:
            return 0
        most = min(most, networkx.maximum_flow_value(graph, names[0], other))
    return int(most) if most >= least else 0


class _Search:
    """A backtracking search for several Hamiltonian cycles that share no link beyond its capacity.

    `paired` looks for cycles that are used in both directions.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        ways: dict[tuple[str, str], Route],
        room: dict[Arc, int],
        *,
        paired: bool,
    ) -> None:
        self.names = names
        self.room = room
        self.paired = paired
        self.arcs = {ends: self._arcs(way, paired) for ends, way in ways.items()}
        self.near = {
            a: sorted(
                (b for b in names if (a, b) in ways),
                key=lambda b: (len(ways[a, b].links), names.index(b)),
            )
            for a in names
        }
        self.steps = 0
        self.gave_up = False
        self.best: list[tuple[str, ...]] = []

    @staticmethod
    def _arcs(way: Route, paired: bool) -> tuple[Arc, ...]:
        back = tuple((b, a, kind) for a, b, kind in way.arcs)
        return way.arcs + back if paired else way.arcs

    def run(self, wanted: int) -> None:
        """Leave in `best` as many cycles as are found, `wanted` at most."""
        self._extend([], wanted)

    def _extend(self, found: list[tuple[str, ...]], wanted: int) -> bool:
        """Add cycles to those found, which use their links; whether all are found."""
        if len(found) > len(self.best):
            self.best = list(found)
        if len(found) == wanted:
            return True
        for cycle in self._paths([self.names[0]], found[-1] if found else None):
            if self._extend([*found, cycle], wanted):
                return True
            if self.gave_up:
                break
        return False

    def _paths(self, path: list[str], least: tuple[str, ...] | None) -> Iterator[tuple[str, ...]]:
        """The cycles that begin with `path` and that there is room for, from `least` on; while one
        is yielded it uses its links."""
        if self.gave_up:
            return
        self.steps += 1
        if self.steps > MOST_STEPS:
            self.gave_up = True
            return
        here = path[-1]
        if len(path) == len(self.names):
            if self._counts(path) and self._take(here, path[0]):
                yield tuple(path)
                self._give(here, path[0])
            return
        # Sets of cycles are looked at in one order only, none before the cycle ahead of it.
        start = 0 if least is None else self._rank(here, least[len(path)])
        for rank, there in enumerate(self.near[here][start:], start=start):
            if there not in path and self._take(here, there):
                path.append(there)
                yield from self._paths(path, least if rank == start else None)
                path.pop()
                self._give(here, there)

    def _counts(self, path: list[str]) -> bool:
        """Whether a full path closes; of a cycle and its reverse one counts if both are used."""
        first, last = path[0], path[-1]
        closes = (last, first) in self.arcs
        return closes and not (self.paired and self._rank(first, path[1]) > self._rank(first, last))

    def _rank(self, here: str, there: str) -> int:
        return self.near[here].index(there)

    def _take(self, first: str, second: str) -> bool:
        """Use the way from one GPU to another, if there is room on all of it."""
        if (first, second) not in self.arcs:
            return False
        arcs = self.arcs[first, second]
        for i, arc in enumerate(arcs):
            if not self.room[arc]:
                for used in arcs[:i]:
                    self.room[used] += 1
                return False
            self.room[arc] -= 1
        return True

    def _give(self, first: str, second: str) -> None:
        for arc in self.arcs[first, second]:
            self.room[arc] += 1
