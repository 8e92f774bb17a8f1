"""Same workload, same figure: one workload has one throughput in all answers of a run.

Two throughputs of a workload contradict each other if they differ by over 5 % and by more than the
95 % interval of their difference. Runs of one workload in one answer are pooled before, unless its
tables show both; only runs with one machine, software and version of cubemesh are compared. Both
sides of an interleaved A/B run are workloads too. A ratio in a table is compared with the
throughputs of that table, and the ratio of a finding with the runs of its two sides.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from cubemesh.audit.evidence import (
    ITEMS_PER_S,
    Evidence,
    Row,
    half_width,
    interval,
    name_of,
    shown,
    workload_of,
)
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.experiments.analysis import groups
from cubemesh.schema import Figure, Finding, RunRecord
from cubemesh.store.run_statistics import run_windows
from cubemesh.units import format_number

TOLERANCE = 0.05
"""Relative difference that no check reports."""
_AGAIN = (
    "Stop other programs, then measure both in one session, or interleaved: "
    "cubemesh run … --against SETTING."
)


@dataclass(frozen=True)
class Measured:
    """The throughput of one workload in one answer, from all its repeats."""

    evidence: Evidence
    records: tuple[RunRecord, ...]
    figure: Figure
    second_side: bool = False
    """Whether it is the other side of an interleaved A/B run."""


def different_figures(evidence: Sequence[Evidence]) -> Iterator[Inconsistency]:
    """Workloads with two throughputs in two answers, or shown twice in one."""
    by_workload: dict[Hashable, list[Measured]] = {}
    for one in evidence:
        own: dict[Hashable, list[Measured]] = {}
        for key, measured in _measured(one):
            own.setdefault(key, []).append(measured)
        for key, several in own.items():
            by_workload.setdefault(key, []).append(_together(several))
            for a, b in combinations([m for m in several if _is_shown(m)], 2):
                if differ(a.figure, b.figure):
                    yield from _different(a, b)
    for several in by_workload.values():
        for a, b in combinations(several, 2):
            if {r.run_id for r in a.records} & {r.run_id for r in b.records}:
                continue  # the same runs in two answers
            if differ(a.figure, b.figure):
                yield from _different(a, b)


def _together(several: Sequence[Measured]) -> Measured:
    """All runs of a workload in one answer, whose windows it may pool: of interleaved runs the
    first side, the second where there is no other."""
    first = [m for m in several if not m.second_side]
    if len(first) < 2:
        return (first or several)[0]
    records = tuple({r.run_id: r for m in first for r in m.records}.values())
    return Measured(first[0].evidence, records, pooled(records))


def _is_shown(measured: Measured) -> bool:
    """Whether a table shows this throughput; always for stored runs without an answer."""
    if measured.evidence.answer is None:
        return True
    runs = {r.run_id for r in measured.records}
    return any(
        cell.run_id in runs
        and cell.value is not None
        and math.isclose(cell.value, measured.figure.value, rel_tol=1e-3)
        for row in measured.evidence.rows
        for cell in row.cells
    )


def differ(a: Figure, b: Figure) -> bool:
    """Whether two figures differ by over 5 % and more than the interval of their difference."""
    both = math.hypot(half_width(a.low, a.high), half_width(b.low, b.high))
    return abs(a.value - b.value) > max(TOLERANCE * max(a.value, b.value), both)


def _different(a: Measured, b: Measured) -> Iterator[Inconsistency]:
    names = [m.evidence.answer.title if m.evidence.answer else "a stored run" for m in (a, b)]
    text = (
        f"{name_of(a.records[0])} has {shown(a.figure)} in “{names[0]}” and {shown(b.figure)} "
        f"in “{names[1]}”."
    )
    runs = [r.run_id for m in (a, b) for r in m.records]
    for one in (a, b):
        where = one.evidence.place(*runs, finding=_about(one))
        yield inconsistency("different-figures", text, where, _AGAIN)


def _about(one: Measured) -> Finding | None:
    """The finding that has this figure as its value."""
    return next(
        (
            f
            for f in one.evidence.findings
            if f.value is not None and math.isclose(f.value, one.figure.value, rel_tol=1e-6)
        ),
        None,
    )


def _measured(evidence: Evidence) -> Iterator[tuple[Hashable, Measured]]:
    """The throughput of each spec, and of the other side of each interleaved one, by workload."""
    by_spec: dict[Hashable, list[RunRecord]] = {}
    for record in evidence.records:
        if record.ok and "throughput_per_s" in record.figures:
            by_spec.setdefault((record.spec.spec_id, _setup(record)), []).append(record)
    for records in by_spec.values():
        first = records[0]
        key = workload_of(first.spec), _setup(first)
        yield key, Measured(evidence, tuple(records), pooled(records))
        if (other := first.spec.other) is not None and (figure := _other_side(first)):
            key = workload_of(other), _setup(first)
            yield key, Measured(evidence, tuple(records), figure, second_side=True)


def _setup(record: RunRecord) -> tuple[str, ...]:
    key = record.key
    return key.machine_id, key.software_id, key.code_version


def _other_side(record: RunRecord) -> Figure | None:
    step, batch = record.figures.get("against_step_s"), record.spec.global_batch
    if step is None or not batch:
        return None
    return Figure(
        value=batch / step.value,
        unit="samples/s",
        low=None if step.high is None else batch / step.high,
        high=None if step.low is None else batch / step.low,
    )


def pooled(records: Sequence[RunRecord]) -> Figure:
    """Throughput over all windows of the runs of one spec."""
    first = records[0].figures["throughput_per_s"]
    if len(records) == 1:
        return first
    found = groups.pooled([[(w.samples, w.elapsed_s) for w in run_windows(r)] for r in records])
    return replace(found, unit=first.unit, method=first.method)


def ratios(evidence: Evidence) -> Iterator[Inconsistency]:
    """Ratios that are not the quotient of the throughputs next to them."""
    for row in evidence.rows:
        yield from _ratio_of_row(evidence, row)
        yield from _efficiency_of_row(evidence, row)
    for finding in evidence.findings:
        yield from _ratio_of_finding(evidence, finding)


_REFERENCES = ("speed-up", "vs stock", "vs step before", "vs first link", "vs fastest")


def _ratio_of_row(evidence: Evidence, row: Row) -> Iterator[Inconsistency]:
    rate = row.column(units=ITEMS_PER_S)
    for column, cell in zip(row.table.columns, row.cells, strict=False):
        if column.name not in _REFERENCES or rate is None or not cell.value:
            continue
        value = rate[1].value or 0.0
        reference = value / cell.value
        if not _one_of(reference, evidence, row):
            yield inconsistency(
                "ratio-differs",
                f"{format_number(cell.value)}× ({column.name}) next to "
                f"{format_number(value)} {rate[0].unit or rate[0].name} would need a reference of "
                f"{format_number(reference)}, which the table does not have.",
                evidence.place(row.run_id, table=row.table.title),
                "Compute the ratio from the figures in the table.",
            )


def _efficiency_of_row(evidence: Evidence, row: Row) -> Iterator[Inconsistency]:
    rate = row.column(units=ITEMS_PER_S)
    share, devices = row.column("efficiency"), row.value("devices")
    if rate is None or share is None or not devices or not share[1].value:
        return
    value = rate[1].value or 0.0
    one = 100 * value / share[1].value / devices
    if not _one_of(one, evidence, row):
        yield inconsistency(
            "efficiency-differs",
            f"{format_number(value, 5)} samples/s on {devices:g} devices next to an efficiency of "
            f"{format_number(share[1].value, 5)} % would need {format_number(one, 5)} samples/s "
            "on one, which the table does not have.",
            evidence.place(row.run_id, table=row.table.title),
            "Compute both from the windows of the run.",
        )


def _one_of(reference: float, evidence: Evidence, row: Row) -> bool:
    """Whether a throughput of the row's table is near `reference`."""
    rates = (r.column(units=ITEMS_PER_S) for r in evidence.rows if r.table is row.table)
    values = [found[1].value or 0.0 for found in rates if found]
    return any(abs(value - reference) <= TOLERANCE * reference for value in values)


def _ratio_of_finding(evidence: Evidence, finding: Finding) -> Iterator[Inconsistency]:
    if finding.sides is None or finding.value is None:
        return
    over, under = (evidence.repeats(run) for run in finding.sides)
    if not over or not under or over[0].run_id == under[0].run_id:
        return
    if not all("throughput_per_s" in r.figures for r in (*over, *under)):
        return
    a, b = pooled(over), pooled(under)
    low, high = interval(finding)
    stated = Figure(value=finding.value, unit="×", low=low, high=high)
    value = a.value / b.value
    spread = math.hypot(half_width(a.low, a.high) / a.value, half_width(b.low, b.high) / b.value)
    quotient = replace(stated, value=value, low=value * (1 - spread), high=value * (1 + spread))
    if differ(stated, quotient):
        yield inconsistency(
            "ratio-differs",
            f"{finding.value:.2f}× is stated, and the throughputs are {shown(a)} and {shown(b)}: "
            f"{value:.2f}×.",
            evidence.place(*finding.sides, finding=finding),
            _AGAIN,
        )
