"""Communication between devices: collectives and links.

A collective is swept over message sizes; what follows has the spec of the sweep, its results, and
the channels that NCCL chose. A `LinkRate` is a cell of a matrix, such as nvbandwidth prints them: a
measurement from one place to another, which is `host` or a device of the run, `cuda:0`.

Names of data types, the counting of sizes and the bus bandwidths are those of nccl-tests
(doc/PERFORMANCE.md): with n ranks and an array of S bytes that takes t seconds,

    algorithm bandwidth   S / t
    bus bandwidth         S / t · factor(n), what a link of each rank carries, whatever n is

A size is that of the largest array of any rank: of all-gather the gathered one, of reduce-scatter
what each rank gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from cubemesh.errors import UsageError
from cubemesh.schema.validation import at_least

CollectiveName = Literal[
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "send-receive",
]
COLLECTIVES: tuple[CollectiveName, ...] = get_args(CollectiveName)
REDUCING = ("all-reduce", "reduce-scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
PARTED = ("reduce-scatter", "all-gather", "gather", "scatter", "all-to-all")
"""Operations in which each rank gives or receives an n-th of the array, which is what their
count is of."""

DataType = Literal["int8", "uint8", "int32", "int64", "half", "bfloat16", "float", "double"]
ELEMENT_BYTES: Mapping[str, int] = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
}
Reduction = Literal["sum", "prod", "min", "max", "avg"]


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth; `ranks` above 0."""
    if collective == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if collective in PARTED:
        return (ranks - 1) / ranks
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective operation between all devices, over several message sizes.

    At each size groups of `Budget.steps` operations are timed until there are `Budget.windows` of
    them or `Budget.seconds` have passed.
    """

    kind: Literal["collective"] = "collective"
    collective: CollectiveName = "all-reduce"
    """`send-receive`: each rank sends to the next; then each pair separately, at the largest
    size."""
    sizes_bytes: tuple[int, ...] = (1 << 20,)
    """Message sizes; one below an element per rank is measured as that."""
    data_type: DataType = "float"
    """Data type of the elements."""
    reduction: Reduction = "sum"
    """Reduction of all-reduce, reduce-scatter and reduce."""
    warmup_iterations: int = 5
    """Warm-up operations before the first group of each size."""
    checks: int = 1
    """How many results of each size are compared with the expected ones; 0: none."""

    def __post_init__(self) -> None:
        at_least(self, 0, "warmup_iterations", "checks")
        if not self.sizes_bytes or min(self.sizes_bytes) < 1:
            raise UsageError(
                f"sizes_bytes={','.join(map(str, self.sizes_bytes))} is not valid: a sweep needs "
                "at least one size, each 1 or more."
            )
        if self.reduction != "sum" and self.collective not in REDUCING:
            raise UsageError(
                f"reduction={self.reduction} is valid for {', '.join(REDUCING)} only. Leave it out."
            )


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """Result of a collective at one size."""

    size_bytes: int
    """As measured: whole elements, the same number for each rank."""
    count: int
    """Elements of the array, or of a rank's part if it is divided."""
    in_place: bool = False
    """Whether the result replaced the input."""
    pair: tuple[int, int] | None = None
    """(from, to) of one rank sending to another while all others are idle."""
    iterations: int = 1
    """Operations in each group."""
    seconds: tuple[float, ...]
    """Seconds per operation, for each group: the mean over ranks, as in nccl-tests."""
    wrong: int | None = None
    """Wrong elements over all ranks and checks; None if unchecked."""

    @property
    def time_s(self) -> float:
        """Mean seconds per operation."""
        return math.fsum(self.seconds) / len(self.seconds)

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Size over time."""
        return self.size_bytes / self.time_s


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
