"""Parts and their sum: the parts of a step add up to the step, and no measured part exceeds it.

`unattributed` is the step less all measured parts. Below −5 % the parts contradict the step: the
profiled steps were not like the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cubemesh.audit.evidence import Evidence, Row, name_of
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.measure.attribution.attribution import PARTS, UNATTRIBUTED
from cubemesh.measure.attribution.bottlenecks import excess_of
from cubemesh.schema import Part

WINDOW_TOLERANCE = 0.05
"""Relative difference of the parts' sum from the mean step of the windows."""
SUM_TOLERANCE = 0.02
_AGAIN = "Stop other programs and measure again with --no-cache."


def parts_of_runs(evidence: Evidence) -> Iterator[Inconsistency]:
    """Runs whose parts exceed the step or do not add up to it."""
    for record in evidence.records:
        excess = excess_of(record)
        if excess is not None:
            yield inconsistency(
                "parts-exceed-step",
                f"{name_of(record)}: {_largest(record.parts)}; unattributed is "
                f"{-100 * excess:.0f} %.",
                evidence.place(record.run_id),
                _AGAIN,
            )
        own = [w for w in record.measured if w.rank == 0]
        if not record.parts or not own:
            continue
        step_s = math.fsum(w.step_s for w in own) / len(own)
        total = math.fsum(part.seconds for part in record.parts)
        if abs(total - step_s) > WINDOW_TOLERANCE * step_s:
            yield inconsistency(
                "parts-do-not-add-up",
                f"{name_of(record)}: the parts add up to {1e3 * total:.3g} ms, and the mean step "
                f"of the windows is {1e3 * step_s:.3g} ms.",
                evidence.place(record.run_id),
                _AGAIN,
            )


def _largest(parts: Sequence[Part]) -> str:
    total = math.fsum(part.seconds for part in parts)
    worst = max(parts, key=lambda part: part.seconds)
    return f"{worst.name.replace('_', ' ')} is {100 * worst.seconds / total:.0f} % of the step"


def parts_in_tables(evidence: Evidence) -> Iterator[Inconsistency]:
    """Rows whose parts do not add up to 100 %, or to the step of the same unit."""
    names = {name.replace("_", " ") for name in PARTS}
    for row in evidence.rows:
        values = {
            column.name: (cell.value, column.unit)
            for column, cell in zip(row.table.columns, row.cells, strict=False)
            if column.name in names and cell.value is not None
        }
        if UNATTRIBUTED not in values or len(values) < 3:
            continue
        total, unit = math.fsum(value for value, _ in values.values()), values[UNATTRIBUTED][1]
        whole = 100.0 if unit == "%" else _step(row, unit)
        if whole is not None and abs(total - whole) > SUM_TOLERANCE * whole:
            yield inconsistency(
                "parts-do-not-add-up",
                f"The parts of a row add up to {total:.4g} {unit}, and the step is "
                f"{whole:.4g} {unit}.",
                evidence.place(row.run_id, table=row.table.title),
                "Compute the row from the parts of one run.",
            )


def _step(row: Row, unit: str) -> float | None:
    found = row.column("step")
    return found[1].value if found is not None and found[0].unit == unit else None
