"""The database of a store: opening it, transactions that read or write, and its file.

A writing transaction is on the disk when it returns. It is tried once more where the connection to
a server was dropped, so it may run twice.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Table, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from cubemesh.errors import StoreError
from cubemesh.schema import RunRecord, Series
from cubemesh.store import tables as schema
from cubemesh.store import versions
from cubemesh.store.db_errors import explained
from cubemesh.store.engine import BUSY_TIMEOUT, connect
from cubemesh.store.list_rows import Listed, hostnames_by_machine, insert_listed
from cubemesh.store.location import (
    LOG_SUFFIXES,
    Identity,
    Location,
    file_identities,
    locate,
    make_folder,
)
from cubemesh.store.migrations import Migration
from cubemesh.store.series_chunks import to_chunks
from cubemesh.store.shared_disk import WriterLock, lock_writer
from cubemesh.store.tables import record_row, records

_AGAIN_S = 1.0
"""How long to wait for a lock for which the last writer has waited in vain."""
T = TypeVar("T")


class Database:
    """An open database; `Database.open` makes one. Errors are StoreError and BusyError."""

    def __init__(self, location: Location, engine: Engine, migrations: Sequence[Migration]) -> None:
        self.location = location
        self.engine = engine
        self._migrations = migrations
        self._file: tuple[Identity, Identity] | None = None
        self._writer_lock: WriterLock | None = None

    @classmethod
    def open(
        cls,
        location: str | None,
        migrations: Sequence[Migration],
        *,
        must_exist: bool,
        read_only: bool,
        busy_timeout_s: float,
    ) -> Self:
        """As `Store.open`."""
        place = locate(location)
        if place.path is not None and not os.path.exists(place.path):
            if must_exist or read_only:
                raise StoreError(
                    f"There is no store at {place.path} yet. `cubemesh run` makes it; --store "
                    "names another."
                )
            make_folder(place.path)
        engine = connect(place, read_only=read_only, busy_timeout_s=busy_timeout_s)
        database = cls(place, engine, migrations)
        try:
            if read_only:
                database._check_version(busy_timeout_s)
            else:
                database._writer_lock = lock_writer(place.path, busy_timeout_s)
                database._prepare()
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()
        if self._writer_lock is not None:
            self._writer_lock.release()
            self._writer_lock = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that reads."""
        with explained(self.location), self.engine.begin() as connection:
            yield connection

    def commit(self, work: Callable[[Connection], T], *, patient: bool = True) -> T:
        """Do `work` in one writing transaction. `patient` waits for a lock as long as other writers
        do."""
        options = {} if patient else {BUSY_TIMEOUT: _AGAIN_S}
        writing = self.engine.execution_options(writes=True, **options)
        with explained(self.location):
            try:
                with writing.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            with writing.begin() as connection:
                return work(connection)

    def insert(self, record: RunRecord, series: Iterable[Series], *, patient: bool = True) -> bool:
        """Write a record with its series; False if it is there already."""
        chunks = [asdict(c) | {"run_id": record.run_id} for s in series for c in to_chunks(s)]
        if len({(c["name"], c["rank"], c["device"], c["chunk"]) for c in chunks}) < len(chunks):
            raise ValueError(f"run {record.run_id}: two series of one name, rank and device")
        known = select(records.c.sequence).where(records.c.run_id == record.run_id)

        def insert_all(connection: Connection) -> bool:
            if connection.execute(known).first():
                return False
            stored = connection.execute(insert(records).values(record_row(record)))
            assert stored.inserted_primary_key is not None
            listed = Listed(stored.inserted_primary_key[0], record)
            hostnames = hostnames_by_machine(connection, record.key.machine_id)
            insert_listed(connection, [listed], hostnames)
            if chunks:
                connection.execute(insert(schema.series), chunks)
            return True

        try:
            return self.commit(insert_all, patient=patient)
        except IntegrityError:
            with self.read() as connection:
                if connection.execute(known).first():  # another process was faster
                    return False
            raise

    def put(
        self,
        table: Table,
        identity: str,
        row: dict[str, Any],
        *,
        then: Callable[[Connection], None],
        patient: bool,
    ) -> None:
        """Write a row, replacing the one with the same `identity`, and do what comes `then` in the
        same transaction."""
        same = table.c[identity] == row[identity]

        def update_or_insert(connection: Connection) -> None:
            if connection.execute(update(table).where(same).values(row)).rowcount == 0:
                connection.execute(insert(table).values(row))
            then(connection)

        self.commit(update_or_insert, patient=patient)

    @property
    def keeps_artifacts(self) -> bool:
        """Whether files of runs are kept in it: it is a server, read from other hosts."""
        return self.engine.dialect.name != "sqlite"

    def put_artifact(self, run_id: str, name: str, data: bytes) -> None:
        """Write a file of a run, replacing one of its name."""
        table = schema.artifacts
        same = (table.c.run_id == run_id) & (table.c.name == name)
        row = {"run_id": run_id, "name": name, "bytes": len(data), "data": data}

        def replace_one(connection: Connection) -> None:
            connection.execute(delete(table).where(same))
            connection.execute(insert(table).values(row))

        self.commit(replace_one)

    def artifact(self, run_id: str, name: str) -> bytes | None:
        """A file of a run; None if the database does not hold it."""
        table = schema.artifacts.c
        query = select(table.data).where(table.run_id == run_id, table.name == name)
        with self.read() as connection:
            return connection.execute(query).scalar()

    def check(self) -> None:
        """Read the whole database and check its integrity; StoreError if it is damaged."""
        if self.engine.dialect.name != "sqlite":
            return
        with self.read() as connection:
            problems = connection.execute(text("PRAGMA integrity_check")).scalars().all()
        if problems != ["ok"]:
            raise StoreError(
                f"The store {self.location.name} is damaged: {problems[0]}. Keep a copy, save what "
                "can be read with `sqlite3 FILE .recover`, and name another store with --store."
            )

    @property
    def change(self) -> str:
        """What happened to its file since it was opened: "deleted", "replaced by another", or empty
        for nothing."""
        if self.location.path is None or self._file is None:
            return ""
        now = file_identities(self.location.path)[0]
        if now == self._file[0]:
            return ""
        return "deleted" if now is None else "replaced by another"

    def open_again(self) -> None:
        """Open the file that is at its path now, or make one."""
        path, known = self.location.path, self._file
        assert path is not None
        assert known is not None
        log = file_identities(path)[1]
        self.engine.dispose()
        if log is not None and log == known[1]:  # the old file's log, not the new one's
            for suffix in LOG_SUFFIXES:
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        make_folder(path)
        self._prepare()

    def _prepare(self) -> None:
        """Create the tables or upgrade them, and remember which file this is."""
        writing = self.engine.execution_options(writes=True)
        with explained(self.location), writing.begin() as connection:
            versions.prepare(connection, self._migrations)
        self._file = file_identities(self.location.path)

    def _check_version(self, busy_timeout_s: float) -> None:
        """Check the version of a database opened for reading; an older one is upgraded first."""
        with self.read() as connection:
            version = versions.stored_version(connection)
        if version is None:
            name = self.location.name
            raise StoreError(f"{name} is not a cubemesh store: it holds no tables.")
        versions.refuse_newer(version, self._migrations)
        if version <= len(self._migrations):
            self.engine.dispose()
            path, url = self.location.path, self.location.url
            address = str(path) if path else url.render_as_string(hide_password=False)
            Database.open(
                address,
                self._migrations,
                must_exist=True,
                read_only=False,
                busy_timeout_s=busy_timeout_s,
            ).close()


_CLOCKS = {
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)",
}


def database_time(connection: Connection) -> float:
    """Unix time of the database: the one clock that all hosts share."""
    sql = _CLOCKS.get(connection.dialect.name)
    if sql is None:
        raise StoreError(
            f"Jobs need a store in SQLite or PostgreSQL, and this is {connection.dialect.name}. "
            "Name another store with --store."
        )
    return float(connection.execute(text(sql)).scalar_one())


def utc(time_s: float) -> str:
    """A Unix time as ISO 8601."""
    moment = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    return moment.isoformat(timespec="milliseconds")
