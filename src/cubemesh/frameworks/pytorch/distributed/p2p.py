"""What one rank sends another, while the others go on: numbers over gloo, arrays by send and recv.

    sender      ── its device is done ──▶ send_header(numbers) ─▶ send(arrays)
    receiver    recv_header() waits on host ◀──┘              recv(arrays)

A GPU that receives waits inside a kernel, which takes part of it from whoever computes there, and
NCCL receives from no one but a rank that is named. So the numbers come first, through the hosts and
from any rank, and an array is received when it is there already.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cubemesh.frameworks.api.group import HEADER_INTEGERS

NEVER = datetime.timedelta(days=365)
"""How long a rank waits for a word of another's that may be computing, or evaluating, meanwhile."""


class TorchPointToPoint:
    """See `PointToPoint`. Every rank makes one at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._words = dist.new_group(backend="gloo", timeout=NEVER)

    def send_header(self, numbers: Sequence[int], to: int) -> None:
        """See `PointToPoint`."""
        if self._cuda:
            torch.cuda.current_stream().synchronize()
        dist.send(torch.tensor(numbers, dtype=torch.int64), to, group=self._words)

    def recv_header(self, source: int | None = None) -> tuple[int, list[int]]:
        """See `PointToPoint`."""
        numbers = torch.empty(HEADER_INTEGERS, dtype=torch.int64)
        who = dist.recv(numbers, source, group=self._words)
        return who, numbers.tolist()

    def send(self, arrays: Sequence[Tensor], to: int) -> None:
        """See `PointToPoint`."""
        _together([dist.P2POp(dist.isend, array, to) for array in arrays])

    def recv(self, arrays: Sequence[Tensor], source: int) -> None:
        """See `PointToPoint`."""
        _together([dist.P2POp(dist.irecv, array, source) for array in arrays])


def _together(operations: list[dist.P2POp]) -> None:
    """As one, on the communicator there is already: NCCL makes another for each pair of ranks that
    send one by one."""
    for work in dist.batch_isend_irecv(operations):
        work.wait()
