"""Parser of nccl-tests output, of any version.

    # nThread 1 nGpus 8 …                                 options; ignored
    # Collective test starting: all_reduce_perf           its name, in recent versions
    #  Rank  0 Group  0 Pid 77 on host device  0 [0x07] NVIDIA H200          a rank each
    #       size         count      type   redop    root     time   algbw   busbw #wrong …
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)        …
         1048576        262144     float     sum      -1     57.1   18.36   32.13      0 …

Every line is validated: its bus bandwidth must follow from size, time and number of ranks, which
detects lines of another test and damaged ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from cubemesh.errors import DataError
from cubemesh.schema.collective import (
    COLLECTIVES,
    ELEMENT_BYTES,
    PARTED,
    REDUCING,
    CollectiveName,
    DataType,
    Reduction,
    SweepPoint,
    bus_factor,
)

MAX_LINE = 2000
"""Most characters of a line."""
AGREES = 0.05
"""Tolerance of the bus bandwidth recomputed from size, time and ranks: both are printed with few
digits."""
LEAST, MOST = 1e-6, 1e15
"""Shortest and longest time, in us."""
_PROGRAMS = {
    **{name.replace("-", "_"): name for name in COLLECTIVES},
    "alltoall": "all-to-all",
    "sendrecv": "send-receive",
}
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+\[[^\]]*\]\s*(.*)"
)
_OWN_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+on\s+(\S+)\s+device\s+(\S+)\s*(.*)")
_STARTS = re.compile(r"#\s*Collective test(?: starting)?:\s*([A-Za-z0-9_-]+)")
_LIBRARY = re.compile(r"nccl-library=(\d+)|\bby (nccl \S+|gloo)\b")
_COLUMNS = {"time", "algbw", "busbw", "#wrong", "error", "cputime"}


@dataclass(frozen=True, kw_only=True)
class LoggedRank:
    """Where a rank ran."""

    host: str
    device: str
    device_name: str


@dataclass(frozen=True, kw_only=True)
class LoggedSweep:
    """One operation on one type of data."""

    collective: CollectiveName
    data_type: DataType
    reduction: Reduction
    ranks: tuple[LoggedRank, ...]
    library: str
    points: tuple[SweepPoint, ...]


def read_log(text: str, file: str, collective: str | None = None) -> tuple[LoggedSweep, ...]:
    """The sweeps of a log; `collective` is the operation, if the log does not name it.
    DataError with the first invalid line."""
    reader = _Reader(file, collective)
    for number, line in enumerate(text.splitlines(), start=1):
        reader.read(number, line)
    return tuple(reader.sweeps())


class _Reader:
    def __init__(self, file: str, collective: str | None) -> None:
        self._file, self._name = file, collective
        self._given = collective
        self._ranks: dict[int, LoggedRank] = {}
        self._library = ""
        self._columns: list[str] = []
        self._firsts = self._width = 0
        """Number of columns before the figures, and of figures of one placement."""
        self._seen: set[tuple[str, str, str, int, bool]] = set()
        self._points: dict[tuple[CollectiveName, DataType, Reduction], list[SweepPoint]] = {}

    def read(self, number: int, line: str) -> None:
        where = f"{self._file}, line {number}"
        if len(line) > MAX_LINE:
            raise DataError(f"{where} has {len(line):,} characters, which is too long.")
        if line.lstrip().startswith("#"):
            self._heading(where, line.strip())
        elif self._columns and line.split() and line.split()[0].isdecimal():
            self._figures(where, line.split())

    def _heading(self, where: str, line: str) -> None:
        if (rank := _RANK.match(line) or _OWN_RANK.match(line)) is not None:
            self._rank(where, *rank.groups())
        elif (starts := _STARTS.match(line)) is not None and self._given is None:
            self._name = starts[1]
        elif {"size", "time", "busbw"} <= set(line.split()):
            self._columns = line.lstrip("# ").split()
            self._check_heading(where)
        if (library := _LIBRARY.search(line)) is not None:
            self._library = library[2] or f"nccl {_version(int(library[1]))}"

    def _check_heading(self, where: str) -> None:
        """The columns must be size, count and type, then one or two groups of figures."""
        firsts = next(i for i, name in enumerate(self._columns) if name in _COLUMNS)
        figures = self._columns[firsts:]
        ways = figures.count("busbw")
        own = figures[: len(figures) // ways]
        if {"size", "count", "type"} - set(self._columns[:firsts]):
            raise DataError(f"{where}: the heading has no size, count or type before its figures.")
        if own * ways != figures or ways > 2 or own.count("busbw") != 1 or "time" not in own:
            raise DataError(
                f"{where}: the heading must name time and busbw once for out of place, and once "
                "more for in place."
            )
        self._firsts, self._width = firsts, len(own)

    def _rank(self, where: str, number: str, host: str, device: str, name: str) -> None:
        rank = int(number)
        if rank in self._ranks and self._points:
            raise DataError(f"{where}: rank {rank} appears twice; import one test a file.")
        on = f"cuda:{device}" if device.isdecimal() else device
        self._ranks[rank] = LoggedRank(host=host, device=on, device_name=name.strip())

    def _figures(self, where: str, words: Sequence[str]) -> None:
        if len(words) != len(self._columns):
            raise DataError(
                f"{where}: {len(words)} fields where the heading names {len(self._columns)}."
            )
        firsts, width = self._firsts, self._width
        fixed = dict(zip(self._columns[:firsts], words, strict=False))
        kind = fixed["type"]
        if kind not in ELEMENT_BYTES:
            known = ", ".join(ELEMENT_BYTES)
            raise DataError(f"{where}, field type: {kind!r} is not one of {known}.")
        collective = self._collective(where)
        reduction = self._reduction(where, collective, fixed.get("redop", "none"))
        size, count = (_whole(where, name, fixed[name]) for name in ("size", "count"))
        if size == 0:
            return  # less than an element for each rank
        self._check_size(where, collective, size, count, kind)
        points = self._points.setdefault((collective, cast(DataType, kind), reduction), [])
        for way, start in enumerate(range(firsts, len(self._columns), width)):
            own = dict(zip(self._columns[start : start + width], words[start:], strict=False))
            point = self._point(where, collective, size, count, bool(way), own)
            if point is not None:
                place = (collective, kind, reduction, size, bool(way))
                if place in self._seen:
                    raise DataError(f"{where}: size {size} appears twice.")
                self._seen.add(place)
                points.append(point)

    def _collective(self, where: str) -> CollectiveName:
        given = self._name
        if given is None:
            raise DataError(
                f"{where}: the log does not name its operation. Name it: --collective all-reduce."
            )
        name = given.lower().replace("-", "_").removesuffix("_mpi").removesuffix("_perf")
        if name not in _PROGRAMS:
            raise DataError(f"{where}: '{given}' is not one of {', '.join(COLLECTIVES)}.")
        return _PROGRAMS[name]

    def _reduction(self, where: str, collective: str, redop: str) -> Reduction:
        if collective not in REDUCING:
            return "sum"
        if redop not in ("sum", "prod", "min", "max", "avg"):
            raise DataError(
                f"{where}, field redop: {redop!r} is not one of sum, prod, min, max, avg."
            )
        return cast(Reduction, redop)

    def _check_size(self, where: str, collective: str, size: int, count: int, kind: str) -> None:
        ranks = len(self._ranks)
        if ranks < 2 or max(self._ranks) != ranks - 1:
            raise DataError(
                f"{where}: the lines '# Rank' above it are not those of ranks 0, 1, …: {ranks} "
                "were found. Import the whole log."
            )
        whole = count * ELEMENT_BYTES[kind] * (ranks if collective in PARTED else 1)
        if size != whole:
            raise DataError(
                f"{where}: {count} elements of {kind} on {ranks} ranks are {whole} bytes in "
                f"{collective}, but the size is {size}."
            )

    def _point(
        self,
        where: str,
        collective: str,
        size: int,
        count: int,
        in_place: bool,
        own: dict[str, str],
    ) -> SweepPoint | None:
        time = own.get("time", own.get("cputime", ""))
        if time == "N/A":
            return None
        time_s = 1e-6 * _above_zero(where, "time", time)
        busbw = _number(where, "busbw", own["busbw"])
        follows = size / time_s / 1e9 * bus_factor(collective, len(self._ranks))
        if abs(busbw - follows) > AGREES * follows + 0.01:
            raise DataError(
                f"{where}, field busbw: {own['busbw']} GB/s, but {size} bytes in {time} us on "
                f"{len(self._ranks)} ranks are {follows:.4g} GB/s. Check the operation."
            )
        wrong = own.get("#wrong", "N/A")  # older versions print the largest error instead
        return SweepPoint(
            size_bytes=size,
            count=count,
            in_place=in_place,
            seconds=(time_s,),
            wrong=None if wrong == "N/A" else _whole(where, "#wrong", wrong),
        )

    def sweeps(self) -> Iterator[LoggedSweep]:
        """The parsed sweeps; DataError if there are none."""
        if not self._points:
            raise DataError(
                f"{self._file} has no line of figures below a heading with size, count, type, time "
                "and busbw: it is not output of nccl-tests, and no training log of a known "
                "program."
            )
        ranks = tuple(self._ranks[rank] for rank in sorted(self._ranks))
        for (collective, kind, reduction), points in self._points.items():
            yield LoggedSweep(
                collective=collective,
                data_type=kind,
                reduction=reduction,
                ranks=ranks,
                library=self._library or "nccl",
                points=tuple(points),
            )


def _version(code: int) -> str:
    """`2.18.5` of 21805, and `2.8.3` of 2803 (nccl.h before 2.9)."""
    major, rest = divmod(code, 10_000) if code >= 10_000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise DataError(f"{where}, field {name}: {text[:40]!r} is not a number of 0 or more.")
    return value


def _above_zero(where: str, name: str, text: str) -> float:
    value = _number(where, name, text)
    if not LEAST <= value <= MOST:
        raise DataError(f"{where}, field {name}: {text[:40]} is not from {LEAST:g} to {MOST:g}.")
    return value


def _whole(where: str, name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise DataError(f"{where}, field {name}: {text[:40]!r} is not an integer.")
    return int(text)
