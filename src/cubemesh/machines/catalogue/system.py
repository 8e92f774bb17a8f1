"""System: GPUs, CPUs and links of one machine, or a cluster of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.machines.catalogue.datasheet import Datasheet
from cubemesh.machines.catalogue.equipment import DriveGroup, Equipment
from cubemesh.machines.catalogue.load import datasheets
from cubemesh.machines.topology.fat_tree import Design
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.interconnects import NETWORKS


@dataclass(frozen=True, kw_only=True)
class Cluster(Design):
    """A number of systems, joined by a fat tree, or by the dragonfly of their network."""

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
    equipment: Equipment = field(default_factory=Equipment)
    """Memory, drives, power, cooling and price of one system."""
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

    @property
    def sheet(self) -> Datasheet | None:
        """The datasheet of the devices; None where they may be any."""
        return datasheets().get(self.device)

    @property
    def memory_bytes(self) -> float | None:
        """Host memory of one system in bytes; None where no source states it."""
        return self.equipment.memory_bytes

    @property
    def storage(self) -> tuple[DriveGroup, ...]:
        """Drives of one system."""
        return self.equipment.storage

    @property
    def power_watts(self) -> float | None:
        """Maximum power of one whole system in watts."""
        return self.equipment.power_watts

    @property
    def gpu_memory_bytes(self) -> float | None:
        """Memory of all GPUs of one system in bytes; None without GPUs of a known kind."""
        return self._of_all_gpus("memory_bytes")

    @property
    def gpu_memory_bandwidth_bytes_per_s(self) -> float | None:
        """Peak memory bandwidth of all GPUs of one system, in bytes per second."""
        return self._of_all_gpus("memory_bytes_per_s")

    @property
    def host_to_gpu_memory(self) -> float | None:
        """Host memory as a multiple of all GPU memory (`Machine.host_to_gpu_memory`)."""
        host, gpus = self.memory_bytes, self.gpu_memory_bytes
        return None if host is None or gpus is None else host / gpus

    @property
    def gpus_per_port(self) -> float | None:
        """GPUs for each network port; None without either."""
        gpus = len(self.topology.gpus)
        return gpus / self.ports if gpus and self.ports else None

    def _of_all_gpus(self, figure: str) -> float | None:
        each = None if self.sheet is None else self.sheet.value(figure)
        gpus = len(self.topology.gpus)
        return None if each is None or not gpus else gpus * each
