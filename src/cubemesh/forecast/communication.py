"""Time of a collective, by message size, on the devices of a system.

From a measured sweep where the calibration has one for this collective and device count, with
straight lines between logarithms. Else from bandwidths and latencies, for n devices in N systems of
g, an array of S bytes, rings of B bytes per second and h seconds a step (R. Rabenseifner, 2004;
NVIDIA/nccl, src/graph/tuning.cc):

    ring          all-reduce        t = base + 2 (n - 1) h + (2 (n - 1) + fill) S / (n B)
                  gather, scatter   t = base + (n - 1) h + (n - 1 + fill) S / (n B)
                  broadcast, reduce t = base + (n - 1) h + S / B
    tree          all-reduce        t = base + 2 (g - 1) h + 2 log2(N) h_net + 2 S / (0.92 B)
    hierarchical  reduce-scatter in each system, all-reduce between them over all their ports,
                  all-gather in each system
    fitted        all-reduce in one system over NVLinks that it was measured over, of L bytes per
                  second by specification, of which a share is reached; a part `fill` of the
                  array's time over L is not overlapped:
                  t = start + 2 (n - 1) h + (2 (n - 1) / (n share) + fill) S / L

A step from system to system takes the library's own time and the network's latency besides, as
NCCL adds what a network card states. `fill` is the part of a step that the last receive does not
overlap (`ring_fill_steps`). The fastest is used, as a library chooses. Through the host's memory
NCCL's kernels write and read buffers there themselves, far below what the links carry, and on AMD's
Zen 2 slower still (`host_factor`). gloo runs rings over TCP. Sizes and bus bandwidths are those of
nccl-tests (doc/PERFORMANCE.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cubemesh.errors import UsageError, unknown_name
from cubemesh.forecast.calibration import OPERATIONS, Calibration, Operation, Origin
from cubemesh.forecast.fabric import Fabric, Mesh

Library = Literal["nccl", "gloo"]
Algorithm = Literal["measured", "none", "ring", "tree", "hierarchical"]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective: its time, how it would run, and what bounds it."""

    seconds: float
    algorithm: Algorithm
    limit: str
    """`latency`, or the slowest link."""
    origin: Origin
    source: str


def collective(
    on: Fabric,
    operation: Operation,
    size_bytes: float,
    calibration: Calibration,
    library: Library = "nccl",
) -> Collective:
    """The time of `operation` on an array of `size_bytes`; 0 s on one device.

    UsageError for an unknown operation or library, or a size that is not above 0.
    """
    if operation not in OPERATIONS:
        raise unknown_name("collective", operation, OPERATIONS)
    if library not in ("nccl", "gloo"):
        raise unknown_name("library", library, ("nccl", "gloo"), plural="libraries")
    if not (math.isfinite(size_bytes) and size_bytes > 0):
        raise UsageError(f"size_bytes={size_bytes} must be above 0.")
    if on.devices == 1:
        source = "one device does not synchronize"
        return Collective(seconds=0.0, algorithm="none", limit="", origin="assumed", source=source)
    sweep = calibration.sweep(operation, on.devices)
    if sweep is not None:
        return Collective(
            seconds=sweep.at(size_bytes),
            algorithm="measured",
            limit=_narrowest(on),
            origin="measured",
            source=sweep.source,
        )
    ways = _Ways(on, operation, calibration, library)
    latency_s, moving_s, algorithm, link = min(
        ways.candidates(operation, size_bytes), key=lambda way: way[0] + way[1]
    )
    return Collective(
        seconds=latency_s + moving_s,
        algorithm=algorithm,
        limit="latency" if latency_s > moving_s else link,
        origin="assumed",
        source=f"bandwidths of the links; {ways.source}",
    )


def host_factor(on: Fabric) -> str:
    """The factor of a calibration for NCCL's bandwidth through the memory of this host."""
    old = on.host_architecture == "Zen 2"
    return "host_exchange_zen2_bytes_per_s" if old else "host_exchange_bytes_per_s"


def _narrowest(on: Fabric) -> str:
    local, network = on.local_bytes_per_s, on.network_bytes_per_s
    return on.network_name if network and (not local or network < local) else on.local_name


Way = tuple[float, float, Algorithm, str]
"""(latency, seconds of moving bytes, algorithm, narrowest link)."""


