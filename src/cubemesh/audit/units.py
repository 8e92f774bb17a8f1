"""Units: a figure has the unit of what was counted, and follows from the figures that define it.

throughput · step      = batch size · devices
power / throughput     = energy per sample
throughput             = samples / seconds of the run's windows
bytes per second       ≠ items per second
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cubemesh.audit.evidence import ITEMS_PER_S, Evidence, Row, name_of
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.schema import Cell, Figure, Finding, Input, RunRecord
from cubemesh.store.run_statistics import run_windows
from cubemesh.units import format_number

TOLERANCE = 0.05
EXACT = 0.01
BYTES_PER_S = ("B/s", "bytes/s")
OF_NETWORKS = ("samples/s", "sequences/s", "sentences/s")
"""Units of training; the stages of an input process images."""


def of_work(evidence: Evidence) -> Iterator[Inconsistency]:
    """Rates of input stages in the unit of a network's training."""
    for record in evidence.records:
        figure = record.figures.get("throughput_per_s")
        if figure and isinstance(record.spec.work, Input) and figure.unit in OF_NETWORKS:
            yield _other_work(record, figure.value, figure.unit, evidence, None)
    for row in evidence.rows:
        for column, cell in zip(row.table.columns, row.cells, strict=False):
            stage = evidence.by_id.get(cell.run_id)
            unit = column.unit or column.name
            if cell.value is None or stage is None or unit not in OF_NETWORKS:
                continue
            if isinstance(stage.spec.work, Input):
                yield _other_work(stage, cell.value, unit, evidence, row)


def _other_work(
    record: RunRecord, value: float, unit: str, evidence: Evidence, row: Row | None
) -> Inconsistency:
    assert isinstance(record.spec.work, Input)
    return inconsistency(
        "unit-of-other-work",
        f"{format_number(value)} {unit}, as of {record.spec.work.network}, is the rate of the "
        f"input stage {record.spec.work.stage}: images/s.",
        evidence.place(record.run_id, table=row.table.title if row else None),
        "Show the stage and images/s.",
    )


def bytes_or_items(evidence: Evidence) -> Iterator[Inconsistency]:
    """Cells with a unit of bytes and a value in items, or the other way round."""
    for row in evidence.rows:
        for column, cell in zip(row.table.columns, row.cells, strict=False):
            record = evidence.by_id.get(cell.run_id)
            if record is None or not cell.value:
                continue
            for units, wrong in (
                (BYTES_PER_S, "throughput_per_s"),
                (ITEMS_PER_S, "rate_bytes_per_s"),
                (ITEMS_PER_S, "bus_bytes_per_s"),
            ):
                figure = record.figures.get(wrong)
                if figure is None or (column.unit or column.name) not in units:
                    continue
                if math.isclose(figure.value, cell.value, rel_tol=1e-6):
                    yield inconsistency(
                        "bytes-or-items",
                        f"{format_number(cell.value)} {column.unit or column.name} is the "
                        f"run's {format_number(figure.value)} {figure.unit}.",
                        evidence.place(cell.run_id, table=row.table.title),
                        "Multiply by the bytes of an item, or change the unit.",
                    )


def intervals(evidence: Evidence) -> Iterator[Inconsistency]:
    """Values outside their own intervals."""
    for finding in evidence.findings:
        if _excluded(finding):
            text = f"{finding.value:.6g} {finding.unit}: {_ends(finding)}."
            where = evidence.place(finding=finding)
            yield inconsistency("interval-excludes-value", text, where, "Compute both together.")
    for row in evidence.rows:
        for column, cell in zip(row.table.columns, row.cells, strict=False):
            if _excluded(cell):
                yield inconsistency(
                    "interval-excludes-value",
                    f"{column.name} {cell.value:.6g} {column.unit}: {_ends(cell)}.",
                    evidence.place(cell.run_id or row.run_id, table=row.table.title),
                    "Compute both together.",
                )
    for record in evidence.records:
        for name, figure in record.figures.items():
            if _excluded(figure):
                yield inconsistency(
                    "interval-excludes-value",
                    f"{name} {figure.value:.6g} {figure.unit}: {_ends(figure)}.",
                    evidence.place(record.run_id),
                    "Compute both together.",
                )


