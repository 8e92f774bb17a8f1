"""Point-to-point messages between ranks: headers over gloo, arrays by send and recv.

    sender      ── device synchronized ──▶ send_header(numbers) ─▶ send(arrays)
    receiver    recv_header() waits on the host ◀──┘               recv(arrays)

A receiving GPU waits inside a kernel, which occupies part of it, and NCCL receives only from a
given rank. So headers come first, through the hosts and from any rank, and arrays are received when
they have been sent."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cubemesh.frameworks.contract.group import HEADER_INTEGERS

NO_TIMEOUT = datetime.timedelta(days=365)
"""For a header from a rank that may be computing or evaluating meanwhile."""


class TorchPointToPoint:
    """See `PointToPoint`. Every rank creates one at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._headers = dist.new_group(backend="gloo", timeout=NO_TIMEOUT)

    def send_header(self, numbers: Sequence[int], to: int) -> None:
        """See `PointToPoint`."""
        if self._cuda:
            torch.cuda.current_stream().synchronize()
        dist.send(torch.tensor(numbers, dtype=torch.int64), to, group=self._headers)

    def recv_header(self, source: int | None = None) -> tuple[int, list[int]]:
        """See `PointToPoint`."""
        numbers = torch.empty(HEADER_INTEGERS, dtype=torch.int64)
        sender = dist.recv(numbers, source, group=self._headers)
        return sender, numbers.tolist()

    def send(self, arrays: Sequence[Tensor], to: int) -> None:
        """See `PointToPoint`."""
        run_batched([dist.P2POp(dist.isend, array, to) for array in arrays])

    def recv(self, arrays: Sequence[Tensor], source: int) -> None:
        """See `PointToPoint`."""
        run_batched([dist.P2POp(dist.irecv, array, source) for array in arrays])


def run_batched(operations: list[dist.P2POp]) -> None:
    """Wait for a batch of operations, on the existing communicator: NCCL creates another for each
    pair of ranks that send separately."""
    for work in dist.batch_isend_irecv(operations):
        work.wait()
