"""Fabric: the links that collectives use between the devices of a system.

Inside a system: the rings through its devices, each at the rate its links sustain while
all hops of all rings use them (NCCL's figure of a link where it has one, else the specification).
Between systems: all network ports of one together. Links are those of `machines/topology`. Without
GPU peer access (`NCCL_P2P_DISABLE=1`, GeForce, across sockets of Broadwell),
a collective goes through the host's memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Literal

from cubemesh.errors import UsageError
from cubemesh.machines.catalogue import datasheets
from cubemesh.machines.catalogue.system import Cluster, System
from cubemesh.machines.topology import Link, RingSet, Topology, find_rings, lay_out, route
from cubemesh.machines.topology.graph import LinkKind
from cubemesh.machines.topology.routes import Route

Over = Literal["nvlink", "pcie"]
Mesh = Literal["nvlink2", "nvlink3", "nvlink4"]
"""NVLink 2 from GPU to GPU, NVLink 3 and 4 through NVSwitches: all-reduce was measured over
these."""
MESHES: dict[tuple[str, bool], Mesh] = {
    ("NVLink 2", False): "nvlink2",
    ("NVLink 3", True): "nvlink3",
    ("NVLink 4", True): "nvlink4",
}
"""(name of the links, whether NVSwitches join them) → the same."""
NO_PEERS_ACROSS = {"Broadwell"}
"""Processors through which NCCL lets no GPU reach another (NVIDIA/nccl, src/graph/paths.cc,
`ncclTopoCheckP2p`: PATH_PXB on Intel, in all its versions on Broadwell)."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """What joins the devices of one job."""

    devices_per_system: int
    systems: int = 1
    local_bytes_per_s: float | None = None
    """Of all rings inside a system together, one way; None for one device a system."""
    pcie_bytes_per_s: float | None = None
    """Of the PCIe links of the same rings only; None over NVLink."""
    sockets_bytes_per_s: float | None = None
    """Likewise of their links between processors; None where they need none."""
    through_host: bool = False
    """Whether the devices do not reach one another's memory."""
    host_architecture: str = ""
    """Of the CPUs, from their datasheet; empty if unknown."""
    local_over: Over = "nvlink"
    local_name: str = ""
    """The kind of link that is narrowest there."""
    mesh: Mesh | None = None
    """Of the NVLinks that the rings use; None for others, and where a GPU forwards."""
    nvlink_bytes_per_s: float | None = None
    """Of all rings together by specification, one way; None unless they use NVLink alone."""
    network_bytes_per_s: float | None = None
    """Of all ports of a system, one way; None for one system."""
    network_latency_s: float = 0.0
    network_name: str = ""
    host_bytes_per_s: float | None = None
    """Of each device to or from the memory of its processor while all of them use their links;
    None for processors, which are there already."""
    host_memory_bytes_per_s: float | None = None
    """Of a processor's memory, from its datasheet; None if unknown."""

    @property
    def devices(self) -> int:
        """All of them."""
        return self.devices_per_system * self.systems


