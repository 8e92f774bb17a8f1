"""All-reduce: every rank gets the mean of all gradients and makes the same update.

A bucket is sent while the backward pass goes on, as in PyTorch's DistributedDataParallel (Li et
al., VLDB 2020).
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from cubemesh.frameworks.contract.gradient_sync import BUCKET_BYTES, Bucket, SyncFeature
from cubemesh.frameworks.contract.group import Group, PeerMemory, PeerMemoryGroup, TransferHandle
from cubemesh.parallel.strategy import Strategy, SyncCost, wait_all


class AllReduce(Strategy):
    """An all-reduce of each bucket by the framework's collectives (NCCL, gloo)."""

    name = "all-reduce"
    summary = "each bucket of gradients, as soon as it is full; every rank updates its weights"
    needs: SyncFeature | None = "all-reduce"
    same_weights = True
    replicated = True
    tuned = True
    capturable = True
    bucket_bytes: int | None = BUCKET_BYTES
    cost: ClassVar[SyncCost | None] = SyncCost(gradients="all-reduce")

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._transfers: list[TransferHandle] = []

    def ready(self, bucket: Bucket) -> None:
        """Start the all-reduce of the bucket."""
        self._transfers.append(self._group.all_reduce_mean(bucket.gradients, self.low_precision))

    def finish(self) -> None:
        """Wait for every bucket."""
        wait_all(self._transfers)

    def finish_but_last(self) -> None:
        """See `FinishesInOrder`."""
        last = self._transfers[-1:]
        wait_all(self._transfers[:-1])
        self._transfers = last


class AllReduce16(AllReduce):
    """The same in 16-bit floats (PyTorch's bf16_compress_hook)."""

    name = "all-reduce-16"
    summary = "as all-reduce, in 16-bit floats (bfloat16): half the bytes, rounded"
    needs = "hooks"
    low_precision = True
    cost = SyncCost(gradients="all-reduce", bytes_factor=0.5)


class PeerAllReduce(AllReduce):
    """All-reduce by peer-to-peer copies between GPUs, whose cores continue to compute."""

    name = "all-reduce-copied"
    summary = "as all-reduce, by peer-to-peer copies between GPUs, whose cores continue to compute"
    needs = "hooks"
    needs_peer_access = True
    profiled = False
    cost = SyncCost(pattern="peer-copies", gradients="peers")

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._peers: PeerMemory | None = None
        if group.size > 1:
            self._peers = cast(PeerMemoryGroup, group).peer_memory()

    def allocate(self, numbers: int, like: Any) -> Any:
        """See `AllocatesBuckets`."""
        return None if self._peers is None else self._peers.allocate(numbers, like)

    def ready(self, bucket: Bucket) -> None:
        """Start to average the bucket."""
        if self._peers is not None:
            self._transfers.append(self._peers.all_reduce_mean(bucket.gradients))


class PeerAllReduce16(PeerAllReduce):
    """The same in 16-bit floats: its buckets hold them, so nothing is converted here."""

    name = "all-reduce-copied-16"
    summary = "as all-reduce-copied, in 16-bit floats"
    low_precision = True
    cost = SyncCost(pattern="peer-copies", gradients="peers", bytes_factor=0.5)