def _excluded(of: Cell | Finding | Figure) -> bool:
    if of.value is None or of.low is None or of.high is None:
        return False
    slack = 1e-9 * abs(of.value)
    return not of.low - slack <= of.value <= of.high + slack


def _ends(of: Cell | Finding | Figure) -> str:
    return f"its interval is {of.low:.6g} to {of.high:.6g}"


def steps(evidence: Evidence) -> Iterator[Inconsistency]:
    """Rows whose throughput times step time is not the batch size."""
    for row in evidence.rows:
        rate, step = row.column(units=ITEMS_PER_S), row.column("step")
        batch = row.value("global batch size") or _batch(evidence, row)
        if rate is None or step is None or not batch or step[0].unit not in ("ms", "s"):
            continue
        step_s = (step[1].value or 0.0) * (1e-3 if step[0].unit == "ms" else 1.0)
        product = (rate[1].value or 0.0) * step_s
        if abs(product - batch) > TOLERANCE * batch:
            yield inconsistency(
                "rate-and-step-differ",
                f"{format_number(rate[1].value or 0.0)} {rate[0].unit or rate[0].name} times "
                f"{format_number(1e3 * step_s)} ms are {format_number(product)} samples, and the "
                f"batch size is {batch:g}.",
                evidence.place(row.run_id, table=row.table.title),
                "Show the mean step: elapsed time over steps.",
            )


def _batch(evidence: Evidence, row: Row) -> float | None:
    record = evidence.by_id.get(row.run_id)
    if record is not None:
        return record.spec.global_batch
    return row.value("batch size")


def energy(evidence: Evidence) -> Iterator[Inconsistency]:
    """Rows whose power over throughput is not their energy per sample."""
    for row in evidence.rows:
        rate, watts = row.column(units=ITEMS_PER_S), row.column("power")
        joules = row.column("energy")
        if rate is None or watts is None or joules is None or joules[0].unit != "J/sample":
            continue
        value = (watts[1].value or 0.0) / (rate[1].value or math.inf)
        stated = joules[1].value or 0.0
        if abs(value - stated) > TOLERANCE * max(value, stated):
            yield inconsistency(
                "energy-and-power-differ",
                f"{format_number(watts[1].value or 0.0)} W over "
                f"{format_number(rate[1].value or 0.0)} samples/s are {format_number(value)} "
                f"J/sample, and {format_number(stated)} are shown.",
                evidence.place(row.run_id, table=row.table.title),
                "Compute all three over the same windows.",
            )


def windows(evidence: Evidence) -> Iterator[Inconsistency]:
    """Runs whose throughput is not that of their windows, and cells that differ from their run."""
    for record in evidence.records:
        figure, own = record.figures.get("throughput_per_s"), run_windows(record)
        if figure is None or not own or not record.ok:
            continue
        rate = sum(w.samples for w in own) / math.fsum(w.elapsed_s for w in own)
        if abs(rate - figure.value) > EXACT * rate:
            yield inconsistency(
                "figure-differs-from-windows",
                f"{name_of(record)}: {format_number(figure.value)} {figure.unit}, and its windows "
                f"have {format_number(rate)}.",
                evidence.place(record.run_id),
                "Compute the figures of the run again from its windows.",
            )
    for row in evidence.rows:
        found = row.column(units=ITEMS_PER_S)
        if found is None or not found[1].run_id:
            continue
        rates = [
            v
            for r in evidence.alike(found[1].run_id)
            for name in ("throughput_per_s", "against_throughput_per_s")
            if (v := r.figure(name)) is not None
        ]
        value = found[1].value or 0.0
        if rates and not min(rates) * (1 - EXACT) <= value <= max(rates) * (1 + EXACT):
            yield inconsistency(
                "cell-differs-from-run",
                f"{format_number(value)} {found[0].unit or found[0].name} refers to run "
                f"{found[1].run_id}, which has {format_number(rates[0])}.",
                evidence.place(found[1].run_id, table=row.table.title),
                "Compute the table from the runs it refers to.",
            )
