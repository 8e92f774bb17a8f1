"""Synchronous parameter servers: one rank averages the gradients, updates, and sends the weights
out (M. Li et al., OSDI 2014). The server computes as well. Its weights are on its device, or in the
memory of its CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cubemesh.frameworks.contract.gradient_sync import (
    BUCKET_BYTES,
    Bucket,
    CpuServer,
    SyncFeature,
)
from cubemesh.frameworks.contract.group import Group, TransferHandle
from cubemesh.parallel.strategy import SERVER, Strategy, SyncCost, wait_all


class ParameterServer(Strategy):
    """Gradients are reduced to rank 0; its weights are broadcast."""

    name = "parameter-server"
    summary = "gradients to rank 0, which averages them and updates; its weights to all"
    needs: SyncFeature | None = "hooks"
    same_weights = True
    more_work = (SERVER,)
    server = SERVER
    bucket_bytes: int | None = BUCKET_BYTES
    cost = SyncCost(gradients="reduce", weights="broadcast")

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.updates = group.rank == SERVER
        self._transfers: list[TransferHandle] = []

    def ready(self, bucket: Bucket) -> None:
        """Start to send it to the server."""
        self._transfers.append(self._group.reduce_mean(bucket.gradients, SERVER))

    def finish(self) -> None:
        """Wait until the server has every mean."""
        wait_all(self._transfers)

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Update on the server; the others receive its weights."""
        if self.updates:
            apply()
        self._group.broadcast(weights, SERVER).wait()


class CpuParameterServer(Strategy):
    """The gradients of all ranks are concatenated in the memory of rank 0's host, where the weights
    and the optimizer are."""

    name = "parameter-server-cpu"
    summary = (
        "gradients of all ranks to one buffer on the CPU, which updates there; its weights back"
    )
    needs: SyncFeature | None = "cpu-server"
    same_weights = True
    more_work = (SERVER,)
    profiled = False
    sequential_step = False
    checkpoints = False
    updates = False
    cost = SyncCost(pattern="host-server", gradients="host", weights="host")

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._server: CpuServer | None = None

    def serve(self, make: Callable[[int, int], CpuServer]) -> None:
        """See `CpuServerSync`."""
        if self._group.size > 1:
            self._server = make(self._group.rank, self._group.size)

    def update(self, apply: Callable[[], None], weights: Sequence[Any]) -> None:
        """Have the server update, and continue with its weights."""
        if self._group.size == 1:
            apply()
            return
        assert self._server is not None, "serve() comes before steps"
        self._server.step()
