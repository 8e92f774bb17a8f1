"""The ranks of a run as an interface: collectives, point-to-point transfers, control messages.

A framework implements `Group` for its own arrays; gradient synchronization strategies (parallel/)
name no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
RANK_SEEDS = 1_000_003
"""Distance between the dropout seeds of two ranks: a prime that is unlikely as a user's seed."""
HEADER_INTEGERS = 2
"""Integers in the header of a point-to-point transfer."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The connection that a rank's transfers use."""

    transport: str
    """`gloo TCP`, `NCCL P2P/CUMEM`, `NCCL SHM/direct, NET/Socket`."""
    interface: str = ""
    """The network interface, where a network is used or may be."""


class TransferHandle(Protocol):
    """An asynchronous transfer."""

    def wait(self) -> None:
        """Return when work queued from now on sees the result."""


class Group(Protocol):
    """The ranks of a run. Every rank calls the same operations in the same order; transfers return
    at once, and their arrays must not be touched until `wait`."""

    rank: int
    size: int

    def all_reduce_mean(self, array: Any, low_precision: bool = False) -> TransferHandle:
        """Replace `array` on every rank by the mean over all; `low_precision` sends 16-bit
        floats."""

    def reduce_mean(self, array: Any, root: int) -> TransferHandle:
        """Replace `array` on rank `root` by the mean over all; it is undefined on the others."""

    def broadcast(self, arrays: Sequence[Any], root: int) -> TransferHandle:
        """Replace `arrays` on every rank by those of rank `root`."""

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's `value`, plain data, on every rank."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's `value`, plain data, by rank."""

    def poll_flag(self, name: str, value: bool) -> bool:
        """Whether rank 0 has called this with `name` and True so far. Does not wait."""

    def barrier(self, check: Callable[[], None] | None = None) -> None:
        """Wait until every rank has called this, however long that takes. Meanwhile `check` is
        called again and again; an exception from it ends the wait."""

    def point_to_point(self) -> PointToPoint:
        """Transfers between two ranks that need no other rank. Every rank calls this."""

    def close(self) -> None:
        """Leave the group."""


@runtime_checkable
class ReportsLink(Protocol):
    """A group that knows which connection it uses."""

    def link(self) -> Link | None:
        """What this rank has used so far; None where unknown."""


@runtime_checkable
class PeerMemoryGroup(Protocol):
    """A group whose devices can read each other's memory (peer-to-peer access)."""

    def peer_memory(self) -> PeerMemory:
        """Peer-to-peer copies for the buckets of one program. Every rank calls this; `Unsupported`
        where the devices have no peer access."""


@runtime_checkable
class ObservesCollectives(Protocol):
    """A group that times the collectives which a library of the framework calls itself."""

    def observe(self, call: Callable[[], T], size_bytes: int) -> T:
        """Call `call`, a blocking collective of `size_bytes`, and record how long it took."""


def observed(group: Group, call: Callable[[], T], size_bytes: int) -> T:
    """The result of `call`, a blocking collective, which `group` records where it records any."""
    if isinstance(group, ObservesCollectives):
        return group.observe(call, size_bytes)
    return call()


@runtime_checkable
class TracksTransfers(Protocol):
    """A group that times transfers which a library of the framework started, and which go on while
    the step does."""

    def track(self, transfer: TransferHandle, size_bytes: int) -> TransferHandle:
        """`transfer`, just started, of `size_bytes`, as one whose wait is recorded."""


def tracked(group: Group, transfer: TransferHandle, size_bytes: int) -> TransferHandle:
    """`transfer`, just started, whose wait `group` records where it records any."""
    if isinstance(group, TracksTransfers):
        return group.track(transfer, size_bytes)
    return transfer


class PeerMemory(Protocol):
    """Averages by peer-to-peer copies, concurrent with computation. Every rank calls the same
    operations in the same order."""

    def allocate(self, numbers: int, like: Any) -> Any:
        """A flat array of zeros of the type of `like`, which the other ranks can read."""

    def all_reduce_mean(self, array: Any) -> TransferHandle:
        """Replace `array`, from `allocate`, on every rank by the mean over all. Once it has been
        waited for, no rank reads it any more."""


class PointToPoint(Protocol):
    """Transfers between two ranks. A header is sent before arrays, so that no device waits for an
    array that is not ready yet."""

    def send_header(self, numbers: Sequence[int], to: int) -> None:
        """Send `HEADER_INTEGERS` integers, after the work queued on this rank's device is done."""

    def recv_header(self, source: int | None = None) -> tuple[int, list[int]]:
        """Wait for a header from rank `source`, or from any; the sender's rank, and the
        integers."""

    def send(self, arrays: Sequence[Any], to: int) -> None:
        """Send flat arrays."""

    def recv(self, arrays: Sequence[Any], source: int) -> None:
        """Overwrite flat arrays with those that rank `source` sends."""


class SingleProcessGroup:
    """The group of a run with one process."""

    rank = 0
    size = 1

    def all_reduce_mean(self, array: Any, low_precision: bool = False) -> TransferHandle:
        """`array` is the mean already."""
        return _Done()

    def reduce_mean(self, array: Any, root: int) -> TransferHandle:
        """`array` is the mean already."""
        return _Done()

    def broadcast(self, arrays: Sequence[Any], root: int) -> TransferHandle:
        """No other rank."""
        return _Done()

    def broadcast_object(self, value: Any) -> Any:
        """`value`."""
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        """`value`."""
        return [value]

    def poll_flag(self, name: str, value: bool) -> bool:
        """`value`."""
        return value

    def barrier(self, check: Callable[[], None] | None = None) -> None:
        """No other rank."""

    def point_to_point(self) -> PointToPoint:
        """RuntimeError: there is no other rank."""
        raise RuntimeError("point-to-point transfers need two ranks")

    def close(self) -> None:
        """No resources."""


class _Done:
    def wait(self) -> None:
        """Nothing is queued."""
