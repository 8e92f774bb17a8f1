"""Store of records, series, machines and experiment runs.

A record is stored in one transaction together with its series and is never changed; when `save`
returns, it is on the disk. `save_or_spool` is for what was just measured: it writes the record into
the spool first, and what the store does not take now stays there (`spool.py`). A store whose file
was deleted or replaced since it was opened is opened again before anything is written.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    func,
    select,
)
from sqlalchemy.exc import IntegrityError

from cubemesh.errors import (
    BusyError,
    CubemeshError,
    StoreError,
    StoreWarning,
    UsageError,
    unknown_name,
)
from cubemesh.schema import ExperimentRun, Figure, Machine, RunKey, RunRecord, Series, Status
from cubemesh.store import tables as schema
from cubemesh.store.damage import Damage, reason_of
from cubemesh.store.database import Database
from cubemesh.store.db_errors import contradiction
from cubemesh.store.json_text import from_text
from cubemesh.store.list_rows import link_experiment_run, name_machine
from cubemesh.store.location import (
    artifact_folder,
    copy_artifact,
    files_folder,
)
from cubemesh.store.migrations import MIGRATIONS, Migration
from cubemesh.store.run_list import (
    ALL_RUNS,
    MAX_CANDIDATES,
    FacetValue,
    RunFilter,
    RunPage,
    RunRow,
    ambiguous,
    count_facets,
    figure_names,
    figures_of,
    list_page,
    rows_after,
)
from cubemesh.store.series_chunks import Chunk, Samples, read_chunks
from cubemesh.store.spool import Spool, Spooled, format_files
from cubemesh.store.spool import read as read_spooled
from cubemesh.store.tables import (
    experiment_run_row,
    experiment_runs,
    key_columns,
    machine_row,
    machines,
    record_of,
    records,
)
from cubemesh.untrusted import open_plain_file

MAX_ARTIFACT_BYTES = 64 << 20
"""Of a file that is kept in the database; larger ones stay in a folder of this host."""
_RUNS_AT_A_TIME = 16
"""Whose series are read together."""
_IDS_AT_A_TIME = 500
"""In one statement."""
_REUSABLE = [status.value for status in Status if status.expected]
_AWAY = (StoreError, BusyError)
"""The store does not answer, or takes nothing."""
T = TypeVar("T")


class Store:
    """An open store; `Store.open` makes one. Threads may share it, forked processes may not."""

    def __init__(self, database: Database) -> None:
        self.unsaved: CubemeshError | None = None
        """Why the store did not take the last thing; None if it did."""
        self._database = database
        self._location = database.location
        self._spool = Spool(self._location)
        self._saved = _nothing_saved()
        """Ids of what was saved since the store was opened."""
        self._waiting: dict[str, RunRecord] = {}
        """Records of this process that wait in the spool, by run id."""
        self._damage: dict[Damage, None] = {}

    @classmethod
    def open(
        cls,
        location: str | None = None,
        *,
        must_exist: bool = False,
        read_only: bool = False,
        busy_timeout_s: float = 30.0,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> Self:
        """Open the store at a path or SQLAlchemy URL, or the default one; create it if necessary.

        `read_only` never creates one. StoreError if it cannot be read (or written), is full, is not
        a store, or was made by a newer cubemesh; BusyError if another process has locked it for
        longer than `busy_timeout_s`; UsageError for an invalid URL.
        """
        return cls(
            Database.open(
                location,
                migrations,
                must_exist=must_exist,
                read_only=read_only,
                busy_timeout_s=busy_timeout_s,
            )
        )

    @property
    def name(self) -> str:
        """The path of its file, or its URL without the password."""
        return self._location.name

    @property
    def database(self) -> Database:
        """Its database, for tables that other rooms write (`cubemesh.jobs`)."""
        return self._database

    @property
    def files(self) -> Path:
        """The folder of files that belong to runs and jobs."""
        return files_folder(self._location)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The rows that were left out, as they could not be read."""
        return tuple(self._damage)

    @property
    def spooled(self) -> list[Path]:
        """Files of the spool that are not in the store."""
        return self._spool.files()

    def save(self, record: RunRecord, series: Iterable[Series] = ()) -> None:
        """Store a record and its series, all or nothing; it is on the disk on return.

        StoreError when the run is stored already; ValueError when two series share their name,
        rank and device.
        """
        self._follow_file()
        try:
            stored = self._database.insert(record, series)
        except IntegrityError as error:
            raise contradiction(self._database.location, error) from error
        if not stored:
            raise StoreError(
                f"Run {record.run_id} is in the store {self.name} already, and a stored record is "
                "never changed."
            )

    def save_or_spool(self, record: RunRecord, series: Iterable[Series] = ()) -> None:
        """As `save`, and if the store cannot take it the record waits in the spool, with
        `unsaved` and a StoreWarning; a run that is stored already is left as it is."""
        self._keep(Spooled(store=self.name, record=record, series=tuple(series)))

    def adopt(
        self, record: RunRecord, series: Iterable[Series], files: Mapping[str, bytes]
    ) -> bool:
        """Store a run of another store with its files, by their names; False if it is stored
        already. StoreError where that fails."""
        if self.known_runs([record.run_id]):
            return False
        self._follow_file()
        paths = dict(record.artifacts)
        for name, path in paths.items():
            if (data := files.get(Path(path).name)) is not None:
                paths[name] = self._adopt_file(record.run_id, Path(path).name, data)
        return self._database.insert(replace(record, artifacts=paths), series)

    def _adopt_file(self, run_id: str, name: str, data: bytes) -> str:
        """Write a file of a run; one that an interrupted import has left is used again."""
        with (
            suppress(OSError, ValueError),
            open_plain_file(self._artifact_folder(run_id), name) as left,
        ):
            if left.read(len(data) + 1) == data:
                return str(self._artifact_folder(run_id) / name)
        return self._copy_artifact(BytesIO(data), run_id, name)

    def known_runs(self, run_ids: Sequence[str]) -> list[str]:
        """Those of these ids that are stored, in this order."""
        found: set[str] = set()
        with self._database.read() as connection:
            for first in range(0, len(run_ids), _IDS_AT_A_TIME):
                some = list(run_ids[first : first + _IDS_AT_A_TIME])
                query = select(records.c.run_id).where(records.c.run_id.in_(some))
                found |= set(connection.execute(query).scalars())
        return [run_id for run_id in run_ids if run_id in found]

    def recover(self, *, patient: bool = True) -> int:
        """Take in what waits in the spool, each run once; the number of files. What the store
        does not take stays there, with `unsaved` and a StoreWarning; so does a damaged file, with a
        StoreWarning. `patient` waits for a lock as long as other writers do."""
        taken = 0
        for path in self._spool.files():
            try:
                spooled = read_spooled(path)
            except StoreError as error:
                self._warn(f"{error} It stays where it is.")
                continue
            try:
                if not self._take(self._with_artifacts(spooled), patient=patient):
                    break
            except (ValueError, IntegrityError) as error:
                self._warn(f"{path} cannot be stored: {reason_of(error)}. It stays there.")
                continue
            taken += 1
        if taken:
            self._warn(f"Stored from the spool: {format_files(taken)}, in {self.name}.")
        return taken

    def settle(self) -> CubemeshError | None:
        """At the end of a session: try once more to take in what waits. Why that failed, after a
        StoreWarning that says where it lies and what to do; None if nothing waits."""
        try:
            self._follow_file()
        except _AWAY as error:
            self.unsaved = error
        if self.unsaved is not None:
            self.recover()
        if self.unsaved is not None:
            waiting = self._spool.files()
            places = " and ".join(dict.fromkeys(str(path.parent) for path in waiting))
            text = "What was measured is printed above; save it as that says."
            if waiting:
                text = (
                    f"What was measured is not lost: it waits in {places} "
                    f"({format_files(len(waiting))}). The next run with this store takes it in, "
                    f"or: cubemesh results --recover --store {self.name}"
                )
            self._warn(f"{self.unsaved} {text}")
        return self.unsaved

    def attach(self, run_id: str, name: str, source: BinaryIO) -> str:
        """Copy `source`, which belongs to a run, to the file `name` in the folder of files next to
        the store, in the database if it is a server's, or in the spool; its path. StoreError if
        none can be written."""
        try:
            return self._copy_artifact(source, run_id, name)
        except StoreError as error:
            for folder in self._spool.artifact_folders(run_id):
                source.seek(0)
                with suppress(StoreError):
                    return copy_artifact(source, folder, name)
            raise error

    def open_artifact(self, record: RunRecord, name: str) -> BinaryIO | None:
        """Open a file that belongs to a run; None if it is gone, or lies elsewhere than the files
        of this store: a record may be a stranger's and name any file."""
        path = record.artifacts.get(name, "")
        if self._database.keeps_artifacts:
            data = self._database.artifact(record.run_id, Path(path).name)
            if data is not None:
                return BytesIO(data)
        with suppress(OSError, ValueError, StoreError):
            return open_plain_file(self._artifact_folder(record.run_id), Path(path).name)
        return self._spool.open_artifact(record.run_id, path)

    def find(self, key: RunKey) -> RunRecord | None:
        """The newest record that can be reused for `key`: one with a result (ok, out of memory,
        unsupported, …), not a crash, a kill or a time limit."""
        for record in reversed(self._waiting.values()):
            if record.key == key and record.outcome.status.expected:
                return record
        query = (
            select(records.c.run_id, records.c.record)
            .where(_of(key), records.c.outcome.in_(_REUSABLE))
            .order_by(records.c.sequence.desc())
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        readable = (self._readable_record(row) for row in rows)
        return next((r for r in readable if r is not None and r.key.data_id == key.data_id), None)

    def attempts(self, key: RunKey) -> int:
        """How many records of `key` there are, however they ended and whatever their data."""
        with self._database.read() as connection:
            query = select(func.count()).select_from(records).where(_of(key))
            stored = connection.execute(query).scalar_one()
        return stored + sum(record.key == key for record in self._waiting.values())

    def record(self, run_id_or_prefix: str) -> RunRecord:
        """The record with this id or unique prefix of an id; UsageError for none or several."""
        prefix = run_id_or_prefix.strip().lower()
        if not prefix:
            raise UsageError("No run id was given. `cubemesh results` lists the stored runs.")
        starts = records.c.run_id.startswith(prefix, autoescape=True)
        query = select(records).where(starts).order_by(records.c.sequence)
        with self._database.read() as connection:
            found = connection.execute(query.limit(MAX_CANDIDATES + 1)).all()
        exact = [row for row in found if row.run_id == prefix]
        if len(exact or found) > 1:
            raise UsageError(ambiguous(prefix, found))
        if not found:
            raise UsageError(
                f"No run in the store {self.name} has an id that begins with '{prefix}'. "
                "`cubemesh results` lists the stored runs."
            )
        return record_of((exact or found)[0])

    def records(
        self,
        run_ids: Sequence[str] | None = None,
        *,
        network: str | None = None,
        framework: str | None = None,
        outcome: str | None = None,
        machine_id: str | None = None,
        work: str | None = None,
        limit: int | None = None,
    ) -> list[RunRecord]:
        """Stored records that match every given filter, oldest first; at most the newest `limit`.
        Damaged ones are left out (`damage`).

        UsageError for an id in `run_ids` that is not stored, or an outcome that does not exist.
        """
        if outcome is not None and outcome not in list(Status):
            raise unknown_name("outcome", outcome, [status.value for status in Status])
        filters = {
            "network": network,
            "framework": framework,
            "outcome": outcome,
            "machine_id": machine_id,
            "work": work,
        }
        query = select(records.c.run_id, records.c.record)
        for name, value in filters.items():
            if value is not None:
                query = query.where(records.c[name] == str(value))
        if run_ids is not None:
            query = query.where(records.c.run_id.in_(list(run_ids)))
        newest_first = query.order_by(records.c.started_utc.desc(), records.c.sequence.desc())
        with self._database.read() as connection:
            if run_ids:
                self._check_stored(connection, run_ids)
            rows = connection.execute(newest_first.limit(limit)).all()
        readable = [self._readable_record(row) for row in reversed(rows)]
        return [record for record in readable if record is not None]

    def list_runs(
        self,
        filter: RunFilter = ALL_RUNS,
        *,
        sort: str = "started_utc",
        descending: bool = True,
        after: str | None = None,
        limit: int = 50,
    ) -> RunPage:
        """One page of the runs that match a filter, without reading records; `after` is the cursor
        `next` of the page before. `sort` is one of `run_list.SORTS`, or `figure.NAME`.

        UsageError for an unknown column, a cursor of another order, or an invalid date.
        """
        with self._database.read() as connection:
            return list_page(
                connection, filter, sort=sort, descending=descending, after=after, limit=limit
            )

    def each_run(self, filter: RunFilter = ALL_RUNS) -> Iterator[RunRow]:
        """Every run that matches, in the order of storing."""
        last = 0
        while True:
            with self._database.read() as connection:
                rows = rows_after(connection, filter, last)
            yield from rows
            if not rows:
                return
            last = rows[-1].sequence

    def run_facets(self, filter: RunFilter = ALL_RUNS) -> dict[str, tuple[FacetValue, ...]]:
        """For each column of `run_list.FACETS` its values, most frequent first, with how many runs
        match the filter but for that column's own part."""
        with self._database.read() as connection:
            return count_facets(connection, filter)

    def figures(self, run_ids: Sequence[str]) -> dict[str, dict[str, Figure]]:
        """The figures of runs by id and name, without reading records; infinite ones are left
        out."""
        with self._database.read() as connection:
            return figures_of(connection, list(run_ids))

    def figure_names(self) -> list[str]:
        """The names of all figures in the store."""
        with self._database.read() as connection:
            return figure_names(connection)

    def series(self, run_id: str, name: str | None = None) -> list[Series]:
        """The series of a run, all or those of one name; empty if there are none. Damaged ones are
        left out (`damage`)."""
        return [one.as_series() for one in self.samples(run_id, name)]

    def samples(self, run_id: str, name: str | None = None) -> list[Samples]:
        """As `series`, as arrays."""
        query = _chunks_of([run_id])
        if name is not None:
            query = query.where(schema.series.c.name == name)
        return self._samples(query)[run_id]

    def each_samples(self, run_ids: Iterable[str]) -> Iterator[tuple[str, list[Samples]]]:
        """The series of these runs, in this order, each read once and some runs at a time."""
        waiting = iter(run_ids)
        while some := list(islice(waiting, _RUNS_AT_A_TIME)):
            found = self._samples(_chunks_of(some))
            yield from ((run_id, found[run_id]) for run_id in some)

    def _samples(self, query: Select[Any]) -> dict[str, list[Samples]]:
        """The series by run."""
        chunks: dict[str, list[Chunk]] = defaultdict(list)
        with self._database.read() as connection:
            for run_id, *columns in connection.execute(query):
                chunks[run_id].append(Chunk(*columns))
        found: dict[str, list[Samples]] = defaultdict(list)
        for run_id, own in chunks.items():
            found[run_id], damaged = read_chunks(own)
            for one in damaged:
                self.leave_out(replace(one, id=f"{one.id} of run {run_id}"))
        return found

    def save_machine(self, machine: Machine) -> None:
        """Store the current description of a machine, replacing an earlier one; as
        `save_or_spool`, it waits in the spool if the store cannot take it."""
        self._keep(Spooled(store=self.name, machine=machine))

    def machine(self, machine_id: str) -> Machine | None:
        """The last description of a machine; None if it was never stored."""
        query = select(machines.c.machine).where(machines.c.machine_id == machine_id)
        with self._database.read() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else from_text(Machine, found, f"Machine {machine_id}")

    def machines(self) -> list[Machine]:
        """All machines, by hostname."""
        query = select(machines.c.machine_id, machines.c.machine)
        by_name = query.order_by(machines.c.hostname, machines.c.machine_id)
        return self._all(Machine, by_name, "machine")

    def save_experiment_run(self, experiment_run: ExperimentRun) -> None:
        """Store an experiment run, replacing what was stored under its id; as `save_or_spool`, it
        waits in the spool if the store cannot take it."""
        self._keep(Spooled(store=self.name, experiment_run=experiment_run))

    def experiment_runs(self, experiment: str | None = None) -> list[ExperimentRun]:
        """All experiment runs, or those of one experiment, oldest first."""
        table = experiment_runs.c
        query = select(table.experiment_run_id, table.experiment_run)
        if experiment is not None:
            query = query.where(table.experiment == experiment)
        oldest_first = query.order_by(table.started_utc, table.experiment_run_id)
        return self._all(ExperimentRun, oldest_first, "experiment run")

    def check(self) -> None:
        """Read the whole store and check its integrity; StoreError if it is damaged."""
        self._database.check()

    def close(self) -> None:
        """Close the connections; reading afterwards opens one again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def leave_out(self, damage: Damage) -> None:
        """List a row that its reader could not use."""
        self._damage[damage] = None

    def _follow_file(self) -> None:
        """Open the store again if its file was deleted or replaced. What this process has saved
        since it opened the store is read from the old file, which it holds, and saved again."""
        change = self._database.change
        if not change:
            return
        if self.unsaved is None:
            self._warn(f"The file of the store {self.name} was {change} while it was in use.")
        for spooled in self._session():
            self._write_spool(spooled)
        self._saved = _nothing_saved()
        self._database.open_again()
        self.recover()

    def _session(self) -> Iterator[Spooled]:
        """Everything that was saved since the store was opened."""
        if not any(self._saved.values()):
            return
        try:
            known = {run.experiment_run_id: run for run in self.experiment_runs()}
            for one in dict.fromkeys(self._saved["machine"]):
                yield Spooled(store=self.name, machine=self.machine(one))
            for run_id in self._saved["run"]:
                series = tuple(self.series(run_id))
                yield Spooled(store=self.name, record=self.record(run_id), series=series)
            for one in dict.fromkeys(self._saved["experiment run"]):
                yield Spooled(store=self.name, experiment_run=known[one])
        except _AWAY as error:
            ids = ", ".join(self._saved["run"])
            self._warn(f"{error} What the deleted file held is lost, with the runs {ids}.")

    def _keep(self, spooled: Spooled) -> None:
        """Store something, or leave it in the spool. A record is there before it is stored."""
        away = self.unsaved is not None
        written = (spooled.record is not None or away) and self._spool.write(spooled) is not None
        if away and written:
            self.recover(patient=False)
            return
        try:
            taken = self._take(spooled, patient=not away)
        except IntegrityError as error:
            self._wait(spooled.record, contradiction(self._database.location, error))
            taken = False
        if not taken and not written:
            self._write_spool(spooled)

    def _write_spool(self, spooled: Spooled) -> None:
        if self._spool.write(spooled) is None:
            self._spool.print(spooled)

    def _wait(self, record: RunRecord | None, error: CubemeshError) -> None:
        """Note that the store does not take a record, and why."""
        if record is not None:
            self._waiting[record.run_id] = record
        if self.unsaved is None:
            self._warn(f"{error} What is measured from now on waits in the spool.")
        self.unsaved = error

    def _take(self, spooled: Spooled, *, patient: bool = True) -> bool:
        """Store something that has, or may have, a file in the spool, and remove that; False,
        with the reason in `unsaved`, where the store does not take it."""
        record, machine, run = spooled.record, spooled.machine, spooled.experiment_run
        try:
            self._follow_file()
            if record is not None:
                self._database.insert(record, spooled.series, patient=patient)
                self._saved["run"].append(record.run_id)
            elif machine is not None:
                row = machine_row(machine)
                named = partial(
                    name_machine, machine_id=machine.machine_id, hostname=machine.hostname
                )
                self._database.put(machines, "machine_id", row, then=named, patient=patient)
                self._saved["machine"].append(machine.machine_id)
            elif run is not None:
                row = experiment_run_row(run)
                linked = partial(link_experiment_run, experiment_run=run)
                self._database.put(
                    experiment_runs, "experiment_run_id", row, then=linked, patient=patient
                )
                self._saved["experiment run"].append(run.experiment_run_id)
        except _AWAY as error:
            self._wait(record, error)
            return False
        if record is not None:
            self._waiting.pop(record.run_id, None)
        self._spool.remove(spooled.file_name)
        self.unsaved = None
        return True

    def _with_artifacts(self, spooled: Spooled) -> Spooled:
        """The same, with artifacts that wait in the spool moved to where they belong."""
        record = spooled.record
        if record is None:
            return spooled
        paths = dict(record.artifacts)
        for name, path in paths.items():
            source = self._spool.open_artifact(record.run_id, path)
            if source is not None:
                with suppress(StoreError, OSError), source:
                    paths[name] = self._copy_artifact(source, record.run_id, Path(path).name)
                    os.unlink(path)
        return replace(spooled, record=replace(record, artifacts=paths))

    def _all(self, kind: type[T], query: Select[Any], what: str) -> list[T]:
        """The nouns in the rows (id, JSON) of a query; damaged ones are left out."""
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        readable = (self._readable(partial(from_text, kind, r[1], "it"), what, r[0]) for r in rows)
        return [one for one in readable if one is not None]

    def _artifact_folder(self, run_id: str) -> Path:
        """The folder of a run's files next to the store; StoreError for an invalid id."""
        return artifact_folder(files_folder(self._location), run_id)

    def _copy_artifact(self, source: BinaryIO, run_id: str, name: str) -> str:
        """Copy a file of a run to where this store keeps it; its path, or its name if that is the
        database."""
        folder = self._artifact_folder(run_id)
        if self._database.keeps_artifacts:
            data = source.read(MAX_ARTIFACT_BYTES + 1)
            if len(data) <= MAX_ARTIFACT_BYTES:
                self._database.put_artifact(run_id, name, data)
                return name
            source.seek(0)
        return copy_artifact(source, folder, name)

    def _readable_record(self, row: Any) -> RunRecord | None:
        return self._readable(lambda: record_of(row, "it"), "run", row.run_id)

    def _readable(self, read: Callable[[], T], what: str, identity: str) -> T | None:
        """What `read` returns; None, with the row in `damage`, if it is damaged."""
        try:
            return read()
        except StoreError as error:
            self.leave_out(Damage(what=what, id=identity, reason=str(error)))
            return None

    def _warn(self, text: str) -> None:
        warnings.warn(text, StoreWarning, stacklevel=3)

    def _check_stored(self, connection: Connection, run_ids: Sequence[str]) -> None:
        query = select(records.c.run_id).where(records.c.run_id.in_(list(run_ids)))
        missing = sorted(set(run_ids) - set(connection.execute(query).scalars()))
        if missing:
            raise UsageError(
                f"The store {self.name} has no run {', '.join(missing[:5])}. `cubemesh results` "
                "lists the stored runs."
            )


def _chunks_of(run_ids: Sequence[str]) -> Select[Any]:
    table = schema.series.c
    columns = [table.run_id, *(table[field.name] for field in fields(Chunk))]
    return select(*columns).where(table.run_id.in_(run_ids))


def _of(key: RunKey) -> ColumnElement[bool]:
    return and_(*(records.c[name] == value for name, value in key_columns(key).items()))


def _nothing_saved() -> dict[str, list[str]]:
    return {"run": [], "machine": [], "experiment run": []}
