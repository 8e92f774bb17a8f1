"""Evidence: an answer with its records, and ways to read both.

A table is read by column names and units; a row belongs to the run that its cells refer to.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cubemesh.audit.inconsistency import Place
from cubemesh.schema import (
    Answer,
    Cell,
    Column,
    Figure,
    Finding,
    NetworkWork,
    OwnStep,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
)
from cubemesh.units import format_interval

ITEMS_PER_S = ("samples/s", "images/s", "sequences/s", "sentences/s")
"""Units of a throughput."""


@dataclass(frozen=True)
class Row:
    """A row of a table, by its columns."""

    table: Table
    cells: tuple[Cell, ...]

    @property
    def run_id(self) -> str:
        """The run that the row is about; empty for none."""
        return next((cell.run_id for cell in self.cells if cell.run_id), "")

    def column(self, *names: str, units: Sequence[str] = ()) -> tuple[Column, Cell] | None:
        """The first column with one of these names, or units, that has a value in this row."""
        for column, cell in zip(self.table.columns, self.cells, strict=False):
            unit = column.unit or column.name  # a column may be named by its unit
            if (column.name in names or unit in units) and cell.value is not None:
                return column, cell
        return None

    def value(self, *names: str, units: Sequence[str] = ()) -> float | None:
        """The value in that column; a number shown as text counts."""
        found = self.column(*names, units=units)
        if found is not None:
            return found[1].value
        for column, cell in zip(self.table.columns, self.cells, strict=False):
            if column.name in names and re.fullmatch(r"\d+(\.\d+)?", cell.text):
                return float(cell.text)
        return None


@dataclass(frozen=True)
class Evidence:
    """An answer with its records; None for stored runs that no answer uses."""

    answer: Answer | None
    records: tuple[RunRecord, ...]

    @cached_property
    def by_id(self) -> dict[str, RunRecord]:
        """The records by their ids."""
        return {record.run_id: record for record in self.records}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the answer."""
        return self.answer.findings if self.answer else ()

    @property
    def rows(self) -> Iterator[Row]:
        """Every row of every table."""
        for table in self.answer.tables if self.answer else ():
            for cells in table.rows:
                yield Row(table, cells)

    def place(
        self, *run_ids: str, table: str | None = None, finding: Finding | None = None
    ) -> Place:
        """A place in this answer."""
        return Place(
            run_ids=tuple(run for run in dict.fromkeys(run_ids) if run),
            answer=self.answer.experiment if self.answer else "",
            title=self.answer.title if self.answer else "",
            table=table,
            finding=finding.text if finding else "",
        )

    def table_with(self, *run_ids: str) -> str | None:
        """The title of the first table that refers to all these runs; None if there is none."""
        for table in self.answer.tables if self.answer else ():
            if set(run_ids) <= {cell.run_id for cells in table.rows for cell in cells}:
                return table.title
        return None

    def repeats(self, run_id: str) -> list[RunRecord]:
        """The successful runs of the same spec: what a figure of this run pools."""
        one = self.by_id.get(run_id)
        if one is None:
            return []
        return [r for r in self.records if r.ok and r.key.spec_id == one.key.spec_id]

    def alike(self, run_id: str) -> list[RunRecord]:
        """The successful runs of the same workload, interleaved ones included."""
        one = self.by_id.get(run_id)
        if one is None:
            return []
        return self._of_workload[workload_of(one.spec)]

    @cached_property
    def _of_workload(self) -> dict[str, list[RunRecord]]:
        """The successful runs by workload."""
        found: dict[str, list[RunRecord]] = defaultdict(list)
        for record in self.records:
            if record.ok:
                found[workload_of(record.spec)].append(record)
        return found


def workload_of(spec: RunSpec) -> str:
    """The workload of one side: without the other, and without the losses logged before."""
    work = replace(spec.work, losses=0) if isinstance(spec.work, TrainSteps) else spec.work
    return replace(spec, work=work, against=None).workload_id


def name_of(record: RunRecord) -> str:
    """`resnet-50, batch size 32`, with stage, image size and precision where they are special."""
    work, program = record.spec.work, record.spec.program
    if not isinstance(work, NetworkWork):
        return work.name if isinstance(work, OwnStep) else work.kind
    parts = [work.network, f"batch size {work.batch_per_device}"]
    if work.image_size is not None:
        parts.append(f"{work.image_size} pixels")
    if record.spec.placement.devices > 1:
        parts.append(f"{record.spec.placement.devices} devices")
    if program.precision != "fp32":
        parts.append(program.precision)
    return ", ".join(parts)


def shown(figure: Figure) -> str:
    """`1,029 ± 19 samples/s`."""
    return format_interval(figure.value, figure.low, figure.high, figure.unit)


def half_width(low: float | None, high: float | None) -> float:
    """Half of an interval; 0 without one."""
    return 0.0 if low is None or high is None else (high - low) / 2


def interval(cell: Cell | Finding) -> tuple[float, float]:
    """Its interval; without one the value twice."""
    value = cell.value or 0.0
    return (
        value if cell.low is None else cell.low,
        value if cell.high is None else cell.high,
    )
