"""Stores in which the ranks of torch.distributed exchange the addresses of NCCL and gloo.

| launched by | store | who can write |
|---|---|---|
| cubemesh, on one host | a file without a path, inherited | the ranks |
| cubemesh, on several hosts | the run's key-value store, through ssh | the ranks |
| torchrun, mpirun, srun, … | a TCPStore at MASTER_ADDR | who reaches its port |

No value is ever unpickled: they are JSON, and NCCL's and gloo's own binary formats.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from cubemesh.frameworks.contract.kv_store import StoreClient
from cubemesh.frameworks.pytorch.distributed.p2p import NO_TIMEOUT

FILE_VARIABLE = "CUBEMESH_RENDEZVOUS_FD"
"""Environment variable of a rank: the file descriptor of the file of a run on one host."""


def open_store(client: StoreClient | None, timeout: datetime.timedelta) -> Store:
    """The store of this run; `client` is the connection to the run's key-value store, if any."""
    size = int(os.environ["WORLD_SIZE"])
    if client is None:
        return _launchers_store(os.environ, size, timeout)
    file = os.environ.get(FILE_VARIABLE)
    if file is None:
        return RelayedStore(client, timeout.total_seconds())
    return FileStore(f"/proc/self/fd/{file}", size)


class RelayedStore(Store):
    """torch.distributed's interface to the run's key-value store. Bytes are sent as base64;
    counters are integers, which torch.distributed reads as their digits."""

    def __init__(self, client: StoreClient, timeout_s: float) -> None:
        super().__init__()
        self._client, self._timeout_s = client, timeout_s

    def clone(self) -> RelayedStore:
        """This store: any thread may use it."""
        return self

    def set(self, key: str, value: str | bytes) -> None:
        """See `Store`."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._client.put(key, base64.b64encode(data).decode())

    def get(self, key: str) -> bytes:
        """See `Store`."""
        value = self._client.get(key, self._timeout_s)
        return str(value).encode() if isinstance(value, int) else base64.b64decode(value)

    def add(self, key: str, number: int) -> int:
        """See `Store`."""
        return self._client.add(key, number)

    def check(self, keys: Sequence[str]) -> bool:
        """See `Store`."""
        return all(self._client.has(key) for key in keys)

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """See `Store`."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        for key in keys:
            self._client.get(key, limit_s)

    def delete_key(self, key: str) -> bool:
        """See `Store`."""
        return self._client.delete(key)

    deleteKey = delete_key  # noqa: N815 - what C++ looks up


class TorchStore:
    """See `ValueStore`: plain values in the store of another launcher."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, key: str, value: Any) -> None:
        """See `ValueStore`."""
        self._store.set(key, json.dumps(value))

    def add(self, key: str) -> int:
        """See `ValueStore`."""
        return int(self._store.add(key, 1))

    def has(self, key: str) -> bool:
        """See `ValueStore`."""
        return bool(self._store.check([key]))

    def wait(self, key: str) -> None:
        """See `ValueStore`."""
        self._store.wait([key], NO_TIMEOUT)

    def get(self, key: str, timeout_s: float) -> Any:
        """See `ValueStore`; the time limit is that of the process group."""
        return json.loads(self._store.get(key))

    def leave(self, rank: int, size: int, timeout_s: float) -> None:
        """Say that this rank needs the store no more. Rank 0, whose process may serve it, returns
        when all others have left, or after `timeout_s`: one of them died."""
        if rank != 0:
            self._store.set(f"cubemesh/left/{rank}", "")
            return
        others = [f"cubemesh/left/{other}" for other in range(1, size)]
        with contextlib.suppress(RuntimeError):
            self._store.wait(others, datetime.timedelta(seconds=timeout_s))


def _launchers_store(environ: Mapping[str, str], size: int, timeout: datetime.timedelta) -> Store:
    """The store that a launcher such as torchrun serves; otherwise rank 0 does, at MASTER_ADDR."""
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store: Store = next(rendezvous("env://", timeout=timeout))[0]
        return store
    host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    if environ["RANK"] != "0":
        return TCPStore(host, port, size, timeout=timeout)
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if ip_address(address[0]).is_loopback and host not in ("localhost", address[0]):
        # Of this host's own name: other hosts know it by another address, so it listens at all.
        return TCPStore(host, port, size, True, timeout)
    listener = socket.create_server((str(address[0]), port), family=family)
    return TCPStore(
        host, port, size, True, timeout, master_listen_fd=listener.detach(), use_libuv=False
    )
