"""Over what do so many devices of a system talk to one another? What collectives run on.

Inside a system: the rings that are found through its devices, each at what its links sustain while
all hops of all rings use them (NCCL's figure of a link where it has one, else the specification).
Between systems: all network ports of one together. Links are those of `machines/topology`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from cubemesh.errors import UsageError
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.topology import Link, RingSet, find_rings

Over = Literal["nvlink", "pcie"]


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """What joins the devices of one job."""

    devices_per_system: int
    systems: int = 1
    local_bytes_per_s: float | None = None
    """Of all rings inside a system together, one way; None for one device a system."""
    local_over: Over = "nvlink"
    local_name: str = ""
    """The kind of link that is narrowest there."""
    network_bytes_per_s: float | None = None
    """Of all ports of a system, one way; None for one system."""
    network_latency_s: float = 0.0
    network_name: str = ""

    @property
    def devices(self) -> int:
        """All of them."""
        return self.devices_per_system * self.systems


def fabric(system: System, devices: int) -> Fabric:
    """What joins the first `devices` devices of a system or cluster.

    UsageError for fewer than one, more than there are, or a number that does not fill whole
    systems.
    """
    each, most = system.devices, system.devices
    if system.cluster is not None:
        most *= system.cluster.systems
    if not 1 <= devices <= most:
        raise UsageError(
            f"devices={devices}: {system.name} has {most}, so 1 to {most} are possible."
        )
    systems = -(-devices // each)
    if devices > each and devices % each:
        raise UsageError(
            f"devices={devices} leave a system of {system.name} partly empty: each has {each}. "
            f"Nearest: {devices // each * each} or {systems * each}."
        )
    per_system = min(devices, each)
    local, name, over = _local(system, per_system)
    cluster = system.cluster if systems > 1 else None
    return Fabric(
        devices_per_system=per_system,
        systems=systems,
        local_bytes_per_s=local,
        local_over=over,
        local_name=name,
        network_bytes_per_s=system.network_bytes_per_s if cluster else None,
        network_latency_s=cluster.network.latency_s if cluster else 0.0,
        network_name=cluster.network.name if cluster else "",
    )


def _local(system: System, devices: int) -> tuple[float | None, str, Over]:
    """(bytes per second, narrowest link, kind of way) of the rings through the first devices."""
    if devices == 1:
        return None, "", "nvlink"
    numbers = [node.index for node in system.topology.devices[:devices]]
    rings = find_rings(system.topology, numbers)
    rate, narrowest = sustained(rings)
    return rate, narrowest.name or narrowest.kind, "nvlink" if rings.reach == "nvlink" else "pcie"


def sustained(rings: RingSet) -> tuple[float, Link]:
    """What rings carry together at the links' sustained bandwidths, and the narrowest link."""
    users = Counter(arc for ring in rings.rings for way in ring.routes for arc in way.arcs)
    total, narrowest, least = 0.0, None, float("inf")
    for ring in rings.rings:
        shares = [
            ((link.sustained_bytes_per_s or link.bandwidth_bytes_per_s) / users[arc], link)
            for way in ring.routes
            for arc, link in zip(way.arcs, way.links, strict=True)
        ]
        rate, link = min(shares, key=lambda share: share[0])
        total += min(rate, ring.bandwidth_bytes_per_s)
        if rate < least:
            narrowest, least = link, rate
    if narrowest is None:
        raise ValueError("there are no rings")
    return total, narrowest
