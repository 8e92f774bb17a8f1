"""Link construction: a link of a known kind with its speed."""

from __future__ import annotations

from cubemesh.machines.topology import speeds
from cubemesh.machines.topology.graph import Link


def nvlink(first: str, second: str, count: int, generation: int, *, switched: bool = False) -> Link:
    """`count` NVLinks side by side; `switched` where one end is an NVSwitch."""
    return Link(
        first=first,
        second=second,
        kind="nvlink",
        bandwidth_bytes_per_s=speeds.NVLINK_BYTES_PER_S[generation] * count,
        sustained_bytes_per_s=speeds.NVLINK_SUSTAINED_BYTES_PER_S[generation] * count,
        latency_s=speeds.NVLINK_LATENCY_S / (2 if switched else 1),
        count=count,
        name=f"NVLink {generation}",
    )


def pcie(first: str, second: str, generation: int, width: int) -> Link:
    """One PCIe link; DataError for an unknown generation or width."""
    return Link(
        first=first,
        second=second,
        kind="pcie",
        bandwidth_bytes_per_s=speeds.pcie_bytes_per_s(generation, width),
        sustained_bytes_per_s=speeds.pcie_sustained(generation, width),
        latency_s=speeds.PCIE_LATENCY_S,
        name=f"PCIe {generation} x{width}",
    )


def smp(first: str, second: str, kind: str, count: int) -> Link:
    """`count` links between two sockets, of a kind in `speeds.SMP`."""
    found = speeds.SMP[kind]
    return Link(
        first=first,
        second=second,
        kind="smp",
        bandwidth_bytes_per_s=found.bytes_per_s * count,
        sustained_bytes_per_s=found.sustained_bytes_per_s,
        latency_s=speeds.SMP_LATENCY_S,
        count=count,
        name=found.name,
    )
