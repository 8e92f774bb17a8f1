"""How long a rank waits for others: a `Group` that adds up the waits of its collectives.

All ranks end a step together, so the one that waits least is the slowest (measure/slow_ranks.py).
A wait costs two readings of the clock. It must be the host that waits: where a device does, the
host queues the wait and continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cubemesh.frameworks.contract.group import Group, TransferHandle, observed, tracked

T = TypeVar("T")


class Waits:
    """Seconds for which a rank waited in collectives, since they were last taken."""

    def __init__(
        self, *, blocking: bool = True, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock = clock
        self._seconds, self._known = 0.0, not blocking

    def add(self, seconds: float) -> None:
        """One wait."""
        self._seconds += seconds
        self._known = True

    def take(self) -> float | None:
        """Seconds since the last call. None where steps should wait for others and no wait was ever
        seen: the framework communicates in a way of its own, or no step has waited yet."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds if self._known else None


class WaitingGroup:
    """See `Group`; each wait is added to `waits`."""

    def __init__(self, group: Group, waits: Waits) -> None:
        self._group, self._waits = group, waits
        self.rank, self.size = group.rank, group.size

    def __getattr__(self, name: str) -> Any:
        """Everything else is the group's own."""
        return getattr(self._group, name)

    def all_reduce_mean(self, array: Any, low_precision: bool = False) -> TransferHandle:
        """See `Group`."""
        return _Waiting(self._group.all_reduce_mean(array, low_precision), self._waits)

    def reduce_mean(self, array: Any, root: int) -> TransferHandle:
        """See `Group`."""
        return _Waiting(self._group.reduce_mean(array, root), self._waits)

    def broadcast(self, arrays: Sequence[Any], root: int) -> TransferHandle:
        """See `Group`."""
        return _Waiting(self._group.broadcast(arrays, root), self._waits)

    def observe(self, call: Callable[[], T], size_bytes: int) -> T:
        """See `ObservesCollectives`."""
        start = self._waits.clock()
        result = observed(self._group, call, size_bytes)
        self._waits.add(self._waits.clock() - start)
        return result

    def track(self, transfer: TransferHandle, size_bytes: int) -> TransferHandle:
        """See `TracksTransfers`."""
        return _Waiting(tracked(self._group, transfer, size_bytes), self._waits)


class _Waiting:
    __slots__ = ("_pending", "_waits")

    def __init__(self, pending: TransferHandle, waits: Waits) -> None:
        self._pending, self._waits = pending, waits

    def wait(self) -> None:
        """See `TransferHandle`."""
        clock = self._waits.clock
        start = clock()
        self._pending.wait()
        self._waits.add(clock() - start)
