"""Data-parallel training over several processes by tf.distribute.MultiWorkerMirroredStrategy.

    TF_CONFIG   addresses of the workers, and the index of this process
    step        strategy.run(forward, gradients, all-reduce of their mean, update)

Each process is a worker with one replica and its own variables, which stay equal because they start
equal and are updated by the same gradients. TensorFlow reduces them inside the traced step, by a
ring over gRPC, between GPUs by NCCL; so this group offers only objects, flags and barriers, by a
key-value store (frameworks/contract/kv_store.py). TensorFlow's server listens on all interfaces and
does what anybody asks, so the workers have a private network (frameworks/private_network.py).
https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from cubemesh.frameworks import fork_launcher
from cubemesh.frameworks.contract.kv_store import connect_store
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.rendezvous import Rendezvous, StoreGroup
from cubemesh.frameworks.private_network import enter_private_network
from cubemesh.frameworks.tensorflow.runtime import prepare

LEAVES_LAST_S = 0.5
"""Time that rank 0, TensorFlow's coordinator, waits at the end: a worker that loses it fails."""

FIRST_PORT = 20_000
"""Of the workers, in a network in which no others listen."""
CLUSTER_VARIABLE = "TF_CONFIG"

_joined: list[Any] = []
"""The strategy of this process: TensorFlow joins one cluster, once per process."""


class WorkerGroup(StoreGroup):
    """See `Group`; it transfers no arrays, since TensorFlow does so in its own step."""

    def __init__(self, rank: int, size: int, timeout_s: float, device: str) -> None:
        store = connect_store()
        assert store is not None, "only launch() starts ranks"
        super().__init__(rank, size, store, timeout_s)
        kinds = tf.distribute.experimental.CommunicationImplementation
        _joined.append(
            tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=tf.distribute.experimental.CommunicationOptions(
                    implementation=kinds.RING if device == "cpu" else kinds.NCCL,
                    timeout_seconds=timeout_s,
                )
            )
        )

    def _not_here(self, *arguments: Any, **options: Any) -> NoReturn:
        raise RuntimeError("TensorFlow transfers arrays inside its own step")

    all_reduce_mean = reduce_mean = broadcast = point_to_point = _not_here

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
    if not enter_private_network():  # join() says so, as each rank's outcome
        return fork_launcher.launch(run_rank, job, ranks)
    workers = [f"127.0.0.1:{FIRST_PORT + rank}" for rank in range(ranks)]

    def environ_of(rank: int) -> dict[str, str]:
        task = {"type": "worker", "index": rank}
        return {CLUSTER_VARIABLE: json.dumps({"cluster": {"worker": workers}, "task": task})}

    return fork_launcher.launch(run_rank, job, ranks, environ_of=environ_of)


def join(device: str, timeout_s: float, link: str = "auto") -> WorkerGroup:
    """Meet the other ranks; see `SupportsDistributed`. TensorFlow's threads are set
    before: joining starts them, one for each core this process may use."""
    if link != "auto":
        raise Unsupported(f"link={link}: tensorflow cannot choose a link. Leave link out.")
    if CLUSTER_VARIABLE not in os.environ:
        raise Unsupported(
            "tensorflow on several devices needs a network namespace, because its server listens "
            "on all interfaces without authentication, and this system does not permit one. "
            "Set framework=pytorch, or devices=1."
        )
    prepare(device, len(os.sched_getaffinity(0)))
    return WorkerGroup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout_s, device)


def strategy() -> Any | None:
    """The strategy that this process has joined; None without one."""
    return _joined[0] if _joined else None


def mean_over_workers(gradients: Sequence[Any]) -> list[Any]:
    """The gradients' means over all workers; to be called in a replica's step."""
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, list(gradients)))