class _Ways:
    """The ways to run a collective, with a library's figures."""

    def __init__(
        self, on: Fabric, operation: Operation, calibration: Calibration, library: Library
    ) -> None:
        self.on, self.known = on, calibration
        self.nccl = library == "nccl"
        gloo = not self.nccl
        self.base_s = 0.0 if gloo else calibration["ring_base_s"]
        self.local_s = calibration["gloo_step_s" if gloo else f"ring_hop_{on.local_over}_s"]
        network_s = calibration["gloo_step_s" if gloo else "ring_hop_network_s"]
        self.network_s = network_s + on.network_latency_s
        self.fill = calibration["ring_fill_steps"]
        self.local = on.local_bytes_per_s
        if on.pcie_bytes_per_s and self.nccl:
            # NCCL's figure for links between processors is what was reached there already.
            share = calibration["pcie_share"] * on.pcie_bytes_per_s
            self.local = min(share, on.sockets_bytes_per_s or math.inf)
        if on.through_host and self.nccl:
            self.local = min(calibration[host_factor(on)], self.local or math.inf)
        if gloo and on.devices_per_system > 1:
            self.local = calibration["gloo_local_bytes_per_s"]
        self.network = on.network_bytes_per_s
        if self.network and (gloo or "Ethernet" in on.network_name):
            self.network *= calibration["tcp_efficiency"]
        fitted = operation == "all-reduce" and self.nccl and on.systems == 1
        self.mesh = on.mesh if fitted else None
        named = "ring_base_s" if self.nccl else "gloo_step_s"
        if self.mesh:
            named = f"{self.mesh}_start_s"
        self.source = f"latencies: {calibration.factors[named].source}"

    def candidates(self, operation: Operation, size: float) -> Iterator[Way]:
        g, systems = self.on.devices_per_system, self.on.systems
        if self.mesh:
            yield *self._fitted(size, self.mesh), "ring", self.on.local_name
            return
        local, network = self.local or math.inf, self.network or math.inf
        rate, link = min(
            (local, self.on.local_name if self.nccl else "TCP inside the machine"),
            (network, self.on.network_name),
        )
        hops = (g - 1) * systems * self.local_s + (systems - 1) * self.network_s
        yield *self._ring(operation, size, g * systems, rate, hops), "ring", link
        if operation != "all-reduce" or not self.nccl:
            return
        yield *self._tree(size, rate), "tree", link
        if systems > 1 and g > 1:
            yield self._hierarchical(size, local, network)

    def _fitted(self, size: float, mesh: Mesh) -> tuple[float, float]:
        """(latency, moving) of an all-reduce, with what was measured over links of this kind."""
        n = self.on.devices
        parts = 2 * (n - 1) / n / self.known[f"{mesh}_share"] + self.known[f"{mesh}_fill"]
        latency_s = self.known[f"{mesh}_start_s"] + 2 * (n - 1) * self.known[f"{mesh}_hop_s"]
        return latency_s, parts * size / (self.on.nvlink_bytes_per_s or math.inf)

    def _ring(
        self, operation: Operation, size: float, devices: int, rate: float, hops_s: float
    ) -> tuple[float, float]:
        """(latency, moving) over a ring whose steps once round take `hops_s`."""
        if operation in ("broadcast", "reduce"):
            return self.base_s + hops_s, size / rate
        rounds = 2 if operation == "all-reduce" else 1
        steps = rounds * (devices - 1) + self.fill
        return self.base_s + rounds * hops_s, steps * size / devices / rate

    def _tree(self, size: float, rate: float) -> tuple[float, float]:
        depth = math.log2(self.on.systems) if self.on.systems > 1 else 0.0
        hop_s = self.known[f"tree_hop_{self.on.local_over}_s"]
        across_s = self.known["tree_hop_network_s"] + self.on.network_latency_s
        latency = 2 * ((self.on.devices_per_system - 1) * hop_s + depth * across_s)
        moving = 2 * size / (rate * self.known["tree_efficiency"])
        return self.known["tree_base_s"] + latency, moving

    def _hierarchical(self, size: float, local: float, network: float) -> Way:
        g, systems = self.on.devices_per_system, self.on.systems
        inside = self._ring("reduce-scatter", size, g, local, (g - 1) * self.local_s)
        # Each of g parts goes round a ring of its own; together they fill all ports.
        across = self._ring("all-reduce", size, systems, network, (systems - 1) * self.network_s)
        link = self.on.network_name if across[1] > 2 * inside[1] else self.on.local_name
        return 2 * inside[0] + across[0], 2 * inside[1] + across[1], "hierarchical", link
