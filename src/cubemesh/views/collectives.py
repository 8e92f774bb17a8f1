"""Sweeps of collectives in the columns of nccl-tests, as text and as JSON.

Whatever reads nccl-tests' output reads this: a line for each size with size, count, type, redop and
root, then time, algbw, busbw and #wrong out of place and in place, and `N/A` where a way is not
offered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from cubemesh.experiments.collectives.report import collective_of, redop, together
from cubemesh.measure.collective_sweep import bus_bandwidth
from cubemesh.schema import Rank, RunRecord, SweepPoint
from cubemesh.schema.collective import ROOTED
from cubemesh.views import formatting as wording
from cubemesh.views import json_output as plain

_HEADINGS = ("size", "count", "type", "redop", "root")
_UNITS = ("(B)", "(elements)", "", "", "")
_WIDTHS = (12, 12, 8, 6, 6)
_WAY = (("time", "(us)", 7), ("algbw", "(GB/s)", 6), ("busbw", "(GB/s)", 6), ("#wrong", "", 6))
_WAYS = (False, True)


def document(records: Sequence[RunRecord]) -> dict[str, Any]:
    """The JSON of `cubemesh collectives`: `rows`, one for each operation and size; `pairs`, one for
    each pair of ranks; and `runs`, how each sweep ended."""
    return plain.envelope(
        "collectives",
        rows=[row for record in records for row in rows(record)],
        pairs=[pair for record in records for pair in _pairs(record)],
        runs=[
            {
                "run_id": r.run_id,
                "operation": collective_of(r).collective,
                "devices": r.spec.placement.devices,
                "library": r.library,
                "outcome": r.outcome.status.value,
                "message": r.outcome.message,
                "ranks": [_rank(rank) for rank in r.ranks],
            }
            for r in records
        ],
    )


def _rank(rank: Rank) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "device": rank.device,
        "device_name": rank.device_name,
    }


def rows(record: RunRecord) -> list[dict[str, Any]]:
    """A line for each size; `out_of_place` and `in_place` are null where they were not measured."""
    work, devices = collective_of(record), record.spec.placement.devices
    points = together(record)
    found = []
    for size in dict.fromkeys(p.size_bytes for p in points):
        own = {p.in_place: p for p in points if p.size_bytes == size}
        found.append(
            {
                "operation": work.collective,
                "devices": devices,
                "size": size,
                "count": next(iter(own.values())).count,
                "type": work.data_type,
                "redop": redop(work),
                "root": 0 if work.collective in ROOTED else -1,
                "out_of_place": _way(own.get(False), work.collective, devices),
                "in_place": _way(own.get(True), work.collective, devices),
                "run_id": record.run_id,
            }
        )
    return found


def _way(point: SweepPoint | None, collective: str, devices: int) -> dict[str, Any] | None:
    if point is None:
        return None
    bus = bus_bandwidth(point, collective, devices)
    return {
        "time_us": 1e6 * point.time_s,
        "algbw_gb_per_s": point.algorithm_bytes_per_s / 1e9,
        "busbw_gb_per_s": bus.value / 1e9,
        "busbw_low_gb_per_s": None if bus.low is None else bus.low / 1e9,
        "busbw_high_gb_per_s": None if bus.high is None else bus.high / 1e9,
        "wrong": point.wrong,
        "iterations": point.iterations,
        "groups": len(point.seconds),
    }


def _pairs(record: RunRecord) -> Iterator[dict[str, Any]]:
    for point in record.sweep:
        if point.pair is not None:
            yield {
                "operation": collective_of(record).collective,
                "devices": record.spec.placement.devices,
                "from": point.pair[0],
                "to": point.pair[1],
                "size": point.size_bytes,
                "time_us": 1e6 * point.time_s,
                "algbw_gb_per_s": point.algorithm_bytes_per_s / 1e9,
                "wrong": point.wrong,
                "run_id": record.run_id,
            }


def print_sweeps(console: Console, records: Sequence[RunRecord]) -> None:
    """Every sweep, one below the other."""
    for number, record in enumerate(records):
        if number:
            console.print()
        for line in lines(record):
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def lines(record: RunRecord) -> Iterator[str]:
    """One sweep as nccl-tests prints it."""
    work, devices = collective_of(record), record.spec.placement.devices
    by = f" by {record.library}" if record.library else ""
    yield wording.clean(f"# Collective test: {work.collective} on {devices} devices{by}")
    for rank in record.ranks:
        name = f" {rank.device_name}" if rank.device_name else ""
        yield wording.clean(f"#  Rank {rank.rank:2} on {rank.host} device {rank.device}{name}")
    if not record.ok:
        yield f"# {wording.outcome_text(record)}"
    found = rows(record)
    if not found:
        return
    yield "#"
    yield f"# {'':54}{'out-of-place':^31}  {'in-place':^31}".rstrip()
    yield _heading(0)
    yield _heading(1)
    yield from (_line(row) for row in found)
    for pair in _pairs(record):
        yield (
            f"# Pair {pair['from']} -> {pair['to']}, {pair['size']} B: {pair['time_us']:.2f} us, "
            f"{pair['algbw_gb_per_s']:.2f} GB/s, {_wrong(pair['wrong'])} wrong"
        )
    yield from _footer(found, record)


def _heading(part: int) -> str:
    names = (_HEADINGS, _UNITS)[part]
    first, *others = zip(names, _WIDTHS, strict=True)
    texts = [f"# {first[0]:>{first[1] - 2}}", *(f"{name:>{width}}" for name, width in others)]
    return "  ".join([*texts, *(f"{column[part]:>{column[2]}}" for _ in _WAYS for column in _WAY)])


def _line(row: dict[str, Any]) -> str:
    texts = [f"{row[n]:>{w}}" for n, w in zip(_HEADINGS, _WIDTHS, strict=True)]
    for name in ("out_of_place", "in_place"):
        way = row[name]
        if way is None:
            texts += [f"{'N/A':>{width}}" for *_, width in _WAY]
            continue
        texts += [
            f"{_figure(way['time_us'], 7):>7}",
            f"{_figure(way['algbw_gb_per_s'], 6):>6}",
            f"{_figure(way['busbw_gb_per_s'], 6):>6}",
            f"{_wrong(way['wrong']):>6}",
        ]
    return "  ".join(texts)


def _figure(value: float, width: int) -> str:
    """With as many decimals, two at most, as fit."""
    return next(
        (text for digits in (2, 1) if len(text := f"{value:.{digits}f}") <= width), f"{value:.0f}"
    )


def _wrong(count: int | None) -> str:
    return "N/A" if count is None else str(count)


def _footer(found: Sequence[dict[str, Any]], record: RunRecord) -> Iterator[str]:
    ways = [row[name] for row in found for name in ("out_of_place", "in_place") if row[name]]
    wrong = sum(p.wrong or 0 for p in record.sweep)
    checked = any(p.wrong is not None for p in record.sweep)
    verdict = "not checked" if not checked else "FAILED" if wrong else "OK"
    yield f"# {'Out of bounds values':<20} : {wrong} {verdict}"
    mean = sum(way["busbw_gb_per_s"] for way in ways) / len(ways)
    yield f"# {'Avg bus bandwidth':<20} : {mean:g}"
