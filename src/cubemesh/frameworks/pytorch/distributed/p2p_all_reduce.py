"""All-reduce by copy engines over peer-to-peer memory, leaving the GPU's SMs to the backward pass.

    bucket of 3 ranks   │ part 0 │ part 1 │ part 2 │     rank r computes the mean of part r
    barrier             every rank's bucket is full
    copy                part r of every other rank; then their mean, into the bucket
    barrier             every part has its mean
    copy                the other parts, each from the rank that computed it
    barrier             all copies are done: buckets may be written again

NCCL's all-reduce is a kernel on a tenth of the SMs or more, and a convolution whose tiles would
fill all of them in one wave needs two. Copy engines move as much, 2 (n - 1)/n of a bucket in and
out; only sums and barriers run on SMs. Buckets are in memory that every GPU of the host has mapped
(PyTorch's symmetric memory). Each mean is computed once and copied, so all ranks have identical
bits."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch.runtime import is_out_of_memory

ALIGNED = 1024
"""Each part but the last is a multiple of so many numbers: copies begin at whole kilobytes."""
REFUSED = (
    "sync=all-reduce-copied needs GPUs of one host with peer-to-peer access, and here {}. Set "
    "sync=all-reduce or all-reduce-16."
)
"""With the reason."""


class TorchPeerMemory:
    """See `PeerMemory`."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self._device, self._timeout_ms = device, round(1e3 * timeout_s)
        # High priority: a late sum delays every rank.
        self._stream: Any = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._buckets: dict[int, _SharedBucket] = {}
        self._scratch = torch.empty(0, dtype=torch.uint8, device=device)
        """Copies from other ranks, of one bucket at a time."""

    def allocate(self, numbers: int, like: Tensor) -> Tensor:
        """See `PeerMemory`. Unsupported without peer-to-peer access."""
        bucket = _SharedBucket(numbers, like.dtype, self._device)
        self._buckets[bucket.own.data_ptr()] = bucket
        if bucket.scratch_bytes > self._scratch.numel():
            self._scratch = self._scratch.new_empty(bucket.scratch_bytes)
        return bucket.own

    def all_reduce_mean(self, array: Tensor) -> PeerTransfer:
        """See `PeerMemory`."""
        bucket = self._buckets[array.data_ptr()]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            bucket.barrier(self._timeout_ms)
            bucket.average(self._scratch[: bucket.scratch_bytes])
            bucket.barrier(self._timeout_ms)
            bucket.gather()
            bucket.barrier(self._timeout_ms)
        return PeerTransfer(self._stream)


class PeerTransfer:
    """The handle of an all-reduce."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._done = stream.record_event()

    def wait(self) -> None:
        """See `TransferHandle`."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._done)


class _SharedBucket:
    """One bucket, mapped from every GPU."""

    def __init__(self, numbers: int, dtype: torch.dtype, device: torch.device) -> None:
        group = dist.group.WORLD
        assert group is not None, "after join"
        self._rank, ranks = group.rank(), group.size()
        try:
            # Older PyTorch has no such module, or not these functions.
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
        self._mapped = [self._handle.get_buffer(r, (numbers,), dtype, 0) for r in range(ranks)]
        # Each rank starts with a different one, so that not all read the same GPU at once.
        self._others = [(self._rank + n) % ranks for n in range(1, ranks)]
        self._mine = self.own[self._parts[self._rank]]
        self.scratch_bytes = len(self._others) * self._mine.nbytes

    def barrier(self, timeout_ms: int) -> None:
        """Barrier of all ranks, on the device."""
        self._handle.barrier(0, timeout_ms)

    def average(self, memory: Tensor) -> None:
        """Copy this rank's part of the others into `memory` (`scratch_bytes`), and write the mean
        to this rank's array."""
        part = self._parts[self._rank]
        copies = memory.view(self.own.dtype).view(len(self._others), -1)
        for row, peer in zip(copies, self._others, strict=True):
            row.copy_(self._mapped[peer][part])
        average_into(self._mine, copies)

    def gather(self) -> None:
        """Copy the other parts from the ranks that averaged them."""
        for peer in self._others:
            part = self._parts[peer]
            self.own[part].copy_(self._mapped[peer][part])


def parts(numbers: int, ranks: int) -> list[slice]:
    """The part of so many numbers that each rank averages; the last may be shorter, or empty."""
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
