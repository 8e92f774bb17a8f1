"""Analysis of a topology: rings, bisection, broadcast steps and hops, each computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from cubemesh.errors import CubemeshError
from cubemesh.machines.topology.cuts import Bisection, bisection
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.probed import topology_of
from cubemesh.machines.topology.rings import RingSet, find_rings
from cubemesh.machines.topology.routes import hops
from cubemesh.machines.topology.trees import Step, broadcast_steps
from cubemesh.schema import Machine


@dataclass(frozen=True)
class TopologyAnalysis:
    """A topology with what is computed from its graph when it is first asked for."""

    topology: Topology

    @cached_property
    def rings(self) -> RingSet:
        """Through all of its GPUs."""
        return find_rings(self.topology)

    @cached_property
    def bisection(self) -> Bisection | None:
        """None for a single device."""
        return bisection(self.topology) if len(self.topology.devices) > 1 else None

    @cached_property
    def broadcast(self) -> tuple[Step, ...]:
        """Steps of a broadcast from the first device."""
        return broadcast_steps(self.topology)

    @cached_property
    def max_hops(self) -> int | None:
        """NVLinks between the two GPUs that are farthest apart; None where they do not connect all
        GPUs."""
        names = [node.name for node in self.topology.gpus]
        found = [hops(self.topology, a, b) for a, b in combinations(names, 2)]
        return None if not found or None in found else max(n for n in found if n is not None)


def analysis_of(machine: Machine) -> TopologyAnalysis | None:
    """The topology of a probed machine of two GPUs or more; None where it is not known, for which
    `machine.unknown` has the reason."""
    if len(machine.gpus) < 2:
        return None
    try:
        found = TopologyAnalysis(topology_of(machine))
        _ = found.rings
    except CubemeshError:
        return None
    return found
