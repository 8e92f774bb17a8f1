"""Process group by torch.distributed: NCCL between GPUs, gloo between CPUs.

The launcher sets RANK and WORLD_SIZE; stores.py has where the ranks meet."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cubemesh.frameworks.contract.group import Link, PeerMemory, PointToPoint, TransferHandle
from cubemesh.frameworks.contract.kv_store import connect_store
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.rendezvous import StoreGroup
from cubemesh.frameworks.pytorch.distributed.links import (
    NcclLog,
    gloo_link,
    interface_names,
    link_environment,
)
from cubemesh.frameworks.pytorch.distributed.p2p import TorchPointToPoint
from cubemesh.frameworks.pytorch.distributed.p2p_all_reduce import REFUSED, TorchPeerMemory
from cubemesh.frameworks.pytorch.distributed.stores import TorchStore, open_store

DUMPS = ("NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE")
"""Files that NCCL writes its topology and graphs to when a communicator is initialized."""
# Of one array; they have other names from PyTorch 2.13 on.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
LOW_PRECISION = torch.bfloat16
"""Of 16-bit gradient communication: with fp32's range no gradient overflows at any loss scale."""


class TorchGroup(StoreGroup):
    """See `Group`; plain values go through the rendezvous store."""

    def __init__(self, device: str, timeout_s: float, link: str = "auto") -> None:
        cuda = torch.device(device).type == "cuda"
        self._averages = cuda  # gloo has no mean
        self._log = NcclLog() if cuda else None
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        timeout = datetime.timedelta(seconds=timeout_s)
        client = connect_store()
        store = open_store(client, timeout)
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timeout,
            device_id=torch.device(device) if cuda else None,
        )
        if cuda:  # written above; later communicators, of fewer ranks, must not replace the files
            for variable in DUMPS:
                os.environ.pop(variable, None)
        super().__init__(rank, size, client or TorchStore(store), timeout_s)
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
        if isinstance(self._store, TorchStore):
            self._store.leave(self.rank, self.size, self._timeout_s)


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
