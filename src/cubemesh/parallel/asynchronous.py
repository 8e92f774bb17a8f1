"""How is a network trained when no worker waits for another? Each gradient is applied as it comes.

    worker r   weights of version v ─▶ gradient ── (push, v) ──▶ ▒ waits ▒ ◀── weights, v + 1 + k
    server     ─ an update of another's ─ … k of them … ─ update by r: staleness k ─▶ version + 1

The server keeps the weights and the optimizer (the asynchronous parameter server of document 001;
Dean et al., NIPS 2012). Every gradient carries the version it was computed from, and what the
server has moved on since is its *staleness*: counted, never assumed. With N workers its mean is
N − 1, whatever their speeds, since every update makes each of the other N − 1 gradients that are
under way staler by one. A staleness-aware rate divides the learning rate by the staleness, where
that is above 1 (Zhang, Gupta, Lian and Liu, IJCAI 2016).

The server is a thread of rank 0, which is a worker too. Updates happen one at a time, and so does
the sending of weights to the other ranks; rank 0's own gradient travels nowhere. So rank 0's device
has the updates to make beside its steps, and holds the weights twice.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from cubemesh.frameworks.api.gradient_sync import BUCKET_BYTES, Bucket, Replica, ServerWeights
from cubemesh.frameworks.api.group import Group, PointToPoint

SERVER = 0
"""The rank whose thread keeps the weights."""
_PUSH, _PULL, _LEAVE = range(3)
"""What a worker asks the server: take a gradient and give weights; give weights; no more."""


class Asynchronous:
    """Every worker's gradient is applied to the server's weights as soon as it is there."""

    capturable = False
    updates = False
    bucket_bytes: int | None = BUCKET_BYTES

    def __init__(self, group: Group, aware: bool = False) -> None:
        self.name = "asynchronous-aware" if aware else "asynchronous"
        self.applied = Updates()
        """Those the server has made; empty on the other ranks."""
        self._group, self._aware = group, aware
        self._p2p = group.point_to_point() if group.size > 1 else None
        self._gradients: list[Any] = []
        self._replica: Replica | None = None
        self._server: Server | None = None
        self._version = 0

    def attach(self, replica: Replica) -> None:
        """Begin with the weights that have just been loaded, and with version 0."""
        self.close()
        if self._p2p is None:
            return
        self._replica, self._version, self.applied = replica, 0, Updates()
        if self._group.rank == SERVER:
            workers = self._group.size - 1
            self._server = Server(
                replica.server_weights(), self._p2p, workers, self._aware, self.applied
            )
        self._barrier()

    def ready(self, bucket: Bucket) -> None:
        """Remember it: the server takes all buckets of a gradient in one update."""
        self._gradients.append(bucket.gradients)

    def finish(self) -> None:
        """Nothing is under way."""

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Have the server apply the gradient, and go on with the weights it has then."""
        gradients, self._gradients = self._gradients, []
        if self._p2p is None:
            apply()
        elif self._server is not None:
            assert self._replica is not None
            into = self._replica.received
            self._version = self._server.push(SERVER, gradients, self._version, into)
            self._replica.load_received()
        else:
            self._ask(_PUSH, gradients)

    def synchronize_replicas(self) -> None:
        """Wait for all ranks; then everyone has the weights of the same, latest version."""
        if self._replica is None:
            return
        self._barrier()
        if self._server is not None:
            self._version = self._server.pull(self._replica.received)
            self._replica.load_received()
        else:
            self._ask(_PULL, [])
        self._barrier()

    def close(self) -> None:
        """A worker takes its leave; the server waits for that of every worker."""
        if self._replica is None:
            return
        self._replica = None
        if self._server is not None:
            self._server.join()
        else:
            assert self._p2p is not None
            self._p2p.send_header((_LEAVE, self._version), SERVER)

    def _barrier(self) -> None:
        """Wait for all ranks, which wait for the server: its rank must not wait for them where it
        has failed."""
        self._group.barrier(None if self._server is None else self._server.check)

    def _ask(self, what: int, gradients: Sequence[Any]) -> None:
        p2p, replica = self._p2p, self._replica
        assert p2p is not None, "a rank alone asks nobody"
        assert replica is not None, "weights are kept before steps are made"
        p2p.send_header((what, self._version), SERVER)
        if gradients:
            p2p.send(gradients, SERVER)
        _, (_, self._version) = p2p.recv_header(SERVER)
        p2p.recv(replica.received, SERVER)
        replica.load_received()


class Updates:
    """What the server has done, update by update, in the order it was done in."""

    def __init__(self) -> None:
        self.times = array("d")
        """Readings of `time.perf_counter()`."""
        self.workers = array("q")
        """The rank whose gradient it was."""
        self.carried = array("q")
        """The version of the weights that gradient was computed from."""
        self.applied = array("q")
        """The version it was applied to."""

    def add(self, worker: int, carried: int, applied: int) -> int:
        """Count an update that is made now; its staleness."""
        self.times.append(time.perf_counter())
        self.workers.append(worker)
        self.carried.append(carried)
        self.applied.append(applied)
        return applied - carried

    @property
    def staleness(self) -> list[int]:
        """Of each update: by how many versions the weights had moved on."""
        return [a - c for a, c in zip(self.applied, self.carried, strict=True)]


class Server:
    """The weights and their version, and a thread that serves `workers` other ranks."""

    def __init__(
        self, master: ServerWeights, p2p: PointToPoint, workers: int, aware: bool, updates: Updates
    ) -> None:
        self._master, self._p2p, self._aware, self._updates = master, p2p, aware, updates
        self._workers, self._version = workers, 0
        self._lock = threading.Lock()
        """Held by whoever updates the weights or copies them."""
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="weight-server", daemon=True)
        self._thread.start()

    def push(self, worker: int, gradients: Sequence[Any], carried: int, into: Sequence[Any]) -> int:
        """Apply a gradient that was computed from version `carried` and copy the weights after it
        to `into`; their version."""
        self.check()
        with self._lock:
            staleness = self._updates.add(worker, carried, self._version)
            self._master.apply(gradients, rate_factor(staleness) if self._aware else 1.0)
            self._version += 1
            self._master.read(into)
            return self._version

    def pull(self, into: Sequence[Any]) -> int:
        """Copy the weights to `into`; their version."""
        self.check()
        with self._lock:
            self._master.read(into)
            return self._version

    def join(self) -> None:
        """Wait until every other rank has left."""
        self._thread.join()
        self.check()

    def check(self) -> None:
        """RuntimeError where its thread has failed."""
        if self._failed is not None:
            raise RuntimeError("the thread that serves the weights has failed") from self._failed

    def _serve(self) -> None:
        try:
            with self._master.server_stream():
                while self._workers:
                    self._serve_one()
        except Exception as error:  # told by the rank's own thread, as soon as it looks
            self._failed = error

    def _serve_one(self) -> None:
        master, p2p = self._master, self._p2p
        worker, (what, carried) = p2p.recv_header()
        if what == _LEAVE:
            self._workers -= 1
            return
        if what == _PUSH:
            p2p.recv(master.incoming, worker)
            version = self.push(worker, master.incoming, carried, master.outgoing)
        else:
            version = self.pull(master.outgoing)
        p2p.send_header((what, version), worker)
        p2p.send(master.outgoing, worker)


def rate_factor(staleness: int) -> float:
    """What the learning rate of a gradient so stale is multiplied by, where the rate is aware."""
    return 1.0 / max(1, staleness)
