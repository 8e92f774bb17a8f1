"""Machines: hardware and software of this one, and topologies of this or of a described system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.probe import probe
from cubemesh.machines.topology.analysis import TopologyAnalysis
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.probed import topology_of

__all__ = ["SystemTopology", "probe", "topology"]


@dataclass(frozen=True, kw_only=True)
class SystemTopology:
    """The topology of a system, with its rings, bisection and broadcast."""

    title: str
    system: System | None
    """What the catalogue or a file has; null for this machine."""
    analysis: TopologyAnalysis

    @property
    def topology(self) -> Topology:
        """Devices and links."""
        return self.analysis.topology


def topology(system: str | None = None, *, gpus: Sequence[int] | None = None) -> SystemTopology:
    """The topology of this machine, or of a system: its name in the catalogue, or a .toml, .xml
    (NCCL) or .txt (`nvidia-smi topo -m`) file. `gpus` restricts it to these GPUs.

    UsageError for an unknown name or GPU, DataError for a file or a machine without a topology.
    """
    if system is None:
        machine = probe()
        found, title, graph = None, machine.hostname, topology_of(machine)
    else:
        found = load_system(system)
        title, graph = found.title, found.topology
    if gpus is not None:
        if not graph.gpus:
            raise UsageError(f"{graph.name} has no GPUs to choose from.")
        graph = graph.subset(gpus)
    if found is not None:
        found = replace(found, topology=graph)
    return SystemTopology(title=title, system=found, analysis=TopologyAnalysis(graph))