def fabric(system: System, devices: int, peer_access: bool = True) -> Fabric:
    """What joins the first `devices` devices of a system or cluster; with `peer_access` they reach
    one another's memory.

    UsageError for fewer than one, more than there are, or a number that does not fill whole
    systems.
    """
    each, most = system.devices, system.devices
    if system.cluster is not None:
        most *= system.cluster.systems
    if not 1 <= devices <= most:
        raise UsageError(
            f"devices={devices}: {system.name} has {most}, so 1 to {most} are possible. For more, "
            "name a file of a cluster with as many systems (docs/topology.md)."
        )
    systems = -(-devices // each)
    if devices > each and devices % each:
        raise UsageError(
            f"devices={devices} leave a system of {system.name} partly empty: each has {each}. "
            f"Nearest: {devices // each * each} or {systems * each}."
        )
    per_system = min(devices, each)
    cluster = system.cluster if systems > 1 else None
    local = Fabric(devices_per_system=per_system, systems=systems)
    host_rate = _to_host(system.topology, per_system)
    sheet = datasheets().get(system.host_device)
    architecture = "" if sheet is None else sheet.architecture
    if per_system > 1:
        local = _over_rings(local, system.topology)
        crosses = local.sockets_bytes_per_s is not None and local.local_over == "pcie"
        if host_rate and (not peer_access or (crosses and architecture in NO_PEERS_ACROSS)):
            local = _over_host(local, host_rate)
    return replace(
        local,
        network_bytes_per_s=system.network_bytes_per_s if cluster else None,
        network_latency_s=_between_systems_s(cluster, systems) if cluster else 0.0,
        network_name=cluster.network.name if cluster else "",
        host_bytes_per_s=host_rate,
        host_architecture=architecture,
        host_memory_bytes_per_s=None if sheet is None else sheet.value("memory_bytes_per_s"),
    )


def _between_systems_s(cluster: Cluster, systems: int) -> float:
    """Latency between two of so many systems. Of a dragonfly with its routers, which its network's
    latency leaves out; of a fat tree without its switches. An oversubscribed tree is as fast: of
    the ring through the systems of a leaf only two links go up."""
    if cluster.network.dragonfly is None:
        return cluster.network.latency_s
    return lay_out(systems, cluster).latency_s


@lru_cache(maxsize=128)
def _over_rings(on: Fabric, topology: Topology) -> Fabric:
    """With what the rings through the first devices of a system carry."""
    rings = find_rings(topology, [node.index for node in topology.devices[: on.devices_per_system]])
    rate, narrowest = sustained(rings)
    kinds = {link.kind for ring in rings.rings for way in ring.routes for link in way.links}
    nvlink = rings.reach == "nvlink"
    switched = bool(topology.of_kind("nvswitch"))
    return replace(
        on,
        local_bytes_per_s=rate,
        pcie_bytes_per_s=None if nvlink or "pcie" not in kinds else sustained(rings, "pcie")[0],
        sockets_bytes_per_s=sustained(rings, "smp")[0] if "smp" in kinds else None,
        local_over="nvlink" if nvlink else "pcie",
        local_name=narrowest.name or narrowest.kind,
        mesh=None if rings.forwards else MESHES.get((narrowest.name, switched)),
        nvlink_bytes_per_s=rings.bandwidth_bytes_per_s if nvlink else None,
    )


def _over_host(on: Fabric, host_bytes_per_s: float) -> Fabric:
    """Bandwidth limited by each device's path to its processor."""
    return replace(
        on,
        local_bytes_per_s=host_bytes_per_s,
        pcie_bytes_per_s=None,
        sockets_bytes_per_s=None,
        mesh=None,
        nvlink_bytes_per_s=None,
        through_host=True,
        local_over="pcie",
        local_name="the host's memory",
    )


@lru_cache(maxsize=128)
def _to_host(topology: Topology, devices: int) -> float | None:
    """Rate of each of the first devices to its nearest processor while all use their links."""
    cpus = [node.name for node in topology.of_kind("cpu")]
    gpus = [node.name for node in topology.gpus[:devices]]
    if not gpus or not cpus:
        return None
    routes = [
        min((route(topology, g, c) for c in cpus), key=lambda way: len(way.links)) for g in gpus
    ]
    return min(rate for rate, _ in _link_rates(routes, routes))


def sustained(rings: RingSet, kind: LinkKind | None = None) -> tuple[float, Link]:
    """Total bandwidth of rings at the links' sustained rates, and the narrowest link; with a
    `kind`, which some of them have, that of its links only. A ring without any carries what its
    own links do."""
    routes = [way for ring in rings.rings for way in ring.routes]
    total = 0.0
    of_kind: list[tuple[float, Link]] = []
    for ring in rings.rings:
        rates = _link_rates(ring.routes, routes)
        chosen = [r for r in rates if kind in (None, r[1].kind)]
        of_kind += chosen
        slowest, _ = min(chosen or rates, key=itemgetter(0))
        total += min(slowest, ring.bandwidth_bytes_per_s)
    return total, min(of_kind, key=itemgetter(0))[1]


def _link_rates(of: Sequence[Route], routes: Sequence[Route]) -> list[tuple[float, Link]]:
    """(bytes/s, link) of each link of some routes, while all `routes` use theirs."""
    users = Counter(arc for way in routes for arc in way.arcs)
    return [
        ((link.sustained_bytes_per_s or link.bandwidth_bytes_per_s) / users[arc], link)
        for way in of
        for arc, link in zip(way.arcs, way.links, strict=True)
    ]
