"""What travels in a measured collective, and what must arrive?

Element i that rank k gives, in repetition t, is a whole number drawn from (i, k, t) by a fixed
scrambling of bits, from a range so small that every sum is exact in its data type. So a result is
right where every element equals what was computed for it apart, and an element that is lost, added
twice, late from another repetition or in another's place is seen.

    span   numbers 0 … span - 1 that elements are drawn from
    sum    n (span - 1) is below the first whole number that the type cannot hold
    avg    the same of multiples of n, where n is a power of two: then dividing by n is exact
    prod   1 or 2, so that every product is a power of two
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cubemesh.frameworks.api.program import Unsupported
from cubemesh.schema.collective import ELEMENT_BYTES, PARTED, REDUCING, Collective

ROOT = 0
"""The rank that gives or gets the whole array."""
WIDEST = 256
"""Most numbers that elements are drawn from."""
_WHOLE_TO: Mapping[str, int] = {
    "int8": 2**7,
    "uint8": 2**8,
    "int32": 2**31,
    "int64": 2**63,
    "half": 2**11,
    "bfloat16": 2**8,
    "float": 2**24,
    "double": 2**53,
}
"""Data type → whole numbers below this are exact in it."""
_DOUBLINGS: Mapping[str, int] = {
    "int8": 6,
    "uint8": 7,
    "int32": 30,
    "int64": 62,
    "half": 15,
    "bfloat16": 127,
    "float": 127,
    "double": 1023,
}
"""Data type → how often 1 can be doubled in it."""
SCRAMBLE = (1103515245, 1597334677, 0x7FFFFFFF)
"""Two odd factors, and the bits that are kept."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """One size of a collective, in elements."""

    gives: int
    """Elements of the array each rank gives; of broadcast and scatter, the root."""
    gets: int
    """Elements of the array each rank gets; of reduce and gather, the root."""
    count: int
    """As nccl-tests counts: of the array, or of a rank's part."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch of a result, and whose elements are in it."""

    start: int
    length: int
    sources: tuple[int, ...]
    """The ranks that gave it; several are reduced."""
    from_start: int
    """Where in their arrays it begins."""


class CollectiveProgram(Protocol):
    """One collective of all ranks, repeated: what `Collective` work measures. Every rank calls the
    same functions in the same order."""

    library: str
    """What carries it, with its version: `nccl 2.27.5`, `gloo`."""
    places: tuple[bool, ...]
    """Whether in place, for each way it is offered."""

    def lay_out(self, extent: Extent, in_place: bool, pair: tuple[int, int] | None = None) -> None:
        """The calls to come are of this extent; with `pair` rank `pair[0]` sends to `pair[1]`."""

    def fill(self, repetition: int) -> None:
        """Give the arrays of the next call the elements of a repetition."""

    def call(self) -> None:
        """Queue the operation once."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def wrong(self, repetition: int) -> int:
        """Elements of this rank's result that are not what they must be, of one call after
        `fill`."""

    def clock(self) -> float:
        """Seconds on the scale of `time.perf_counter()`."""


@runtime_checkable
class SupportsCollectives(Protocol):
    """A framework whose ranks' collectives are measured by themselves; others need not offer
    this. The ranks have met already (`SupportsDistributed.join`)."""

    def build_collective(
        self, work: Collective, device: str, threads: int, largest: Extent
    ) -> CollectiveProgram:
        """The operation of `work`, with arrays for up to `largest`."""


def extent(work: Collective, size_bytes: int, ranks: int) -> Extent:
    """What an array of about `size_bytes` comes to, in whole elements and alike for each rank."""
    each = ELEMENT_BYTES[work.data_type]
    if work.collective not in PARTED:
        count = max(1, size_bytes // each)
        return Extent(gives=count, gets=count, count=count, size_bytes=count * each)
    count = max(1, size_bytes // each // ranks)
    whole = count * ranks
    return Extent(
        gives=count if work.collective in ("all-gather", "gather") else whole,
        gets=count if work.collective in ("reduce-scatter", "scatter") else whole,
        count=count,
        size_bytes=whole * each,
    )


def pieces(
    work: Collective, of: Extent, rank: int, ranks: int, pair: tuple[int, int] | None = None
) -> tuple[Piece, ...]:
    """What rank `rank` must have after one call; nothing where its result is not said."""
    everyone, part, name = tuple(range(ranks)), of.count, work.collective
    if pair is not None:
        return (_whole(of, pair[0]),) if rank == pair[1] else ()
    if name in ("reduce", "gather") and rank != ROOT:
        return ()
    if name in ("all-reduce", "reduce"):
        return (Piece(start=0, length=of.gets, sources=everyone, from_start=0),)
    if name == "reduce-scatter":
        return (Piece(start=0, length=part, sources=everyone, from_start=rank * part),)
    if name == "broadcast":
        return (_whole(of, ROOT),)
    if name == "scatter":
        return (Piece(start=0, length=part, sources=(ROOT,), from_start=rank * part),)
    if name == "send-receive":
        return (_whole(of, (rank - 1) % ranks),)
    # all-gather, gather, all-to-all
    begin = rank * part if name == "all-to-all" else 0
    return tuple(
        Piece(start=k * part, length=part, sources=(k,), from_start=begin) for k in everyone
    )


def _whole(of: Extent, source: int) -> Piece:
    return Piece(start=0, length=of.gets, sources=(source,), from_start=0)


def span(work: Collective, ranks: int) -> int:
    """How many numbers elements are drawn from; `Unsupported` where no result could be checked
    exactly."""
    whole_to = _WHOLE_TO[work.data_type]
    found = min(WIDEST, whole_to)
    if work.collective in REDUCING:
        if work.reduction == "sum":
            found = min(WIDEST, whole_to // ranks)
        elif work.reduction == "avg":
            found = min(WIDEST, whole_to // ranks**2) if ranks & (ranks - 1) == 0 else 0
        elif work.reduction == "prod":
            found = 2 if ranks <= _DOUBLINGS[work.data_type] else 0
    if found < 2 and work.checks:
        raise Unsupported(
            f"reduction={work.reduction} of {work.data_type} on {ranks} devices cannot be checked "
            "exactly. Take data_type=double, another number of devices (of avg a power of two), "
            "or checks=0."
        )
    return max(2, found)


def needs_bytes(work: Collective, of: Extent, on_cpu: bool) -> int:
    """What the arrays of a sweep up to this extent take on one device. Gloo copies what it
    exchanges, so on a CPU as much again is counted."""
    arrays = (of.gives + max(of.gives, of.gets)) * ELEMENT_BYTES[work.data_type]
    return arrays * (2 if on_cpu else 1)
