"""Process group by torch.distributed: NCCL between GPUs, gloo between CPUs.

The launcher (e.g. torchrun or Slurm) sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; see
https://docs.pytorch.org/docs/stable/elastic/run.html."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cubemesh.frameworks.contract.group import Link, PeerMemory, PointToPoint, TransferHandle
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.rendezvous import KVStore, StoreGroup
from cubemesh.frameworks.pytorch.distributed.links import (
    NcclLog,
    gloo_link,
    interface_names,
    link_environment,
)
from cubemesh.frameworks.pytorch.distributed.p2p import NO_TIMEOUT, TorchPointToPoint
from cubemesh.frameworks.pytorch.distributed.p2p_all_reduce import REFUSED, TorchPeerMemory

LOW_PRECISION = torch.bfloat16
"""Of 16-bit gradient communication: with fp32's range no gradient overflows at any loss scale."""


class TorchGroup(StoreGroup):
    """See `Group`; plain values go through the rendezvous store."""

    def __init__(self, device: str, timeout_s: float, link: str = "auto") -> None:
        cuda = torch.device(device).type == "cuda"
        self._averages = cuda  # gloo has no mean
        self._log = NcclLog() if cuda else None
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            timeout=datetime.timedelta(seconds=timeout_s),
            device_id=torch.device(device) if cuda else None,
        )
        super().__init__(dist.get_rank(), dist.get_world_size(), TorchStore(), timeout_s)
        self._device = torch.device(device)
        self._link, self._uses_peer_memory = link, False

    def all_reduce_mean(self, array: Tensor, low_precision: bool = False) -> TransferHandle:
        """See `Group`."""
        sent = array.to(LOW_PRECISION) if low_precision else array
        op = dist.ReduceOp.AVG if self._averages else dist.ReduceOp.SUM
        work = dist.all_reduce(sent, op, async_op=True)
        return _Transfer(work, sent, array, 1 if self._averages else self.size)

    def reduce_mean(self, array: Tensor, root: int) -> TransferHandle:
        """See `Group`."""
        op = dist.ReduceOp.AVG if self._averages else dist.ReduceOp.SUM
        work = dist.reduce(array, root, op, async_op=True)
        return _Transfer(work, array, array, 1 if self._averages else self.size)

    def broadcast(self, arrays: Sequence[Tensor], root: int) -> TransferHandle:
        """See `Group`."""
        return _Transfers([dist.broadcast(a, root, async_op=True) for a in arrays])

    def peer_memory(self) -> PeerMemory:
        """See `PeerMemoryGroup`."""
        if self._device.type != "cuda":
            raise Unsupported(REFUSED.format("ranks are on CPUs"))
        if self._link != "auto":
            raise Unsupported(
                f"link={self._link} applies to NCCL, which sync=all-reduce-copied does not use. "
                "Leave link out, or set sync=all-reduce."
            )
        self._uses_peer_memory = True
        return TorchPeerMemory(self._device, self._timeout_s)

    def point_to_point(self) -> PointToPoint:
        """See `Group`."""
        return TorchPointToPoint(self._device)

    def link(self) -> Link | None:
        """See `ReportsLink`."""
        if self._uses_peer_memory:
            return Link(transport="copies from GPU to GPU")
        return gloo_link() if self._log is None else self._log.link()

    def close(self) -> None:
        """Leave the group."""
        if self._log is not None:
            self._log.close()
        dist.destroy_process_group()


class TorchStore(KVStore):
    """The store that torch.distributed has created; its timeout is that of the process group."""

    def __init__(self) -> None:
        self._store = dist.distributed_c10d._get_default_store()

    def put(self, key: str, value: Any) -> None:
        """See `KVStore`."""
        self._store.set(key, json.dumps(value))

    def add(self, key: str) -> int:
        """See `KVStore`."""
        return int(self._store.add(key, 1))

    def has(self, key: str) -> bool:
        """See `KVStore`."""
        return bool(self._store.check([key]))

    def wait(self, key: str) -> None:
        """See `KVStore`."""
        self._store.wait([key], NO_TIMEOUT)

    def get(self, key: str, timeout_s: float) -> Any:
        """See `KVStore`."""
        return json.loads(self._store.get(key))


class _Transfer:
    """One operation; its result is divided and copied to its array in `wait`."""

    def __init__(self, work: Any, sent: Tensor, array: Tensor, divisor: int) -> None:
        self._work, self._sent, self._array, self._divisor = work, sent, array, divisor

    def wait(self) -> None:
        """See `TransferHandle`."""
        self._work.wait()
        if self._divisor > 1:
            self._sent.div_(self._divisor)
        if self._sent is not self._array:
            self._array.copy_(self._sent)


class _Transfers:
    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        """See `TransferHandle`."""
        for work in self._works:
            work.wait()


def join(device: str, timeout_s: float, link: str = "auto") -> TorchGroup:
    """See `SupportsDistributed`."""
    os.environ |= link_environment(link, torch.device(device).type, interface_names())
    return TorchGroup(device, timeout_s, link)
