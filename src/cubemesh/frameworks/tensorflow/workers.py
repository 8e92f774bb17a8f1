"""Data-parallel training over several processes by tf.distribute.MultiWorkerMirroredStrategy.

    TF_CONFIG   addresses of the workers, and the index of this process
    step        strategy.run(forward, gradients, all-reduce of their mean, update)

Each process is a worker with one replica and its own variables, which stay equal because they start
equal and are updated by the same gradients. TensorFlow reduces them inside the traced step, by a
ring over gRPC; so this group offers only objects, flags and barriers, by a key-value store
(frameworks/contract/rendezvous.py). https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import tensorflow as tf

from cubemesh.frameworks import fork_launcher as forked
from cubemesh.frameworks.contract.group import PointToPoint, TransferHandle
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.rendezvous import Rendezvous, connect_store, wait_and_check
from cubemesh.frameworks.tensorflow.runtime import prepare

LEAVES_LAST_S = 0.5
"""Time that rank 0, TensorFlow's coordinator, waits at the end: a worker that loses it fails."""

_joined: list[Any] = []
"""The strategy of this process: TensorFlow joins one cluster, once per process."""


class WorkerGroup:
    """See `Group`: what goes through TensorFlow's own step is not
    offered here."""

    def __init__(self, rank: int, size: int, timeout_s: float) -> None:
        self.rank, self.size, self._timeout_s = rank, size, timeout_s
        self._store = connect_store(timeout_s)
        self._agreed = self._shared = self._met = 0
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        _joined.append(
            tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=tf.distribute.experimental.CommunicationOptions(
                    implementation=ring, timeout_seconds=timeout_s
                )
            )
        )

    def all_reduce_mean(self, array: Any, low_precision: bool = False) -> TransferHandle:
        """Not offered."""
        _not_here()

    def reduce_mean(self, array: Any, root: int) -> TransferHandle:
        """Not offered."""
        _not_here()

    def broadcast(self, arrays: Sequence[Any], root: int) -> TransferHandle:
        """Not offered."""
        _not_here()

    def point_to_point(self) -> PointToPoint:
        """Not offered."""
        _not_here()

    def broadcast_object(self, value: Any) -> Any:
        """See `Group`."""
        self._agreed += 1
        key = f"agreed/{self._agreed}"
        if self.rank == 0:
            self._store.put(key, value)
            return value
        return self._store.wait(key, self._timeout_s)

    def all_gather_object(self, value: Any) -> list[Any]:
        """See `Group`."""
        self._shared += 1
        keys = [f"shared/{self._shared}/{rank}" for rank in range(self.size)]
        self._store.put(keys[self.rank], value)
        return [self._store.wait(key, self._timeout_s) for key in keys]

    def poll_flag(self, name: str, value: bool) -> bool:
        """See `Group`."""
        key = f"flag/{name}"
        if self.rank == 0:
            if value:
                self._store.put(key, True)
            return value
        return self._store.has(key)

    def barrier(self, check: Callable[[], None] | None = None) -> None:
        """See `Group`."""
        self._met += 1
        key = f"met/{self._met}"
        if self._store.add(f"{key}/ranks") == self.size:
            self._store.put(key, True)
        if check is not None:
            wait_and_check(lambda: self._store.has(key), check)
        self._store.wait(key, None)

    def close(self) -> None:
        """Leave together, rank 0 last."""
        self.barrier()
        if self.rank == 0:
            time.sleep(LEAVES_LAST_S)


def launch(
    run_rank: Callable[[str], None], job: str, ranks: int, rendezvous: Rendezvous | None = None
) -> dict[int, int]:
    """See `SupportsDistributed`. Unsupported on several hosts."""
    if rendezvous is not None:
        raise Unsupported("tensorflow trains on the devices of one host. Set framework=pytorch.")
    workers = [f"{forked.HOST}:{port}" for port in forked.free_ports(ranks)]

    def environ_of(rank: int) -> dict[str, str]:
        task = {"type": "worker", "index": rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}

    return forked.launch(run_rank, job, ranks, environ_of)


def join(device: str, timeout_s: float, link: str = "auto") -> WorkerGroup:
    """Meet the other ranks; see `SupportsDistributed`. TensorFlow's threads are set
    before: joining starts them, one for each core this process may use."""
    if link != "auto":
        raise Unsupported(f"link={link}: tensorflow cannot choose a link. Leave link out.")
    prepare(len(os.sched_getaffinity(0)))
    return WorkerGroup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout_s)


def strategy() -> Any | None:
    """The strategy that this process has joined; None without one."""
    return _joined[0] if _joined else None


def in_replica(strategy: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` as this worker's replica runs it."""
    return partial(_run, strategy, step)


def _run(strategy: Any, step: Callable[..., Any], *placed: Any) -> Any:
    return strategy.run(step, args=placed)


def mean_over_workers(gradients: Sequence[Any]) -> list[Any]:
    """The gradients' means over all workers; to be called in a replica's step."""
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, list(gradients)))


def _not_here() -> NoReturn:
    raise RuntimeError("TensorFlow reduces gradients inside its own step")
