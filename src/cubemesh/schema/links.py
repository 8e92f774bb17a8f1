"""Links: measured rates and latencies of each pair of devices, and the channels that NCCL chose.

A `LinkRate` is a cell of a matrix, such as nvbandwidth prints them: a measurement from one place to
another. A place is `host` or a device of the run, `cuda:0`.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = "host"
"""The place that is the host's memory."""


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """One measurement between two places."""

    name: str
    """What was measured: `host_to_device`, `read`, `load_latency`."""
    source: str
    """Where the bytes were, or of a page fault the memory that had the page."""
    target: str
    """Where they went."""
    value: float
    unit: str
    """`B/s`, `s`, or `1/s` of atomics."""
    n: int = 1
    """Samples, of which the value is the median."""
    method: str = ""
    """How it was measured: bytes, engine, memory."""


@dataclass(frozen=True, kw_only=True)
class RingOrder:
    """An order of devices, and how many channels or rings have it."""

    order: tuple[str, ...]
    """Names of devices: `gpu0`, `gpu1`; adapters of a network are `net0`."""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class NcclGraph:
    """A graph that NCCL searched for an algorithm, as NCCL_GRAPH_DUMP_FILE has it."""

    pattern: str
    """`ring`, `balanced tree`, `split tree`, `tree`, `nvls` or `collnet direct`."""
    orders: tuple[RingOrder, ...]
    """The orders of its channels."""
    channel_bytes_per_s: float
    """Bandwidth of a channel within the host."""
    inside: str = ""
    """Farthest kind of path within the host, in NCCL's words: `NVL`, `PIX`, `PHB`, `SYS`."""
    outside: str = ""
    """Farthest kind of path to a network adapter."""

    @property
    def channels(self) -> int:
        """Number of channels."""
        return sum(order.count for order in self.orders)

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of all channels together."""
        return self.channels * self.channel_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class NcclAdapter:
    """A network adapter that NCCL found."""

    name: str
    bytes_per_s: float | None = None
    gdr: bool | None = None
    """Whether it reads and writes GPU memory (GPUDirect RDMA); None where NCCL does not say."""


@dataclass(frozen=True, kw_only=True)
class NcclTopology:
    """What NCCL wrote about the first rank's host: its graphs and adapters, and the rings that the
    model of the topology finds for the same devices."""

    graphs: tuple[NcclGraph, ...] = ()
    adapters: tuple[NcclAdapter, ...] = ()
    model_rings: tuple[RingOrder, ...] = ()
    model_bytes_per_s: float | None = None
    """Bandwidth of the model's rings together, by the specification of the links; None without a
    model."""
    notes: tuple[str, ...] = ()
    """What could not be read, with the reason."""

    @property
    def rings(self) -> NcclGraph | None:
        """The graph of rings; None where NCCL searched none."""
        return next((graph for graph in self.graphs if graph.pattern == "ring"), None)
