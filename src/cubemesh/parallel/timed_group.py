"""A `Group` that records the start, wait, end and bytes of each collective, for the attribution of
a step over several ranks. It adds nothing but two readings of the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cubemesh.frameworks.contract.group import Group, TransferHandle, observed, tracked
from cubemesh.measure.attribution.transfers import Transfer, Transfers

T = TypeVar("T")
LOW_PRECISION_BYTES = 2
"""Of a number that is sent as a 16-bit float."""


class TimedGroup:
    """See `Group`; each collective is added to `transfers`."""

    def __init__(self, group: Group, transfers: Transfers) -> None:
        self._group, self._transfers = group, transfers
        self.rank, self.size = group.rank, group.size

    def __getattr__(self, name: str) -> Any:
        """Everything else is the group's own."""
        return getattr(self._group, name)

    def all_reduce_mean(self, array: Any, low_precision: bool = False) -> TransferHandle:
        """See `Group`."""
        issued = self._transfers.clock()
        size_bytes = _size_bytes(array)
        if low_precision:
            size_bytes = min(size_bytes, LOW_PRECISION_BYTES * _elements(array))
        pending = self._group.all_reduce_mean(array, low_precision)
        return _TimedTransfer(issued, pending, size_bytes, self._transfers)

    def reduce_mean(self, array: Any, root: int) -> TransferHandle:
        """See `Group`."""
        issued = self._transfers.clock()
        pending = self._group.reduce_mean(array, root)
        return _TimedTransfer(issued, pending, _size_bytes(array), self._transfers)

    def broadcast(self, arrays: Sequence[Any], root: int) -> TransferHandle:
        """See `Group`."""
        issued = self._transfers.clock()
        size_bytes = sum(map(_size_bytes, arrays))
        pending = self._group.broadcast(arrays, root)
        return _TimedTransfer(issued, pending, size_bytes, self._transfers)

    def observe(self, call: Callable[[], T], size_bytes: int) -> T:
        """See `ObservesCollectives`."""
        issued = self._transfers.clock()
        result = observed(self._group, call, size_bytes)
        self._transfers.add(Transfer(issued, issued, self._transfers.clock(), size_bytes))
        return result

    def track(self, transfer: TransferHandle, size_bytes: int) -> TransferHandle:
        """See `TracksTransfers`."""
        issued = self._transfers.clock()
        pending = tracked(self._group, transfer, size_bytes)
        return _TimedTransfer(issued, pending, size_bytes, self._transfers)


class _TimedTransfer:
    def __init__(
        self, issued: float, pending: TransferHandle, size_bytes: int, transfers: Transfers
    ) -> None:
        self._issued, self._pending, self._size_bytes = issued, pending, size_bytes
        self._transfers = transfers

    def wait(self) -> None:
        """See `TransferHandle`."""
        clock = self._transfers.clock
        waited = clock()
        self._pending.wait()
        self._transfers.add(Transfer(self._issued, waited, clock(), self._size_bytes))


def _elements(array: Any) -> int:
    size = array.size  # a number in NumPy and JAX, a method in PyTorch
    return int(array.numel()) if callable(size) else int(size)


def _size_bytes(array: Any) -> int:
    return int(array.nbytes)
