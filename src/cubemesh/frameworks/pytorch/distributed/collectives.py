"""Collectives by torch.distributed, for bandwidth and correctness measurements.

all-reduce, broadcast and reduce replace their array in PyTorch, so they are measured in place only;
reduce-scatter and all-gather in place (the rank's part inside the whole array) and out of place;
the others out of place. As in nccl-tests, successive calls use different offsets of arrays of the
largest size, so that small ones are not always in a cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cubemesh.frameworks.contract.collectives import (
    ROOT,
    SCRAMBLE,
    CollectiveProgram,
    Extent,
    extent,
    pieces,
    span,
)
from cubemesh.frameworks.contract.program import Unsupported, monotonic_s
from cubemesh.frameworks.pytorch.distributed.p2p import run_batched
from cubemesh.frameworks.pytorch.runtime import prepare, synchronize
from cubemesh.schema.collective import REDUCING, Collective

TYPES = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "half": torch.half,
    "bfloat16": torch.bfloat16,
    "float": torch.float,
    "double": torch.double,
}
ONLY_IN_PLACE = ("all-reduce", "broadcast", "reduce")
BOTH_WAYS = ("reduce-scatter", "all-gather")
MOST_PLACES = 32
CHUNK = 1 << 22
"""Elements computed at once in a check."""


class TorchCollective:
    """See `CollectiveProgram`."""

    def __init__(self, work: Collective, device: str, largest: Extent) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.library = library(device)
        self.places: tuple[bool, ...] = (False,)
        if work.collective in (*ONLY_IN_PLACE, *BOTH_WAYS):
            self.places = (True,) if work.collective in ONLY_IN_PLACE else (False, True)
        self._work, self._device = work, device
        self._span = span(work, self.ranks)
        room, kind = max(largest.gives, largest.gets), TYPES[work.data_type]
        own = 0 if self.places == (True,) else largest.gives
        self._input = torch.zeros(own, dtype=kind, device=device)
        self._output = torch.zeros(room, dtype=kind, device=device)

    def lay_out(self, of: Extent, in_place: bool, pair: tuple[int, int] | None = None) -> None:
        """See `CollectiveProgram`."""
        self._of, self._pair = of, pair
        whole = max(of.gives, of.gets)
        places = max(1, min(len(self._output) // whole, MOST_PLACES))
        arrays = [self._arrays(place, whole, in_place) for place in range(places)]
        self._given, self._got = arrays[0]
        self._whole = self._output[:whole]
        self._calls = [self._operation(given, got) for given, got in arrays]
        self._next = 0

    def _arrays(self, place: int, whole: int, in_place: bool) -> tuple[Tensor, Tensor]:
        """Input and output arrays of calls at an offset."""
        of, name = self._of, self._work.collective
        there = self._output[place * whole : (place + 1) * whole]
        if not in_place:
            return self._input[place * of.gives : (place + 1) * of.gives], there[: of.gets]
        part = there[self.rank * of.count : (self.rank + 1) * of.count]
        if name == "all-gather":
            return part, there
        return there, part if name == "reduce-scatter" else there

    def _operation(self, given: Tensor, got: Tensor) -> Callable[[], object]:
        if self._pair is not None:
            return self._sending(given, got, *self._pair)
        name, (op, _) = self._work.collective, _REDUCTIONS[self._work.reduction]
        parts = list((given if name == "scatter" else got).chunk(self.ranks))
        mine = parts if self.rank == ROOT else None
        before, after = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        operations: dict[str, Callable[[], object]] = {
            "all-reduce": lambda: dist.all_reduce(got, op),
            "reduce": lambda: dist.reduce(got, ROOT, op),
            "broadcast": lambda: dist.broadcast(got, ROOT),
            "reduce-scatter": lambda: _reduce_scatter(got, given, op),
            "all-gather": lambda: _all_gather(got, given),
            "gather": lambda: dist.gather(given, mine, ROOT),
            "scatter": lambda: dist.scatter(got, mine, ROOT),
            "all-to-all": lambda: dist.all_to_all_single(got, given),
            "send-receive": lambda: run_batched(
                [dist.P2POp(dist.isend, given, after), dist.P2POp(dist.irecv, got, before)]
            ),
        }
        return operations[name]

    def _sending(self, given: Tensor, got: Tensor, first: int, last: int) -> Callable[[], object]:
        if self.rank == first:
            return lambda: run_batched([dist.P2POp(dist.isend, given, last)])
        if self.rank == last:
            return lambda: run_batched([dist.P2POp(dist.irecv, got, first)])
        return lambda: None

    def call(self) -> None:
        """See `CollectiveProgram`."""
        self._calls[self._next]()
        self._next = (self._next + 1) % len(self._calls)

    def synchronize(self) -> None:
        """See `CollectiveProgram`."""
        synchronize(self._device)

    def barrier(self) -> None:
        """See `CollectiveProgram`."""
        dist.barrier()
        synchronize(self._device)

    clock = staticmethod(monotonic_s)

    def fill(self, repetition: int) -> None:
        """See `CollectiveProgram`."""
        self._next = 0
        self._whole.zero_()
        if self._work.collective == "broadcast" and self.rank != ROOT:
            return
        for start in range(0, len(self._given), CHUNK):
            part = self._given[start : start + CHUNK]
            part.copy_(self._numbers(start, len(part), self.rank, repetition))

    def wrong(self, repetition: int) -> int:
        """See `CollectiveProgram`."""
        found = 0
        for piece in pieces(self._work, self._of, self.rank, self.ranks, self._pair):
            for start in range(0, piece.length, CHUNK):
                part = self._got[
                    piece.start + start : piece.start + min(start + CHUNK, piece.length)
                ]
                each = (
                    self._numbers(piece.from_start + start, len(part), source, repetition)
                    for source in piece.sources
                )
                right = reduce(_REDUCTIONS[self._work.reduction][1], each)
                if self._averages:
                    right //= self.ranks
                found += int((part != right.to(part.dtype)).sum())
        return found

    @property
    def _averages(self) -> bool:
        return self._work.reduction == "avg" and self._work.collective in REDUCING

    def _numbers(self, start: int, count: int, rank: int, repetition: int) -> Tensor:
        """The input elements of `rank` from `start` on in a repetition, as int64."""
        first, second, mask = SCRAMBLE
        seed = ((rank * 7919 + repetition * 104729 + 1) * second) & mask
        number = torch.arange(start, start + count, device=self._device) & mask
        number = (number * first + seed) & mask
        number ^= number >> 15
        number = (number * second) & mask
        number ^= number >> 13
        number %= self._span
        if self._work.reduction == "prod":
            number += 1
        return number * self.ranks if self._averages else number


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""The current names; the older ones warn at each call."""
_REDUCTIONS: dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": (dist.ReduceOp.SUM, torch.add),
    "prod": (dist.ReduceOp.PRODUCT, torch.mul),
    "min": (dist.ReduceOp.MIN, torch.minimum),
    "max": (dist.ReduceOp.MAX, torch.maximum),
    "avg": (dist.ReduceOp.AVG, torch.add),
}
"""Reduction → operation of torch.distributed, and of two arrays for the check."""


def library(device: str) -> str:
    """The library of collectives between devices of this kind."""
    if torch.device(device).type != "cuda":
        return "gloo"
    return f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}"  # type: ignore[no-untyped-call]


def build_collective(
    work: Collective, device: str, threads: int, largest: Extent
) -> CollectiveProgram:
    """The operation of `work`; `Unsupported` if the library refuses a call of the smallest size."""
    prepare(device, "fp32", threads)
    program = TorchCollective(work, device, largest)
    try:
        program.lay_out(extent(work, 1, program.ranks), program.places[0])
        program.call()
        program.synchronize()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if not any(word in str(error).lower() for word in _REFUSALS):
            raise
        reason = str(error).splitlines()[0].rstrip(".")
        raise Unsupported(
            f"{program.library} does not support {work.collective} ({work.reduction}, "
            f"{work.data_type}) here: {reason}."
        ) from error
    return program


_REFUSALS = ("support", "not implemented", "cannot use", "invalid scalar type", "unhandled")
"""In the messages of torch.distributed about unsupported operations, reductions or dtypes."""
