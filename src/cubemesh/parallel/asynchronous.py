"""Asynchronous SGD with a parameter server: no worker waits for another, each gradient is applied
when it arrives (Dean et al., NIPS 2012).

    worker r   weights of version v ─▶ gradient ── (push, v) ──▶ ▒ waits ▒ ◀── weights, v + 1 + k
    server     ─ other updates ─ … k of them … ─ update by r: staleness k ─▶ version + 1

The server holds the weights and the optimizer. Every gradient carries the version it was computed
from; the versions that the server has gained since are its *staleness*, which is counted. With N
workers its mean is N − 1 at any speeds, since every update makes each of the other N − 1
pending gradients staler by one. The staleness-aware strategy divides the learning rate by the
staleness where that is above 1 (Zhang, Gupta, Lian and Liu, IJCAI 2016).

The server is a thread of rank 0, which is a worker too. Updates are made one at a time, and so are
the sends of weights to the other ranks; rank 0's own gradient is not sent. So rank 0's device makes
the updates in addition to its steps, and holds the weights twice.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from cubemesh.frameworks.contract.gradient_sync import (
    BUCKET_BYTES,
    Bucket,
    Replica,
    ServerWeights,
    SyncFeature,
)
from cubemesh.frameworks.contract.group import Group, PointToPoint
from cubemesh.parallel.strategy import SERVER, Strategy, SyncCost

_PUSH, _PULL, _LEAVE = range(3)
"""Requests of a worker: apply a gradient and return weights; return weights; leave."""


class Asynchronous(Strategy):
    """Every worker's gradient is applied to the server's weights as soon as it arrives."""

    name = "asynchronous"
    summary = "each rank's gradient to the server, as soon as it is complete; the weights back"
    needs: SyncFeature | None = "weight-server"
    blocking = False
    free_running = True
    profiled = False
    checkpoints = False
    sequential_step = False
    updates = False
    bucket_bytes: int | None = BUCKET_BYTES
    cost = SyncCost(pattern="asynchronous")
    staleness_aware = False

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.applied = Updates()
        """Those the server has made; empty on the other ranks."""
        self._p2p = group.point_to_point() if group.size > 1 else None
        self._gradients: list[Any] = []
        self._replica: Replica | None = None
        self._server: Server | None = None
        self._version = 0

    def attach(self, replica: Replica) -> None:
        """Start with the weights that have just been loaded, as version 0."""
        self.close()
        if self._p2p is None:
            return
        self._replica, self._version, self.applied = replica, 0, Updates()
        if self._group.rank == SERVER:
            workers = self._group.size - 1
            self._server = Server(
                replica.server_weights(), self._p2p, workers, self.staleness_aware, self.applied
            )
        self._barrier()

    def ready(self, bucket: Bucket) -> None:
        """Collect it: the server takes all buckets of a gradient in one update."""
        self._gradients.append(bucket.gradients)

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Have the server apply the gradient, and continue with its weights."""
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
        """Wait for all ranks; then all have the latest version of the weights."""
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
        """A worker leaves; the server waits until every worker has left."""
        if self._replica is None:
            return
        self._replica = None
        if self._server is not None:
            self._server.join()
        else:
            assert self._p2p is not None
            self._p2p.send_header((_LEAVE, self._version), SERVER)

    def _barrier(self) -> None:
        """Wait for all ranks. They wait for the server, so its rank stops where the server has
        failed."""
        self._group.barrier(None if self._server is None else self._server.check)

    def _ask(self, what: int, gradients: Sequence[Any]) -> None:
        p2p, replica = self._p2p, self._replica
        assert p2p is not None, "a single process has no server"
        assert replica is not None, "attach() comes before steps"
        p2p.send_header((what, self._version), SERVER)
        if gradients:
            p2p.send(gradients, SERVER)
        _, (_, self._version) = p2p.recv_header(SERVER)
        p2p.recv(replica.received, SERVER)
        replica.load_received()


class StalenessAware(Asynchronous):
    """The same, with a learning rate divided by the staleness of the gradient."""

    name = "asynchronous-aware"
    summary = "as asynchronous; the staler a gradient, the smaller its update"
    staleness_aware = True


class Updates:
    """The server's updates, in order."""

    def __init__(self) -> None:
        self.times = array("d")
        """Readings of `time.perf_counter()`."""
        self.workers = array("q")
        """Rank of the gradient."""
        self.carried = array("q")
        """Version of the weights that the gradient was computed from."""
        self.applied = array("q")
        """Version that it was applied to."""

    def add(self, worker: int, carried: int, applied: int) -> int:
        """Record an update made now; returns its staleness."""
        self.times.append(time.perf_counter())
        self.workers.append(worker)
        self.carried.append(carried)
        self.applied.append(applied)
        return applied - carried

    @property
    def staleness(self) -> list[int]:
        """Of each update, in versions."""
        return [a - c for a, c in zip(self.applied, self.carried, strict=True)]


class Server:
    """The weights, their version, and a thread that serves `workers` other ranks."""

    def __init__(
        self, master: ServerWeights, p2p: PointToPoint, workers: int, aware: bool, updates: Updates
    ) -> None:
        self._master, self._p2p, self._aware, self._updates = master, p2p, aware, updates
        self._workers, self._version = workers, 0
        self._lock = threading.Lock()
        """Held while the weights are updated or copied."""
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="weight-server", daemon=True)
        self._thread.start()

    def push(self, worker: int, gradients: Sequence[Any], carried: int, into: Sequence[Any]) -> int:
        """Apply a gradient that was computed from version `carried`, then copy the weights to
        `into`; returns their version."""
        self.check()
        with self._lock:
            staleness = self._updates.add(worker, carried, self._version)
            self._master.apply(gradients, rate_factor(staleness) if self._aware else 1.0)
            self._version += 1
            self._master.read(into)
            return self._version

    def pull(self, into: Sequence[Any]) -> int:
        """Copy the weights to `into`; returns their version."""
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
        except Exception as error:  # raised by check() in the rank's own thread
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
    """The factor of the learning rate for a gradient of this staleness (Zhang et al., 2016)."""
    return 1.0 / max(1, staleness)
