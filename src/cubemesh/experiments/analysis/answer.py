"""Parts that every answer shares: experiment, warnings and run ids, failed runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.core.experiment import Experiment
from cubemesh.schema import Answer, Cell, Chart, Figure, Finding, RunRecord, Table, Warning


def answer_of(
    experiment: Experiment,
    title: str,
    records: Sequence[RunRecord],
    *,
    findings: Iterable[Finding],
    tables: Iterable[Table] = (),
    charts: Iterable[Chart] = (),
    warnings: Iterable[Warning] = (),
    notes: Iterable[str] = (),
) -> Answer:
    """The answer from `records`, with `warnings` before those of the records. A table without rows
    is left out."""
    return Answer(
        experiment=experiment.name,
        question=experiment.question,
        title=title,
        findings=tuple(findings),
        tables=tuple(table for table in tables if table.rows),
        charts=tuple(charts),
        warnings=(*warnings, *(w for r in records for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=tuple(notes),
    )


def cell_or_dash(value: Figure | float | None, run_id: str = "") -> Cell:
    """A table's cell; a dash where a figure does not apply."""
    if isinstance(value, Figure):
        return Cell.of(value, run_id)
    return Cell(text="–") if value is None else Cell(value=value, run_id=run_id)


def failed_run(where: str, group: Group[Any]) -> Finding:
    """Why a point has no measurement."""
    return Finding(code="failed-run", text=f"{where}: {group.why}.")
