"""Broadcast trees over GPUs, and the double binary tree between systems.

Inside a system: a broadcast in steps, in each of which every GPU that has the data sends it to one
that has not. Whom to send to first decides: the GPUs are halved where the least bandwidth runs
between the halves, the far half is sent to first, so that no two later transfers share the slow
links (DGX-1 V100 white paper [002], figure 11: the wrong order halves the bandwidth of the second
step).

Between systems: two binary trees over the same ranks, each the inner ranks of one being leaves of
the other, so that together they use every rank's bandwidth in both directions (Sanders, Speck and
Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing 35,
2009; NVIDIA/nccl, src/graph/trees.cc).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from cubemesh.errors import UsageError
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.routes import Route, routes, shared_rates

MOST_TO_HALVE = 16
"""GPUs up to which every way to halve them is looked at (6,435 for 16)."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Transfers of a broadcast that run at the same time."""

    transfers: tuple[tuple[str, str], ...]
    """(from, to)."""
    rates_bytes_per_s: tuple[float, ...]
    """What each transfer gets while all of them run."""

    @property
    def slowest_bytes_per_s(self) -> float:
        """The step ends when its slowest transfer does."""
        return min(self.rates_bytes_per_s)


def broadcast_steps(
    topology: Topology, gpus: Sequence[int] | None = None, root: int | None = None
) -> tuple[Step, ...]:
    """The steps that bring data from `root` (the first GPU where None) to all of these GPUs.

    UsageError for no GPUs, unknown ones, or a root that is not among them.
    """
    names = topology.named(gpus)
    start = names[0] if root is None else topology.named([root])[0]
    if start not in names:
        raise UsageError(f"The root {start} is not among the GPUs {', '.join(names)}.")
    ways = routes(topology, names)
    duties: dict[str, tuple[str, ...]] = {start: names}
    steps = []
    while any(len(group) > 1 for group in duties.values()):
        transfers = []
        for holder, group in list(duties.items()):
            if len(group) > 1:
                near, far = _halves(holder, group, ways)
                receiver = min(far, key=lambda g: (-_closeness(ways[holder, g]), far.index(g)))
                transfers.append((holder, receiver))
                duties |= {holder: near, receiver: far}
        steps.append(step(topology, transfers))
    return tuple(steps)


def step(topology: Topology, transfers: Sequence[tuple[str, str]]) -> Step:
    """Transfers that run at the same time, with what each of them gets."""
    return Step(transfers=tuple(transfers), rates_bytes_per_s=shared_rates(topology, transfers))


def double_tree(ranks: int) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """The parent of each of `ranks` ranks in the first and in the second tree; None at the root.

    UsageError for fewer than one rank.
    """
    if ranks < 1:
        raise UsageError(f"A tree needs 1 rank or more; {ranks} were given.")
    first = tuple(_parent(rank, ranks) for rank in range(ranks))
    # For an even number the second tree is the mirror image, for an odd one shifted by a rank.
    if ranks % 2 == 0:
        second = tuple(
            None if (p := first[ranks - 1 - rank]) is None else ranks - 1 - p
            for rank in range(ranks)
        )
    else:
        second = tuple(
            None if (p := first[(rank - 1) % ranks]) is None else (p + 1) % ranks
            for rank in range(ranks)
        )
    return first, second


def _parent(rank: int, ranks: int) -> int | None:
    """In a tree whose leaves are the odd ranks: the lowest set bit is a rank's height."""
    if rank == 0:
        return None
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    return above if above < ranks else rank ^ bit


def _closeness(way: Route) -> float:
    return way.bandwidth_bytes_per_s / len(way.links)


def _halves(
    holder: str, group: tuple[str, ...], ways: Mapping[tuple[str, str], Route]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The holder's half, and the other: where the least runs between the two."""
    others = [g for g in group if g != holder]
    take = len(group) // 2
    if len(group) > MOST_TO_HALVE:
        far = tuple(others[-take:])
    else:
        far = min(
            combinations(others, take),
            key=lambda far: sum(_closeness(ways[a, b]) for a in group if a not in far for b in far),
        )
    return tuple(g for g in group if g not in far), far
