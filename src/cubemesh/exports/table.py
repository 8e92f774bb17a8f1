"""Table of runs: one row a run, for CSV, Parquet and pandas.

Columns: what identifies the run, its settings, its outcome, then its figures. A figure with a 95 %
confidence interval has two more columns, `_low` and `_high`. A setting that has its default in
every run has no column, except the most common ones. A figure with the name of a setting (the
loss scale that was used) is `measured_` and that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from cubemesh.experiments.analysis.comparison import changes
from cubemesh.schema import (
    WORK_KINDS,
    Budget,
    NetworkWork,
    Placement,
    ProgramSettings,
    RunRecord,
)
from cubemesh.schema.serialization import to_plain
from cubemesh.statistics import median
from cubemesh.store.select import PARTS, format_value, settings_of

STARTED = "started_utc"
"""The column that holds a date, in ISO 8601."""
_SETTINGS = {
    field.name
    for kind in (*WORK_KINDS.values(), Placement, ProgramSettings, Budget)
    for field in fields(kind)
}


def table_rows(records: Sequence[RunRecord]) -> tuple[dict[str, Any], ...]:
    """A dict for each run, all with the same keys, None where a run has no such value.

    Values are text, whole numbers, floats, booleans or None; a list is text, as on the command
    line.
    """
    columns = _setting_columns(records)
    figures = _figure_columns(records)
    rows = []
    for record in records:
        row = {**_row(record), **{name: _setting(record, name) for name in columns}}
        for name in figures:
            figure, column = record.figures.get(name), _figure_column(name)
            row[column] = None if figure is None else figure.value
            if figures[name]:
                row[f"{column}_low"] = None if figure is None else figure.low
                row[f"{column}_high"] = None if figure is None else figure.high
        rows.append(row)
    return tuple(rows)


def units(records: Sequence[RunRecord]) -> dict[str, str]:
    """The unit of each column that has one, as its figures give it."""
    found = {"median_step_s": "s", "elapsed_s": "s"}
    for record in records:
        for name, figure in record.figures.items():
            if figure.unit:
                column = _figure_column(name)
                found |= dict.fromkeys((column, f"{column}_low", f"{column}_high"), figure.unit)
    return found


def _row(record: RunRecord) -> dict[str, Any]:
    spec, program, key = record.spec, record.spec.program, record.key
    steps = [window.step_s for window in record.measured]
    return {
        "run_id": record.run_id,
        STARTED: record.started_utc,
        "machine_id": key.machine_id,
        "work": spec.work.kind,
        "network": spec.work.network if isinstance(spec.work, NetworkWork) else None,
        "framework": program.framework,
        "precision": program.precision,
        "sync": program.sync,
        "devices": spec.placement.devices,
        "batch_per_device": spec.batch_per_device,
        "global_batch": spec.global_batch,
        "outcome": record.outcome.status.value,
        "message": record.outcome.message,
        "median_step_s": median(steps) if steps else None,
        "elapsed_s": record.elapsed_s,
        "warnings": ",".join(dict.fromkeys(w.code for w in record.warnings)),
        "spec_id": key.spec_id,
        "workload_id": spec.workload_id,
        "software_id": key.software_id,
        "code_version": key.code_version,
        "repeat": key.repeat,
        "attempt": record.attempt,
    }


def _setting_columns(records: Sequence[RunRecord]) -> list[str]:
    """Settings that differ from their default in at least one run and have no column yet."""
    names: dict[str, None] = {}
    for record in records:
        plain = to_plain(record.spec, defaults=False)
        names |= dict.fromkeys(name for part in PARTS for name in plain.get(part, ()))
        if record.spec.against is not None:
            names["against"] = None
    taken = {"kind", *(_row(records[0]) if records else ())}
    return [name for name in names if name not in taken]


def _setting(record: RunRecord, name: str) -> Any:
    """The value of a setting; None where this kind of work has no such setting."""
    if name == "against":
        return ",".join(f"{n}={b}" for n, _, b in changes(record)) or None
    value = settings_of(record).get(name)
    return format_value(value) if isinstance(value, (list, dict)) else value


def _figure_column(name: str) -> str:
    return f"measured_{name}" if name in _SETTINGS else name


def _figure_columns(records: Sequence[RunRecord]) -> dict[str, bool]:
    """Figures that any run has → whether one of them has an interval."""
    found: dict[str, bool] = {}
    for record in records:
        for name, figure in record.figures.items():
            has = figure.low is not None or figure.high is not None
            found[name] = found.get(name, False) or has
    return found
