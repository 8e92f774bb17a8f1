"""System: GPUs, CPUs and links of one machine, or a cluster of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.machines.topology.fat_tree import Design
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.interconnects import NETWORKS


@dataclass(frozen=True, kw_only=True)
class Cluster(Design):
    """A number of systems, joined by a fat tree."""

    systems: int


@dataclass(frozen=True, kw_only=True)
class System:
    """A system by its vendor's description, with sources."""

    name: str
    """`dgx1-v100`."""
    title: str
    sources: tuple[str, ...]
    topology: Topology
    device: str = ""
    """What computes, as the catalogue of devices calls it; empty where it may be any."""
    host_device: str = ""
    """The processor, likewise."""
    network: str = ""
    """What its network adapters are, an id of NETWORKS; empty where it has none that is known."""
    ports: int = 0
    """Its network ports."""
    cluster: Cluster | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further notes."""

    @property
    def devices(self) -> int:
        """Of one system; times `cluster.systems` where it is a cluster."""
        return len(self.topology.devices)

    @property
    def network_bytes_per_s(self) -> float | None:
        """Peak of all network ports of one system, one way."""
        if self.cluster is not None:
            return self.cluster.ports_per_system * self.cluster.network.port_bytes_per_s
        if not self.network or not self.ports:
            return None
        return self.ports * NETWORKS[self.network].port_bytes_per_s
