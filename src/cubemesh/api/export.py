"""Exports of runs to files of other tools: tables, metrics, traces, test reports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.api.compare import Comparison
from cubemesh.api.results import ResultTable
from cubemesh.api.run import RunResult
from cubemesh.exports import export_file, format_of
from cubemesh.exports.contents import ExportedRuns
from cubemesh.schema import Machine, RunRecord, Series
from cubemesh.store.compare import StoredComparison

Runs = ResultTable | RunResult | Comparison | Iterable[RunRecord]
"""What `results`, `run`, `train` and `compare` return, or records."""


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file that was written."""

    file: str
    """Its path; `-`: standard output."""
    format: str
    runs: int


def export(
    runs: Runs,
    file: str | Path,
    *,
    format: str | None = None,
    store: AnyStore = None,
    store_b: AnyStore = None,
) -> ExportedFile:
    """Write runs into a file; `format` is one of `cubemesh.exports.FORMATS`, by default the one
    that the file's name ends in.

    Machines and telemetry are read from `store`, and from `store_b` for runs of another store.
    UsageError for an unknown format, runs that the format cannot hold, or a file that cannot be
    written.
    """
    path = os.fspath(file)
    chosen = format_of(path, format)
    records = _records(runs)
    with ExitStack() as stack:
        places = (store,) if store_b is None else (store, store_b)
        stores = [stack.enter_context(open_store(place, reading=True)) for place in places]

        def series(run_id: str) -> list[Series]:
            return next(filter(None, (opened.series(run_id) for opened in stores)), [])

        def open_artifact(record: RunRecord, name: str) -> BinaryIO | None:
            return next(
                filter(None, (opened.open_artifact(record, name) for opened in stores)), None
            )

        machines: dict[str, Machine] = {}
        for machine_id in {record.key.machine_id for record in records}:
            found = next(filter(None, (opened.machine(machine_id) for opened in stores)), None)
            if found is not None:
                machines[machine_id] = found
        contents = ExportedRuns(
            records=records,
            machines=machines,
            series=series,
            open_artifact=open_artifact,
            comparisons=_comparisons(runs),
            gate=runs.gate if isinstance(runs, Comparison | RunResult) else None,
            targets=runs.targets if isinstance(runs, RunResult) else {},
        )
        export_file(contents, path, chosen)
    return ExportedFile(file=path, format=chosen, runs=len(records))


def _records(runs: Runs) -> tuple[RunRecord, ...]:
    """Every run once, oldest first."""
    if isinstance(runs, Comparison):
        found: Iterable[RunRecord] = (
            *runs.compared.first.records,
            *runs.compared.second.records,
        )
    else:
        found = runs.records if isinstance(runs, ResultTable | RunResult) else runs
    once = {record.run_id: record for record in found}
    return tuple(sorted(once.values(), key=lambda record: record.started_utc))


def _comparisons(runs: Runs) -> tuple[StoredComparison, ...]:
    if isinstance(runs, Comparison):
        return (runs.compared,)
    return runs.comparisons if isinstance(runs, RunResult) else ()
