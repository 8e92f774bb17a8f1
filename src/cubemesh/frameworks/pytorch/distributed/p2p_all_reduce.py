"""An all-reduce that leaves a GPU's cores to the network: copy engines move the bytes.

    bucket of 3 ranks   │ part 0 │ part 1 │ part 2 │     rank r makes the mean of part r
    meet                every rank's bucket is full
    fetch               part r of every other rank; then their mean, into the bucket
    meet                every part has its mean
    fetch               the other parts, each from the rank that made it
    meet                nobody reads another's bucket any more: what follows may write it

NCCL's all-reduce is a kernel that takes a tenth of the cores and more, and a convolution whose
tiles were to fill all of them at once takes two rounds in place of one. Copy engines move as much,
2 (n - 1)/n of a bucket in and out; only sums and meetings run on cores. Buckets lie in memory that
every GPU of the host has mapped (PyTorch's symmetric memory). A mean is computed once and copied,
so that all ranks have the same to the bit.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cubemesh.frameworks.api.program import Unsupported
from cubemesh.frameworks.pytorch.runtime import is_out_of_memory

ALIGNED = 1024
"""Numbers of which each part but the last is a multiple: copies begin at whole kilobytes."""
REFUSED = (
    "Exchanges by copies take GPUs of one host that read each other's memory, and here {}. Set "
    "sync=all-reduce, or all-reduce-16."
)
"""With what is in the way."""


class TorchPeerMemory:
    """See `PeerMemory`."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self._device, self._timeout_ms = device, round(1e3 * timeout_s)
        # First where a step leaves room: a sum that is late holds up every rank.
        self._stream: Any = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._rooms: dict[int, _Room] = {}
        self._arrived = torch.empty(0, dtype=torch.uint8, device=device)
        """What was fetched of one bucket: they come one after the other."""

    def allocate(self, numbers: int, like: Tensor) -> Tensor:
        """See `PeerMemory`. Unsupported where the GPUs do not reach each other's memory."""
        room = _Room(numbers, like.dtype, self._device)
        self._rooms[room.own.data_ptr()] = room
        if room.arriving_bytes > self._arrived.numel():
            self._arrived = self._arrived.new_empty(room.arriving_bytes)
        return room.own

    def all_reduce_mean(self, array: Tensor) -> Fetched:
        """See `PeerMemory`."""
        room = self._rooms[array.data_ptr()]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            room.meet(self._timeout_ms)
            room.average(self._arrived[: room.arriving_bytes])
            room.meet(self._timeout_ms)
            room.fetch()
            room.meet(self._timeout_ms)
        return Fetched(self._stream)


class Fetched:
    """A mean that is on its way."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._done = stream.record_event()

    def wait(self) -> None:
        """See `TransferHandle`."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._done)


class _Room:
    """One bucket, as this rank sees it on every GPU."""

    def __init__(self, numbers: int, dtype: torch.dtype, device: torch.device) -> None:
        group = dist.group.WORLD
        assert group is not None, "joined before"
        self._rank, ranks = group.rank(), group.size()
        try:
            # Here, because older PyTorch has no such module, or not these functions.
            from torch.distributed import _symmetric_memory as symmetric

            self.own = symmetric.empty(numbers, dtype=dtype, device=device)
            self._handle: Any = symmetric.rendezvous(self.own, group)
        except (ImportError, AttributeError, RuntimeError) as error:
            if is_out_of_memory(error) or isinstance(error, dist.DistError):
                raise
            why = f"PyTorch says: {str(error).splitlines()[0]}"
            raise Unsupported(REFUSED.format(why)) from error
        self.own.zero_()
        self._parts = parts(numbers, ranks)
        self._seen = [self._handle.get_buffer(r, (numbers,), dtype, 0) for r in range(ranks)]
        # Each rank begins with another one, so that no GPU is read by all at once.
        self._others = [(self._rank + n) % ranks for n in range(1, ranks)]
        self._mine = self.own[self._parts[self._rank]]
        self.arriving_bytes = len(self._others) * self._mine.nbytes

    def meet(self, timeout_ms: int) -> None:
        """Wait for every rank to come here, on the device."""
        self._handle.barrier(0, timeout_ms)

    def average(self, memory: Tensor) -> None:
        """Fetch this rank's part of the others' into `memory`, `arriving_bytes` of it, and leave
        the mean in this rank's array."""
        part = self._parts[self._rank]
        arrived = memory.view(self.own.dtype).view(len(self._others), -1)
        for row, peer in zip(arrived, self._others, strict=True):
            row.copy_(self._seen[peer][part])
        average_into(self._mine, arrived)

    def fetch(self) -> None:
        """Fetch the other parts from those who have averaged them."""
        for peer in self._others:
            part = self._parts[peer]
            self.own[part].copy_(self._seen[peer][part])


def parts(numbers: int, ranks: int) -> list[slice]:
    """Which part of as many numbers each rank averages; the last may be shorter, or empty."""
    part = -(-numbers // (ranks * ALIGNED)) * ALIGNED
    return [slice(min(r * part, numbers), min((r + 1) * part, numbers)) for r in range(ranks)]


def average_into(mine: Tensor, others: Tensor) -> None:
    """Replace `mine` (n,) by its mean with the rows of `others` (rows, n)."""
    if not mine.is_cuda or find_spec("triton") is None:
        for row in others:
            mine.add_(row)
        mine.div_(len(others) + 1)
        return
    from cubemesh.kernels.triton import reduce

    reduce.average_into(mine, others)
