"""Exports of runs: files of other tools (tables, traces, test reports), and share bundles."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.api.compare import Comparison
from cubemesh.api.report import Report, answerable, compose, latest, replayed_suites
from cubemesh.api.report import report as latest_answers
from cubemesh.api.results import ResultTable
from cubemesh.api.run import RunResult
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.experiments.registry import entry as experiment_entry
from cubemesh.exports import export_file, format_of
from cubemesh.exports.contents import ExportedRuns
from cubemesh.frameworks import entry as framework_entry
from cubemesh.networks import canonical_name
from cubemesh.papers.replay import documents
from cubemesh.schema import ExperimentRun, Machine, RunRecord, Series
from cubemesh.store.bundles.bundle_file import Part
from cubemesh.store.bundles.contents import to_parts
from cubemesh.store.compare import StoredComparison

if TYPE_CHECKING:
    from cubemesh.store import Store

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


@dataclass(frozen=True, kw_only=True, repr=False)
class Bundle:
    """Runs, answers and files for one file that is a page and a store;
    `cubemesh.views.report.bundle.write_bundle` writes it."""

    report: Report
    """Its page."""
    experiment_runs: tuple[ExperimentRun, ...]
    parts: Mapping[str, Part]
    """Its store, compressed, by the name of the part."""

    def __repr__(self) -> str:
        return f"Bundle({len(self.report.records)} runs, {len(self.report.answers)} answers)"


def bundle(
    *names: str,
    run_ids: Iterable[str] = (),
    network: str | None = None,
    framework: str | None = None,
    outcome: str | None = None,
    limit: int | None = None,
    machine_id: str = "",
    files: bool = True,
    store: AnyStore = None,
) -> Bundle:
    """Gather a share bundle from the results of one machine: the one with this id or unique prefix,
    or the one measured last.

    By default it holds the latest answers, as `report` does, of the experiments or suites `names`
    or of all, with their runs. With `run_ids` (unique prefixes), `network`, `framework`, `outcome`
    or `limit` it holds these runs, and every answer whose runs are all among them. `files` includes
    files of the runs, such as traces. UsageError where that is nothing, or a name is unknown.
    """
    for name in names:
        if name not in documents():
            experiment_entry(name)
    if framework is not None:
        framework_entry(framework)
    chosen = [*run_ids]
    filters = (network, framework, outcome, limit)
    with open_store(store, reading=True) as opened:
        if chosen or any(value is not None for value in filters):
            found = opened.records(
                network=network and canonical_name(network), framework=framework, outcome=outcome
            )
            if chosen:
                wanted = {opened.record(one).run_id for one in chosen}
                found = [record for record in found if record.run_id in wanted]
            return _bundle_of_runs(opened, names, found, limit, machine_id, files)
        whole = latest_answers(*names, machine_id=machine_id, store=opened)
        machine = whole.machine
        suites = replayed_suites(opened, machine, names)
        own = _once([*whole.experiment_runs, *(q for runs in suites.values() for q in runs)])
        return _packed(opened, whole, own, files)


def _bundle_of_runs(
    store: Store,
    names: Sequence[str],
    records: Sequence[RunRecord],
    limit: int | None,
    machine_id: str,
    files: bool,
) -> Bundle:
    """The newest `limit` of `records` on one machine, and the answers whose runs all are."""
    answers = answerable(store.experiment_runs(), names)
    if names:
        named = {run_id for run in answers for run_id in run.run_ids}
        records = [record for record in records if record.run_id in named]
    records = [r for r in records if r.key.machine_id.startswith(machine_id.lower())]
    if not records:
        raise UsageError(
            f"No stored run in {store.name} matches, so there is nothing to share. `cubemesh "
            "results` lists the stored runs."
        )
    newest = max(records, key=lambda record: record.started_utc).key.machine_id
    records = [record for record in records if record.key.machine_id == newest]
    records = records[-limit:] if limit is not None else records
    machine = store.machine(newest)
    if machine is None:
        raise CubemeshError(f"The store has no description of machine {newest}.")
    held = {record.run_id for record in records}
    whole = [
        run
        for run in answers
        if run.machine_id == newest and run.run_ids and held.issuperset(run.run_ids)
    ]
    found = compose(store, machine, latest(whole, names), {}, others=records)
    return _packed(store, found, whole, files)


def _packed(
    store: Store, report: Report, experiment_runs: Sequence[ExperimentRun], files: bool
) -> Bundle:
    run_ids = [*report.records, *(run_id for run in experiment_runs for run_id in run.run_ids)]
    if not run_ids and not experiment_runs:
        raise UsageError("There is nothing to share: no run is stored. Run: cubemesh run quick")
    parts = to_parts(store, dict.fromkeys(run_ids), (report.machine,), experiment_runs, files=files)
    return Bundle(report=report, experiment_runs=tuple(experiment_runs), parts=parts)


def _once(runs: Iterable[ExperimentRun]) -> list[ExperimentRun]:
    return list({run.experiment_run_id: run for run in runs}.values())
