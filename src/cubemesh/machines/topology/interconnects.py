"""Networks between systems: bandwidth and latency of each technology, and its shape if not a tree.

Rates are one way, of one port. Latencies are the vendor's, from system to system and of a switch;
without them NCCL's hardware latency of a network hop (NVIDIA/nccl 2.30.7, src/graph/tuning.cc:
ring, LL), with a note in the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NCCL_LATENCY_S = 2.7e-6
_NCCL = "latency: NCCL's tuning model, a fallback that no maker states"


@dataclass(frozen=True, kw_only=True)
class DragonflyShape:
    """How the routers of a dragonfly network are joined."""

    systems_per_router: int
    routers_per_row: int
    """Routers that are linked all to all: a chassis of Aries."""
    rows_per_group: int
    """Rows whose routers of the same place are linked all to all: the chassis of a group."""
    links_in_column: int
    """Parallel links between two routers of different rows."""
    local_bytes_per_s: float
    """Of one link within a group, one way."""
    global_links: int
    """Links from one group to all others."""
    global_bytes_per_s: float
    """Of one of them, one way."""
    global_latency_s: float
    """Of one of them, in addition to that of the routers."""

    @property
    def routers_per_group(self) -> int:
        """Routers of a full group."""
        return self.routers_per_row * self.rows_per_group

    @property
    def systems_per_group(self) -> int:
        """Systems of a full group."""
        return self.systems_per_router * self.routers_per_group


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network technology: figures of one port."""

    id: str
    name: str
    gbit_per_s: float
    """Data rate of one port, one way, as it is sold: the coding on the wire is already deducted."""
    latency_s: float = NCCL_LATENCY_S
    """From system to system, without the switches where `hop_latency_s` has them."""
    hop_latency_s: float = 0.0
    """Of one switch; 0 where the latency includes it."""
    switch_ports: int
    """Of the switch that is usual for it."""
    dragonfly: DragonflyShape | None = None
    """None where its switches form a fat tree."""
    sources: tuple[str, ...]

    @property
    def port_bytes_per_s(self) -> float:
        """Peak of one port, one way."""
        return self.gbit_per_s * 1e9 / 8


NETWORKS: Mapping[str, Network] = {
    n.id: n
    for n in (
        Network(
            id="10gbe",
            name="10 Gb Ethernet",
            gbit_per_s=10,
            latency_s=5e-6,
            switch_ports=48,
            sources=(
                "DGX-1 V100 white paper [002], table 1: 5 µs over the whole system, no coding "
                "deducted",
            ),
        ),
        Network(
            id="50gbe",
            name="50 Gb Ethernet",
            gbit_per_s=50,
            switch_ports=32,
            sources=(
                "Goyal et al. 2017, arXiv:1706.02677, section 4.1: Mellanox ConnectX-4, 50 Gbit/s",
                "Facebook Wedge 100: 32 ports of 100 Gb/s",
                _NCCL,
            ),
        ),
        Network(
            id="edr",
            name="InfiniBand EDR",
            gbit_per_s=100,
            latency_s=1.01e-6,
            hop_latency_s=0.09e-6,
            switch_ports=36,
            sources=(
                "DGX-1 V100 white paper [002], table 1 and note b; note a deducts 64/66 once more",
                "rate: four lanes of 25.78125 Gb/s on the wire, 25 Gb/s after 64b/66b, "
                "infiniband.jp/2022/06/01",
            ),
        ),
        Network(
            id="hdr",
            name="InfiniBand HDR",
            gbit_per_s=200,
            switch_ports=40,
            sources=(
                "NVIDIA Quantum QM8700: 40 ports of 200 Gb/s",
                "rate: four lanes of 53.125 Gb/s on the wire, 50 Gb/s of data, "
                "infiniband.jp/2022/06/01",
                _NCCL,
            ),
        ),
        Network(
            id="ndr",
            name="InfiniBand NDR",
            gbit_per_s=400,
            switch_ports=64,
            sources=(
                "NVIDIA Quantum-2 QM9700: 64 ports of 400 Gb/s, after error correction",
                _NCCL,
            ),
        ),
        Network(
            id="omni-path",
            name="Intel Omni-Path",
            gbit_per_s=100,
            switch_ports=48,
            sources=(
                "Gawande et al. 2018 [004], section 2.2: 12.5 GB/s a node; figure 14 measures "
                "10 GB/s",
                "Intel Omni-Path Edge Switch 100: 48 ports",
                _NCCL,
            ),
        ),
        Network(
            id="aries",
            name="Cray Aries",
            gbit_per_s=64,
            latency_s=1.2e-6,
            hop_latency_s=0.1e-6,
            switch_ports=48,
            dragonfly=DragonflyShape(
                systems_per_router=4,
                routers_per_row=16,
                rows_per_group=6,
                links_in_column=3,
                local_bytes_per_s=5.25e9,
                global_links=960,
                global_bytes_per_s=4.7e9,
                global_latency_s=0.4e-6,
            ),
            sources=(
                "Gawande et al. 2018 [004], section 2.2: 8 GB/s a node; figure 14 measures 7 GB/s",
                "NERSC, Cori Interconnect: four nodes a router, 16 routers a chassis, six chassis "
                "a group, up to 240 optical cables of four links a group, "
                "docs.nersc.gov/systems/cori/interconnect/",
                "Cray XC Series Network, WP-Aries01-1112: 48-port routers, links of 4.7 to "
                "5.25 GB/s, 0.1 µs a router",
                "latency: B. Austin, Characterization of the Cray Aries Network: 1.3 µs on a "
                "router, 1.5 µs in a group, 2.2 µs between groups, as cited in lanl/PPT, "
                "github.com/lanl/PPT",
            ),
        ),
    )
}
"""All networks of the catalogue, by id."""
