"""The elements of a measured collective: what each rank sends and what must arrive.

Element i of rank k in repetition t is an integer hashed from (i, k, t), from a range so small that
every sum is exact in its data type. A result is correct where every element equals its expected
value, computed separately; so an element that is lost, added twice, left from another repetition or
misplaced is detected.

    span   elements are 0 … span - 1
    sum    n (span - 1) is below the first integer that the type cannot represent
    avg    the same of multiples of n, where n is a power of two: then dividing by n is exact
    prod   1 or 2, so that every product is a power of two
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema.collective import ELEMENT_BYTES, PARTED, REDUCING, Collective

ROOT = 0
"""The rank that sends or receives the whole array."""
WIDEST = 256
"""Largest span."""
_EXACT: Mapping[str, tuple[int, int]] = {
    "int8": (2**7, 6),
    "uint8": (2**8, 7),
    "int32": (2**31, 30),
    "int64": (2**63, 62),
    "half": (2**11, 15),
    "bfloat16": (2**8, 127),
    "float": (2**24, 127),
    "double": (2**53, 1023),
}
"""Data type → the integer below which all are exact, and how often 1 can be doubled."""
SCRAMBLE = (1103515245, 1597334677, 0x7FFFFFFF)
"""Two odd factors, and the mask of the hash."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """One size of a collective, in elements."""

    gives: int
    """Elements that each rank sends; of broadcast and scatter, the root."""
    gets: int
    """Elements that each rank receives; of reduce and gather, the root."""
    count: int
    """As in nccl-tests: of the array, or of a rank's part."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A range of a result, and the ranks whose elements it holds."""

    start: int
    length: int
    sources: tuple[int, ...]
    """The sending ranks; several are reduced."""
    from_start: int
    """Its offset in their arrays."""


class CollectiveProgram(Protocol):
    """One collective of all ranks, repeated: what `Collective` work measures. Every rank calls the
    same functions in the same order."""

    library: str
    """The library, with its version: `nccl 2.27.5`, `gloo`."""
    places: tuple[bool, ...]
    """Supported values of `in_place`."""

    def lay_out(self, extent: Extent, in_place: bool, pair: tuple[int, int] | None = None) -> None:
        """Set the size of the next calls; with `pair`, rank `pair[0]` sends to `pair[1]`."""

    def fill(self, repetition: int) -> None:
        """Fill the arrays of the next call with the elements of a repetition."""

    def call(self) -> None:
        """Queue the operation once."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def wrong(self, repetition: int) -> int:
        """Wrong elements of this rank's result, of one call after `fill`."""

    def clock(self) -> float:
        """Seconds on the scale of `time.perf_counter()`."""


@runtime_checkable
class SupportsCollectives(Protocol):
    """A `Framework` whose collectives can be measured. The ranks have joined already
    (`SupportsDistributed.join`)."""

    def build_collective(
        self, work: Collective, device: str, threads: int, largest: Extent
    ) -> CollectiveProgram:
        """The operation of `work`, with arrays for up to `largest`."""


def extent(work: Collective, size_bytes: int, ranks: int) -> Extent:
    """The size of about `size_bytes`, in whole elements and equal for each rank."""
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
    """The expected result of rank `rank` after one call; empty where it is undefined."""
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
    """The span of elements; `Unsupported` where no result could be checked exactly."""
    whole_to, doublings = _EXACT[work.data_type]
    found = min(WIDEST, whole_to)
    if work.collective in REDUCING:
        if work.reduction == "sum":
            found = min(WIDEST, whole_to // ranks)
        elif work.reduction == "avg":
            found = min(WIDEST, whole_to // ranks**2) if ranks & (ranks - 1) == 0 else 0
        elif work.reduction == "prod":
            found = 2 if ranks <= doublings else 0
    if found < 2 and work.checks:
        raise Unsupported(
            f"reduction={work.reduction} of {work.data_type} on {ranks} devices cannot be checked "
            "exactly. Set data_type=double, another number of devices (for avg a power of two), "
            "or checks=0."
        )
    return max(2, found)


def needs_bytes(work: Collective, of: Extent, on_cpu: bool) -> int:
    """Memory of the arrays of a sweep up to this size on one device. Gloo makes copies, so on a CPU
    it is doubled."""
    arrays = (of.gives + max(of.gives, of.gets)) * ELEMENT_BYTES[work.data_type]
    return arrays * (2 if on_cpu else 1)
