"""Sweeps of collectives in the output format of nccl-tests, and as JSON.

A line for each size has size, count, type, redop and root, then time, algbw, busbw and #wrong out
of place and in place, `N/A` where one is not supported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from cubemesh.api.collectives import Sweeps, pair_rows, sweep_rows
from cubemesh.experiments.collectives.nccl_rings import nccl_findings
from cubemesh.experiments.collectives.report import collective_of
from cubemesh.schema import RunRecord
from cubemesh.schema.serialization import to_plain
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.views.json_output import envelope

_HEADINGS = ("size", "count", "type", "redop", "root")
_UNITS = ("(B)", "(elements)", "", "", "")
_WIDTHS = (12, 12, 8, 6, 6)
_WAY = (("time", "(us)", 7), ("algbw", "(GB/s)", 6), ("busbw", "(GB/s)", 6), ("#wrong", "", 6))
_RANK = ("rank", "host", "device", "device_name")


def document(sweeps: Sweeps) -> dict[str, Any]:
    """The JSON of `cubemesh collectives`: `rows`, one for each operation and size; `pairs`, one for
    each pair of ranks; and `runs`, the outcome and warnings of each sweep."""
    return envelope(
        "collectives",
        rows=sweeps.rows,
        pairs=sweeps.pairs,
        runs=[
            {
                "run_id": r.run_id,
                "operation": collective_of(r).collective,
                "devices": r.spec.placement.devices,
                "library": r.library,
                "outcome": r.outcome.status.value,
                "message": r.outcome.message,
                "warnings": to_plain(r.warnings),
                "ranks": [{name: getattr(k, name) for name in _RANK} for k in r.ranks],
            }
            for r in sweeps.records
        ],
    )


def print_sweeps(console: Console, sweeps: Sweeps) -> None:
    """Every sweep."""
    for number, record in enumerate(sweeps.records):
        if number:
            console.print()
        for line in lines(record):
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def lines(record: RunRecord) -> Iterator[str]:
    """One sweep as nccl-tests prints it."""
    work, devices = collective_of(record), record.spec.placement.devices
    by = f" by {record.library}" if record.library else ""
    yield clean(f"# Collective test: {work.collective} on {devices} devices{by}")
    for rank in record.ranks:
        name = f" {rank.device_name}" if rank.device_name else ""
        yield clean(f"#  Rank {rank.rank:2} on {rank.host} device {rank.device}{name}")
    for finding in nccl_findings([record]):
        yield clean(f"# {finding.text}")
    if not record.ok:
        yield f"# {formatting.outcome_text(record)}"
    found = sweep_rows(record)
    if found:
        yield from _sweep(found, record)
    for warning in record.warnings:
        yield clean(f"# Warning: {warning.cause} {warning.remedy}".rstrip())


def _sweep(found: Sequence[dict[str, Any]], record: RunRecord) -> Iterator[str]:
    yield "#"
    yield f"# {'':54}{'out-of-place':^31}  {'in-place':^31}".rstrip()
    yield _heading(0)
    yield _heading(1)
    yield from (_line(row) for row in found)
    for pair in pair_rows(record):
        yield (
            f"# Pair {pair['from']} -> {pair['to']}, {pair['size']} B: "
            f"{_figure(pair['time_us'], 7)} us, "
            f"{_figure(pair['algbw_gb_per_s'], 6)} GB/s, {_wrong(pair['wrong'])} wrong"
        )
    yield from _footer(found, record)


def _heading(part: int) -> str:
    names = (_HEADINGS, _UNITS)[part]
    first, *others = zip(names, _WIDTHS, strict=True)
    texts = [f"# {first[0]:>{first[1] - 2}}", *(f"{name:>{width}}" for name, width in others)]
    return "  ".join([*texts, *(f"{column[part]:>{column[2]}}" for column in 2 * _WAY)])


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
    """With as many decimals, two at most, as fit; a small value with two significant digits, as
    `0.0012` or `3.4e-6`, and never as 0.00."""
    if 0 < value < 0.1:
        text = f"{value:.{1 - math.floor(math.log10(value))}f}"
        return text if len(text) <= width else re.sub("e-0*", "e-", f"{value:.1e}")
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
