"""Contents of a bundle: runs with their series and files, their machine and experiment runs.

Each part but the files is the JSON of a `Spooled`. Everything is checked before the store is
changed: a bundle may be a stranger's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cubemesh.errors import DataError, StoreError
from cubemesh.schema import ExperimentRun, Machine, RunRecord, Series
from cubemesh.store.bundles.bundle_file import MAX_PART_BYTES, BundleFile, Part
from cubemesh.store.damage import check_record, reason_of
from cubemesh.store.json_text import from_text, to_text
from cubemesh.store.location import is_run_id
from cubemesh.store.spool import Spooled
from cubemesh.store.store import Store
from cubemesh.untrusted import quoted, shown_path

_FILES = "files"


@dataclass(frozen=True, kw_only=True)
class BundledRun:
    """A run with everything that belongs to it."""

    record: RunRecord
    series: tuple[Series, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By the name of the file."""


@dataclass(frozen=True, kw_only=True)
class BundleContents:
    """What a bundle holds."""

    machines: tuple[Machine, ...]
    runs: tuple[BundledRun, ...]
    experiment_runs: tuple[ExperimentRun, ...]


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What was new to a store."""

    new: tuple[str, ...]
    """Ids of runs that were not stored before."""
    known: tuple[str, ...]
    """Ids of runs that were stored already."""


def to_parts(
    store: Store,
    run_ids: Iterable[str],
    machines: Iterable[Machine],
    experiment_runs: Iterable[ExperimentRun],
    *,
    files: bool = True,
) -> dict[str, Part]:
    """The parts of a bundle; `files` includes the files of the runs, such as traces. Paths of this
    machine are left out of the records' artifacts."""
    parts: dict[str, Part] = {}

    def add(spooled: Spooled) -> None:
        parts[spooled.file_name] = Part.of(to_text(spooled).encode("ascii"))

    for machine in machines:
        add(Spooled(store="", machine=machine))
    for run_id, samples in store.each_samples(run_ids):
        record = store.record(run_id)
        named = {name: Path(path).name for name, path in record.artifacts.items()}
        series = tuple(one.as_series() for one in samples)
        add(Spooled(store="", record=replace(record, artifacts=named), series=series))
        for name, file_name in named.items() if files else ():
            source = store.open_artifact(record, name)
            if source is not None:
                with source:
                    parts[f"{_FILES}/{run_id}/{file_name}"] = Part.of(
                        source.read(MAX_PART_BYTES + 1)
                    )
    for run in experiment_runs:
        add(Spooled(store="", experiment_run=run))
    return parts


def contents_of(bundle: BundleFile) -> BundleContents:
    """The contents of a bundle, checked. DataError where a part is not what its name says, a run
    cannot be read, or something belongs to a run that the bundle does not have."""
    machines: list[Machine] = []
    records: dict[str, tuple[RunRecord, tuple[Series, ...]]] = {}
    files: dict[str, dict[str, bytes]] = {}
    experiment_runs: list[ExperimentRun] = []
    where = f"The bundle {shown_path(bundle.path)}"
    try:
        for name, data in bundle.parts.items():
            if name.startswith(f"{_FILES}/"):
                _, run_id, file_name = name.split("/")
                files.setdefault(run_id, {})[file_name] = data
                continue
            one = _spooled(name, data)
            if one.record is not None:
                records[one.record.run_id] = one.record, one.series
            elif one.machine is not None:
                machines.append(one.machine)
            elif one.experiment_run is not None:
                experiment_runs.append(one.experiment_run)
        for run_id, own in files.items():
            named = records[run_id][0].artifacts.values() if run_id in records else ()
            for file_name in own:
                if file_name not in named:
                    raise ValueError(f"file {quoted(file_name)} belongs to no run of it")
        for run in experiment_runs:
            if missing := [one for one in run.run_ids if one not in records]:
                raise ValueError(
                    f"experiment run {quoted(run.experiment_run_id)} needs run "
                    f"{quoted(missing[0])}, which it does not have"
                )
    except (ValueError, StoreError) as error:
        raise DataError(f"{where} cannot be read: {reason_of(error).rstrip('.')}.") from error
    return BundleContents(
        machines=tuple(machines),
        runs=tuple(
            BundledRun(record=record, series=series, files=files.get(run_id, {}))
            for run_id, (record, series) in records.items()
        ),
        experiment_runs=tuple(experiment_runs),
    )


def merge(store: Store, bundle: BundleFile) -> Merged:
    """Store what a bundle holds and the store does not: runs, machines that it does not know, and
    experiment runs. A stored run is never changed. DataError, and nothing is stored, if the bundle
    has another run under the id of a stored one."""
    contents = contents_of(bundle)
    known_ids = store.known_runs([run.record.run_id for run in contents.runs])
    stored = {run_id: store.record(run_id) for run_id in known_ids}
    for run in contents.runs:
        own = stored.get(run.record.run_id)
        if own is not None and replace(own, artifacts={}) != replace(run.record, artifacts={}):
            raise DataError(
                f"The bundle {shown_path(bundle.path)} holds another run {own.run_id} than the "
                f"store {store.name}: one of them was changed, and nothing was imported."
            )
    known = {run.experiment_run_id: run for run in store.experiment_runs()}
    for experiment_run in contents.experiment_runs:
        earlier = known.get(experiment_run.experiment_run_id)
        if earlier is not None and earlier != _with_runs_of(experiment_run, earlier):
            raise DataError(
                f"The bundle {shown_path(bundle.path)} holds another answer "
                f"{earlier.experiment_run_id} than the store {store.name}: one of them was "
                "changed, and nothing was imported."
            )
    for machine in contents.machines:
        if store.machine(machine.machine_id) is None:
            store.save_machine(machine)
    new = [
        run.record.run_id
        for run in contents.runs
        if run.record.run_id not in stored and store.adopt(run.record, run.series, run.files)
    ]
    for experiment_run in contents.experiment_runs:
        earlier = known.get(experiment_run.experiment_run_id)
        if earlier is None or set(earlier.run_ids) < set(experiment_run.run_ids):
            store.save_experiment_run(experiment_run)
    return Merged(
        new=tuple(new),
        known=tuple(r.record.run_id for r in contents.runs if r.record.run_id not in new),
    )


def _with_runs_of(one: ExperimentRun, other: ExperimentRun) -> ExperimentRun:
    """An experiment run with the runs of another and whether they are all."""
    return replace(one, run_ids=other.run_ids, complete=other.complete)


def _spooled(name: str, data: bytes) -> Spooled:
    """The contents of a part that is no file."""
    spooled = from_text(Spooled, data.decode("ascii"), f"part {name}")
    if spooled.file_name != name:
        raise ValueError(f"part {name} holds {quoted(spooled.file_name)}")
    if (record := spooled.record) is not None:
        if not is_run_id(record.run_id):
            raise ValueError(f"{quoted(record.run_id)} is not the id of a run")
        try:
            check_record(record, record.run_id)
        except (ValueError, TypeError) as error:
            raise ValueError(f"run {record.run_id} is damaged: {error}") from None
        places = [(one.name, one.rank, one.device) for one in spooled.series]
        if len(set(places)) < len(places):
            raise ValueError(f"run {record.run_id} has two series of one name, rank and device")
    return spooled
