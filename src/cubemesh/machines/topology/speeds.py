"""Links by kind, with their speeds one way.

NVLink: NVIDIA's white papers of P100 to B200, as the five documents and the published topologies
give them. PCIe: transfers a second × lanes × coding (8b/10b up to generation 2, 128b/130b from 3
on; PCI Express Base Specification). Between sockets: transfers a second × bytes of payload a
transfer × links. The sustained rate of each is that of NCCL's tuning model (NVIDIA/nccl 2.30.7,
src/graph/topo.h). Latencies are that model's hardware latencies of a ring under the LL protocol
(src/graph/tuning.cc), for two links where it goes through a switch: a fallback, off by 6 to 40 %
against measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.errors import DataError
from cubemesh.machines.topology.graph import Link

GB = 1e9

NVLINK_LATENCY_S = 0.6e-6
"""From GPU to GPU; through an NVSwitch half of it on either side."""
PCIE_LATENCY_S = 0.5e-6
"""Of one PCIe link: NCCL's 1 µs is for the shortest way, up to a switch and down again."""
SMP_LATENCY_S = 0.5e-6
"""Between sockets. NCCL has no figure; assumed to be that of a PCIe link."""

NVLINK_BYTES_PER_S = {1: 20 * GB, 2: 25 * GB, 3: 25 * GB, 4: 25 * GB, 5: 50 * GB}
"""Of one link, one way, by generation: P100, V100, A100, H100 and H200, B200."""
NVLINK_SUSTAINED_BYTES_PER_S = {1: 18 * GB, 2: 20 * GB, 3: 20 * GB, 4: 20.6 * GB, 5: 40.1 * GB}
NVLINK_OF_CAPABILITY = {"6.0": 1, "7.0": 2, "8.0": 3, "9.0": 4, "10.0": 5, "10.3": 5}
"""CUDA compute capability → generation of NVLink, of GPUs that are sold with NVLink between more
than two."""

PCIE_TRANSFERS_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9}
PCIE_SUSTAINED_X16_BYTES_PER_S = {3: 12 * GB, 4: 24 * GB, 5: 48 * GB}
PCIE_WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class SocketLink:
    """How two sockets are joined: one link of the kind, one way."""

    name: str
    bytes_per_s: float
    sustained_bytes_per_s: float | None
    """NCCL's figure for GPU traffic across, of all links together."""


SMP: dict[str, SocketLink] = {
    "qpi-9.6": SocketLink(name="QPI", bytes_per_s=9.6e9 * 2, sustained_bytes_per_s=6 * GB),
    "upi-10.4": SocketLink(name="UPI", bytes_per_s=10.4e9 * 2, sustained_bytes_per_s=10 * GB),
    "upi-16": SocketLink(name="UPI 2", bytes_per_s=16e9 * 3, sustained_bytes_per_s=22 * GB),
    "xgmi-16": SocketLink(name="xGMI-2", bytes_per_s=16e9 * 2, sustained_bytes_per_s=16 * GB),
}
"""Broadwell, Skylake, Sapphire Rapids, EPYC 7002."""


def pcie_bytes_per_s(generation: int, width: int) -> float:
    """Bandwidth of a PCIe link, one way; DataError for an unknown generation or width."""
    if generation not in PCIE_TRANSFERS_PER_S:
        known = ", ".join(map(str, PCIE_TRANSFERS_PER_S))
        raise DataError(f"PCIe generation {generation} is not known; known: {known}.")
    if width not in PCIE_WIDTHS:
        known = ", ".join(map(str, PCIE_WIDTHS))
        raise DataError(f"PCIe width {width} is not known; known: {known}.")
    coding = 8 / 10 if generation <= 2 else 128 / 130
    return PCIE_TRANSFERS_PER_S[generation] * width * coding / 8


def nvlink(first: str, second: str, count: int, generation: int, *, switched: bool = False) -> Link:
    """`count` NVLinks side by side; `switched` where one end is an NVSwitch."""
    return Link(
        first=first,
        second=second,
        kind="nvlink",
        bandwidth_bytes_per_s=NVLINK_BYTES_PER_S[generation] * count,
        sustained_bytes_per_s=NVLINK_SUSTAINED_BYTES_PER_S[generation] * count,
        latency_s=NVLINK_LATENCY_S / (2 if switched else 1),
        count=count,
        name=f"NVLink {generation}",
    )


def pcie(first: str, second: str, generation: int, width: int) -> Link:
    """One PCIe link; DataError for an unknown generation or width. NCCL has no sustained bandwidth
    for generations 1 and 2."""
    full = PCIE_SUSTAINED_X16_BYTES_PER_S.get(generation)
    return Link(
        first=first,
        second=second,
        kind="pcie",
        bandwidth_bytes_per_s=pcie_bytes_per_s(generation, width),
        sustained_bytes_per_s=None if full is None else full * width / 16,
        latency_s=PCIE_LATENCY_S,
        name=f"PCIe {generation} x{width}",
    )


def smp(first: str, second: str, kind: str, count: int) -> Link:
    """`count` links between two sockets, of a kind in `SMP`."""
    found = SMP[kind]
    return Link(
        first=first,
        second=second,
        kind="smp",
        bandwidth_bytes_per_s=found.bytes_per_s * count,
        sustained_bytes_per_s=found.sustained_bytes_per_s,
        latency_s=SMP_LATENCY_S,
        count=count,
        name=found.name,
    )
