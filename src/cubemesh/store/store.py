"""Store of records, series, machines and experiment runs.

A record is stored in one transaction together with its series and is never changed; when `save`
returns, it is on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, BinaryIO, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Table,
    and_,
    func,
    insert,
    select,
    text,
    update,
)

from cubemesh.errors import StoreError, UsageError, unknown_name
from cubemesh.schema import ExperimentRun, Machine, RunKey, RunRecord, Series, Status
from cubemesh.store import tables as schema
from cubemesh.store.db_errors import explained
from cubemesh.store.engine import connect
from cubemesh.store.json_text import from_text
from cubemesh.store.location import Location, copy_to_files, locate, make_folder
from cubemesh.store.migrations import MIGRATIONS, Migration
from cubemesh.store.series_chunks import Chunk, from_chunks, to_chunks
from cubemesh.store.tables import (
    experiment_run_row,
    experiment_runs,
    machine_row,
    machines,
    record_row,
    records,
)

MAX_CANDIDATES = 10
"""Runs that the message about an ambiguous prefix lists."""
_REUSABLE = [status.value for status in Status if status.expected]


class Store:
    """An open store; `Store.open` makes one. Threads may share it, forked processes may not."""

    def __init__(self, location: Location, engine: Engine) -> None:
        self._location = location
        self._engine = engine
        self._writing = engine.execution_options(writes=True)

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
        place = locate(location)
        if place.path is not None and not os.path.exists(place.path):
            if must_exist or read_only:
                raise StoreError(
                    f"There is no store at {place.path} yet. `cubemesh run` makes it; --store "
                    "names another."
                )
            make_folder(place.path)
        engine = connect(place, read_only=read_only, busy_timeout_s=busy_timeout_s)
        store = cls(place, engine)
        try:
            if read_only:
                store._check_version(migrations, busy_timeout_s)
            else:
                with store._write() as connection:
                    schema.prepare(connection, migrations)
        except BaseException:
            engine.dispose()
            raise
        return store

    @property
    def name(self) -> str:
        """The path of its file, or its URL without the password."""
        return self._location.name

    def save(self, record: RunRecord, series: Iterable[Series] = ()) -> None:
        """Store a record and its series, all or nothing; it is on the disk on return.

        StoreError when the run is stored already; ValueError when two series share their name,
        rank and device.
        """
        chunks = [asdict(c) | {"run_id": record.run_id} for s in series for c in to_chunks(s)]
        if len({(c["name"], c["rank"], c["device"], c["chunk"]) for c in chunks}) < len(chunks):
            raise ValueError(f"run {record.run_id}: two series of one name, rank and device")
        with self._write() as connection:
            known = select(records.c.sequence).where(records.c.run_id == record.run_id)
            if connection.execute(known).first():
                raise StoreError(
                    f"Run {record.run_id} is in the store {self.name} already, and a stored "
                    "record is never changed."
                )
            connection.execute(insert(records).values(record_row(record)))
            if chunks:
                connection.execute(insert(schema.series), chunks)

    def attach(self, run_id: str, name: str, source: BinaryIO) -> str:
        """Copy `source`, which belongs to a run, to the file `name` in the folder of files next to
        the store; its path. StoreError if it cannot be written."""
        return copy_to_files(self._location, run_id, name, source)

    def find(self, key: RunKey) -> RunRecord | None:
        """The newest stored record that can be reused for `key`: one with a result (ok, out of
        memory, unsupported, …), not a crash, a kill or a time limit."""
        query = (
            select(records.c.record)
            .where(_of(key), records.c.outcome.in_(_REUSABLE))
            .order_by(records.c.sequence.desc())
            .limit(1)
        )
        with self._read() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else from_text(RunRecord, found, "A stored record")

    def attempts(self, key: RunKey) -> int:
        """How many records of `key` are stored, however they ended."""
        with self._read() as connection:
            query = select(func.count()).select_from(records).where(_of(key))
            return connection.execute(query).scalar_one()

    def record(self, run_id_or_prefix: str) -> RunRecord:
        """The record with this id or unique prefix of an id; UsageError for none or several."""
        prefix = run_id_or_prefix.strip().lower()
        if not prefix:
            raise UsageError("No run id was given. `cubemesh results` lists the stored runs.")
        starts = records.c.run_id.startswith(prefix, autoescape=True)
        query = select(records).where(starts).order_by(records.c.sequence)
        with self._read() as connection:
            found = connection.execute(query.limit(MAX_CANDIDATES + 1)).all()
        exact = [row for row in found if row.run_id == prefix]
        if len(exact or found) > 1:
            raise UsageError(_ambiguous(prefix, found))
        if not found:
            raise UsageError(
                f"No run in the store {self.name} has an id that begins with '{prefix}'. "
                "`cubemesh results` lists the stored runs."
            )
        row = (exact or found)[0]
        return from_text(RunRecord, row.record, f"Run {row.run_id}")

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
        with self._read() as connection:
            if run_ids:
                self._check_stored(connection, run_ids)
            rows = connection.execute(newest_first.limit(limit)).all()
        return [from_text(RunRecord, row.record, f"Run {row.run_id}") for row in reversed(rows)]

    def series(self, run_id: str, name: str | None = None) -> list[Series]:
        """The series of a run, all or those of one name; empty if there are none."""
        query = select(schema.series).where(schema.series.c.run_id == run_id)
        if name is not None:
            query = query.where(schema.series.c.name == name)
        with self._read() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        return from_chunks(Chunk(**{k: v for k, v in row.items() if k != "run_id"}) for row in rows)

    def save_machine(self, machine: Machine) -> None:
        """Store the current description of a machine, replacing an earlier one."""
        self._put(machines, "machine_id", machine_row(machine))

    def machine(self, machine_id: str) -> Machine | None:
        """The last description of a machine; None if it was never stored."""
        query = select(machines.c.machine).where(machines.c.machine_id == machine_id)
        with self._read() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else from_text(Machine, found, f"Machine {machine_id}")

    def machines(self) -> list[Machine]:
        """All machines, by hostname."""
        query = select(machines).order_by(machines.c.hostname, machines.c.machine_id)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [from_text(Machine, row.machine, f"Machine {row.machine_id}") for row in rows]

    def save_experiment_run(self, experiment_run: ExperimentRun) -> None:
        """Store an experiment run, replacing what was stored under its id."""
        self._put(experiment_runs, "experiment_run_id", experiment_run_row(experiment_run))

    def experiment_runs(self, experiment: str | None = None) -> list[ExperimentRun]:
        """All experiment runs, or those of one experiment, oldest first."""
        query = select(experiment_runs).order_by(
            experiment_runs.c.started_utc, experiment_runs.c.experiment_run_id
        )
        if experiment is not None:
            query = query.where(experiment_runs.c.experiment == experiment)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [
            from_text(ExperimentRun, row.experiment_run, f"Experiment run {row.experiment_run_id}")
            for row in rows
        ]

    def check(self) -> None:
        """Read the whole store and check its integrity; StoreError if it is damaged."""
        if self._engine.dialect.name != "sqlite":
            return
        with self._read() as connection:
            problems = connection.execute(text("PRAGMA integrity_check")).scalars().all()
        if problems != ["ok"]:
            raise StoreError(
                f"The store {self.name} is damaged: {problems[0]}. Keep a copy, save what can be "
                "read with `sqlite3 FILE .recover`, and name another store with --store."
            )

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with explained(self._location), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with explained(self._location), self._writing.begin() as connection:
            yield connection

    def _check_version(self, migrations: Sequence[Migration], busy_timeout_s: float) -> None:
        """Check the version of a store opened for reading; an older one is upgraded first."""
        with self._read() as connection:
            version = schema.stored_version(connection)
        if version is None:
            raise StoreError(f"{self.name} is not a cubemesh store: it holds no tables.")
        schema.refuse_newer(version, migrations)
        if version <= len(migrations):
            self._engine.dispose()
            path, url = self._location.path, self._location.url
            address = str(path) if path else url.render_as_string(hide_password=False)
            Store.open(address, busy_timeout_s=busy_timeout_s, migrations=migrations).close()

    def _put(self, table: Table, identity: str, row: dict[str, Any]) -> None:
        same = table.c[identity] == row[identity]
        with self._write() as connection:
            if connection.execute(update(table).where(same).values(row)).rowcount == 0:
                connection.execute(insert(table).values(row))

    def _check_stored(self, connection: Connection, run_ids: Sequence[str]) -> None:
        query = select(records.c.run_id).where(records.c.run_id.in_(list(run_ids)))
        missing = sorted(set(run_ids) - set(connection.execute(query).scalars()))
        if missing:
            raise UsageError(
                f"The store {self.name} has no run {', '.join(missing[:5])}. `cubemesh results` "
                "lists the stored runs."
            )


def _of(key: RunKey) -> ColumnElement[bool]:
    return and_(*(records.c[name] == value for name, value in asdict(key).items()))


def _ambiguous(prefix: str, found: Sequence[Row[Any]]) -> str:
    """The message for a prefix of several run ids."""
    lines = [
        f"  {row.run_id}  {row.network or row.work}, {row.framework}, "
        f"batch {row.batch_per_device or '–'}, {row.outcome}, {row.started_utc}"
        for row in found[:MAX_CANDIDATES]
    ]
    if len(found) > MAX_CANDIDATES:
        lines.append("  …")
    listed = "\n".join(lines)
    return f"'{prefix}' is the prefix of several run ids:\n{listed}\nGive more digits."
