"""Launch and rendezvous of ranks on one host or several, and the key-value store that they share.

Where a framework has a store of its own (torch's TCPStore), it is used. Otherwise the launcher
serves one by threads of its own (`multiprocessing.managers`, over TCP), since TensorFlow holds
Python's lock while it connects, so that rank 0 could not serve it:

    launcher   forks the ranks with MASTER_ADDR, MASTER_PORT and a key, then calls serve_store
    rank       connect_store ─▶ a proxy of the store
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.managers import BaseManager
from typing import Any, Protocol, runtime_checkable

from cubemesh.frameworks.contract.group import Group

KEY_VARIABLE = "CUBEMESH_STORE_KEY"
"""Environment variable: the store's authentication key."""
POLL_S = 0.01
"""Interval at which a rank that waits polls, where it has a check to call meanwhile."""
_RETRY_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """How the launchers of several hosts find one another."""

    name: str
    """The same on all hosts, and unique to this run."""
    hosts: int
    endpoint: str
    """`address:port` of the first host, which the others contact."""
    is_first: bool
    """Whether this is that host."""
    address: str
    """The address at which the other hosts reach this one."""


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
        environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Returns the exit code
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


class KVStore:
    """Plain values by key, for all ranks."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: Any) -> None:
        """Set a value."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def add(self, key: str) -> int:
        """Increment the counter `key`; its new value."""
        with self._changed:
            self._values[key] = self._values.get(key, 0) + 1
            return int(self._values[key])

    def has(self, key: str) -> bool:
        """Whether the key is set."""
        with self._changed:
            return key in self._values

    def wait(self, key: str) -> None:
        """Return once the key is set, however long that takes."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)

    def get(self, key: str, timeout_s: float) -> Any:
        """The value of a key once it is set; TimeoutError after `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(f"no rank has set '{key}' within {timeout_s:g} s")
            return self._values[key]


class StoreGroup:
    """The operations of `Group` on plain values, by the ranks' key-value store: no device waits."""

    def __init__(self, rank: int, size: int, store: KVStore, timeout_s: float) -> None:
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


class _Manager(BaseManager):
    pass


def connect_store(timeout_s: float) -> KVStore:
    """The store of this run's ranks. TimeoutError where it is not reachable within `timeout_s`."""
    _Manager.register("store")
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    manager = _Manager(address, os.environ[KEY_VARIABLE].encode())
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            manager.connect()
            store: KVStore = manager.store()  # type: ignore[attr-defined]
            return store
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"rendezvous store not reachable within {timeout_s:g} s"
                ) from error
            time.sleep(_RETRY_S)


def serve_store(address: tuple[str, int], key: str) -> None:
    """Serve a store as long as this process lives."""
    store = KVStore()
    _Manager.register("store", callable=lambda: store)
    server = _Manager(address, key.encode()).get_server()
    threading.Thread(target=_serve, args=(server,), name="store", daemon=True).start()


def _serve(server: Any) -> None:
    with suppress(SystemExit):  # raised by the server when it stops
        server.serve_forever()
