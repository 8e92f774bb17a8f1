"""Launch and rendezvous of ranks, on one host or several, and plain values that they exchange."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from cubemesh.frameworks.contract.group import Group

POLL_S = 0.01
"""Interval at which a rank that waits polls, where it has a check to call meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """What the launcher of one host of several must know."""

    hosts: int
    number: int
    """Of this host, from 0."""
    store: socket.socket
    """A connection to the store of the run (`kv_store.serve_store`)."""


@runtime_checkable
class SupportsDistributed(Protocol):
    """A `Framework` whose programs train on several devices, one process each."""

    def launch(
        self,
        run_rank: Callable[[str], None],
        job: str,
        ranks: int,
        rendezvous: Rendezvous | None = None,
    ) -> dict[int, int]:
        """Call `run_rank(job)` in `ranks` forked processes of this host, each with its rank in its
        environment (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE). Returns the exit code
        of each that failed, negative for a signal; the others are ended then. With `rendezvous`,
        the launcher of each other host starts as many."""

    def join(self, device: str, timeout_s: float, link: str = "auto") -> Group:
        """Connect to the other ranks, as the environment names them. A rank that does not join
        within `timeout_s`, or does not take part in an operation for so long, is an error.
        `link` is `Placement.link`; Unsupported where there is none of that name."""


def wait_and_check(done: Callable[[], bool], check: Callable[[], None]) -> None:
    """Return when `done()` is true; an exception from `check` ends the wait."""
    while not done():
        check()
        time.sleep(POLL_S)


class ValueStore(Protocol):
    """Plain values by key, for all ranks."""

    def put(self, key: str, value: Any) -> None:
        """Set a value."""

    def add(self, key: str) -> int:
        """Increment the counter `key`; its new value."""

    def has(self, key: str) -> bool:
        """Whether the key is set."""

    def wait(self, key: str) -> None:
        """Return once the key is set, however long that takes."""

    def get(self, key: str, timeout_s: float) -> Any:
        """The value of a key once it is set; TimeoutError after `timeout_s`."""


class StoreGroup:
    """The operations of `Group` on plain values, by the ranks' key-value store: no device waits."""

    def __init__(self, rank: int, size: int, store: ValueStore, timeout_s: float) -> None:
        self.rank, self.size = rank, size
        self._store, self._timeout_s = store, timeout_s
        self._broadcasts = self._gathers = self._barriers = 0

    def broadcast_object(self, value: Any) -> Any:
        """See `Group`."""
        self._broadcasts += 1
        key = f"cubemesh/broadcast/{self._broadcasts}"
        if self.rank == 0:
            self._store.put(key, value)
            return value
        return self._store.get(key, self._timeout_s)

    def all_gather_object(self, value: Any) -> list[Any]:
        """See `Group`."""
        self._gathers += 1
        keys = [f"cubemesh/gather/{self._gathers}/{rank}" for rank in range(self.size)]
        self._store.put(keys[self.rank], value)
        return [self._store.get(key, self._timeout_s) for key in keys]

    def poll_flag(self, name: str, value: bool) -> bool:
        """See `Group`."""
        key = f"cubemesh/flag/{name}"
        if self.rank == 0:
            if value:
                self._store.put(key, True)
            return value
        return self._store.has(key)

    def barrier(self, check: Callable[[], None] | None = None) -> None:
        """See `Group`."""
        self._barriers += 1
        key = f"cubemesh/barrier/{self._barriers}"
        if self._store.add(f"{key}/ranks") == self.size:
            self._store.put(key, True)
        if check is not None:
            wait_and_check(lambda: self._store.has(key), check)
        self._store.wait(key)
