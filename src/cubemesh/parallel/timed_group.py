"""A group whose transfers are stamped: what an attribution over several ranks is made of.

It stands between an exchange and the group it moves arrays with, where a run asks for an
attribution, and does nothing else than read the clock and count bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cubemesh.frameworks.api.group import Group, TransferHandle
from cubemesh.measure.attribution.transfers import Transfer, Transfers

STAMPED = frozenset({"none", "all-reduce", "all-reduce-16", "parameter-server", "local-sgd"})
"""The exchanges all of whose waits are stamped here: in the others ranks write to one another, or
make their steps apart."""
NARROW_BYTES = 2
"""Of a number that travels as a 16-bit float."""


class TimedGroup:
    """See `Group`; each transfer is told to `transfers`."""

    def __init__(self, group: Group, transfers: Transfers) -> None:
        self._group, self._transfers = group, transfers
        self.rank, self.size = group.rank, group.size

    def __getattr__(self, name: str) -> Any:
        """What is not stamped is the group's own."""
        return getattr(self._group, name)

    def all_reduce_mean(self, array: Any, low_precision: bool = False) -> TransferHandle:
        """See `Group`."""
        issued = self._transfers.clock()
        size_bytes = _size_bytes(array)
        if low_precision:
            size_bytes = min(size_bytes, NARROW_BYTES * _elements(array))
        return self._begun(issued, self._group.all_reduce_mean(array, low_precision), size_bytes)

    def reduce_mean(self, array: Any, root: int) -> TransferHandle:
        """See `Group`."""
        issued = self._transfers.clock()
        return self._begun(issued, self._group.reduce_mean(array, root), _size_bytes(array))

    def broadcast(self, arrays: Sequence[Any], root: int) -> TransferHandle:
        """See `Group`."""
        issued = self._transfers.clock()
        size_bytes = sum(map(_size_bytes, arrays))
        return self._begun(issued, self._group.broadcast(arrays, root), size_bytes)

    def _begun(self, issued: float, pending: TransferHandle, size_bytes: int) -> TransferHandle:
        return _Stamped(issued, pending, size_bytes, self._transfers)


class _Stamped:
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
