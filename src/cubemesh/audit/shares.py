"""Shares: a percentage of a whole is between 0 and 100.

A percentage with an interval passes if the interval reaches into 0 to 100. Changes and errors in
percent are no shares. `unattributed` of a breakdown is judged with its run (parts.py); where none
is known it may be down to −5 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cubemesh.audit.evidence import Evidence, interval
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.measure.attribution.attribution import UNATTRIBUTED
from cubemesh.measure.attribution.bottlenecks import MAX_EXCESS
from cubemesh.schema import Cell

NO_SHARES = ("error", "change", "difference", "faster", "slower", "gain", "energy-agreement")
"""Words in the name of a column, axis or finding whose percentages are no shares."""
SLACK = 1.0
"""Percentage points beyond 0 and 100 that rounding and sampling explain."""
_REMEDY = "Show the two figures instead of their ratio, or why the whole is no limit."


def shares(evidence: Evidence) -> Iterator[Inconsistency]:
    """Percentages out of range in findings, tables and charts."""
    for finding in evidence.findings:
        if finding.unit.startswith("%") and not _exempt(finding.code):
            low, high = interval(finding)
            if finding.value is not None and _outside(low, high, "unattributed" in finding.unit):
                yield inconsistency(
                    "share-out-of-range",
                    f"{finding.value:.1f} {finding.unit} is not between 0 and 100 %.",
                    evidence.place(finding=finding),
                    _REMEDY,
                )
    for row in evidence.rows:
        for column, cell in zip(row.table.columns, row.cells, strict=False):
            if column.name == UNATTRIBUTED and (cell.run_id or row.run_id) in evidence.by_id:
                continue
            if column.unit == "%" and cell.value is not None and not _exempt(column.name):
                low, high = interval(cell)
                if _outside(low, high, column.name == UNATTRIBUTED):
                    yield inconsistency(
                        "share-out-of-range",
                        f"{column.name} is {cell.value:.1f} % of a whole (0 to 100 %).",
                        evidence.place(cell.run_id or row.run_id, table=row.table.title),
                        _REMEDY,
                    )
    yield from _charts(evidence)


def _charts(evidence: Evidence) -> Iterator[Inconsistency]:
    for chart in evidence.answer.charts if evidence.answer else ():
        if chart.y.unit != "%" or _exempt(chart.y.name):
            continue
        bars: dict[float | str, list[float]] = {}
        for line in chart.lines:
            for point in line.points:
                if point.y is None or (
                    line.name == UNATTRIBUTED and point.run_id in evidence.by_id
                ):
                    continue
                bars.setdefault(point.x, []).append(point.y)
                low, high = interval(Cell(value=point.y, low=point.low, high=point.high))
                if _outside(low, high, line.name == UNATTRIBUTED):
                    yield inconsistency(
                        "share-out-of-range",
                        f"{line.name} at {point.x} is {point.y:.1f} % (0 to 100 %).",
                        evidence.place(point.run_id, table=chart.title),
                        _REMEDY,
                    )
        totals = {x: math.fsum(ys) for x, ys in bars.items()} if chart.stacked else {}
        for x, total in totals.items():
            if total > 100 * (1 + MAX_EXCESS):
                yield inconsistency(
                    "share-out-of-range",
                    f"The parts of the bar {x} add up to {total:.0f} %.",
                    evidence.place(table=chart.title),
                    _REMEDY,
                )


def _exempt(name: str) -> bool:
    return any(word in name for word in NO_SHARES)


def _outside(low: float, high: float, remainder: bool) -> bool:
    least = -100 * MAX_EXCESS if remainder else -SLACK
    return high < least or low > 100 + SLACK
