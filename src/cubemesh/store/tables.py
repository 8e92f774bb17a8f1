"""Tables of the store, their schema version, and the upgrade of an older store.

Only types that every database has are used. The record itself is one JSON text; the columns next to
it are for queries. An older store is upgraded in one transaction: completely or not at all.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
    update,
)

from cubemesh.errors import StoreError
from cubemesh.schema import ExperimentRun, Machine, RunKey, RunRecord
from cubemesh.store.damage import MAX_REASON, check_record, reason_of
from cubemesh.store.json_text import from_text, to_text
from cubemesh.store.migrations import MIGRATIONS, Migration
from cubemesh.untrusted import clean, quoted

_OPENING_LOCK = 0x63756265
"""Any number that no other program is likely to lock in PostgreSQL: "cube" in ASCII."""

CURRENT = len(MIGRATIONS) + 1
"""Schema version of the stores that this cubemesh writes."""
metadata = MetaData()

about = Table(
    "cubemesh_store",
    metadata,
    Column("version", Integer, nullable=False),
    Column("opened_utc", String(40), nullable=False),
)

records = Table(
    "records",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String(40), nullable=False, unique=True),
    Column("spec_id", String(40), nullable=False),
    Column("machine_id", String(40), nullable=False),
    Column("software_id", String(40), nullable=False),
    Column("code_version", String(200), nullable=False),
    Column("repeat", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("workload_id", String(40), nullable=False),
    Column("work", String(40), nullable=False),
    Column("network", String(200)),
    Column("framework", String(200), nullable=False),
    Column("batch_per_device", Integer),
    Column("outcome", String(40), nullable=False),
    Column("started_utc", String(40), nullable=False),
    Column("record", Text, nullable=False),
    Index("records_by_key", "spec_id", "machine_id", "software_id", "code_version", "repeat"),
    Index("records_by_network", "network", "framework"),
    Index("records_by_start", "started_utc"),
)

series = Table(
    "series",
    metadata,
    Column("run_id", String(40), ForeignKey("records.run_id"), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("device", String(200), primary_key=True),
    Column("chunk", Integer, primary_key=True, autoincrement=False),
    Column("t0_s", Float(53), nullable=False),
    Column("samples", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

machines = Table(
    "machines",
    metadata,
    Column("machine_id", String(40), primary_key=True),
    Column("hostname", String(255), nullable=False),
    Column("machine", Text, nullable=False),
)

experiment_runs = Table(
    "experiment_runs",
    metadata,
    Column("experiment_run_id", String(40), primary_key=True),
    Column("experiment", String(200), nullable=False),
    Column("suite", String(200)),
    Column("machine_id", String(40), nullable=False),
    Column("started_utc", String(40), nullable=False, index=True),
    Column("complete", Boolean, nullable=False),
    Column("experiment_run", Text, nullable=False),
)


def key_columns(key: RunKey) -> dict[str, Any]:
    """The parts of a key that have a column; `data_id` is in the record alone."""
    return {name: value for name, value in asdict(key).items() if name in records.c}


def record_row(record: RunRecord) -> dict[str, Any]:
    """The row of `records`; the parts of the run's key are separate columns, but for
    `data_id`."""
    work = record.spec.work
    return {
        **key_columns(record.key),
        "run_id": record.run_id,
        "attempt": record.attempt,
        "workload_id": record.spec.workload_id,
        "work": work.kind,
        "network": getattr(work, "network", None),
        "framework": record.spec.program.framework,
        "batch_per_device": record.spec.batch_per_device,
        "outcome": record.outcome.status.value,
        "started_utc": record.started_utc,
        "record": to_text(record),
    }


def record_of(row: Row[Any], what: str = "") -> RunRecord:
    """The record in a row of `records`; StoreError, naming `what` or the run, if it is damaged."""
    what = what or f"Run {clean(str(row.run_id), MAX_REASON)}"
    record = from_text(RunRecord, row.record, what)
    try:
        check_record(record, row.run_id)
    except ValueError as error:
        raise StoreError(f"{what} is damaged: {reason_of(error)}.") from error
    return record


def machine_row(machine: Machine) -> dict[str, Any]:
    """The row of `machines`."""
    return {
        "machine_id": machine.machine_id,
        "hostname": machine.hostname,
        "machine": to_text(machine),
    }


def experiment_run_row(experiment_run: ExperimentRun) -> dict[str, Any]:
    """The row of `experiment_runs`."""
    return {
        "experiment_run_id": experiment_run.experiment_run_id,
        "experiment": experiment_run.experiment,
        "suite": experiment_run.suite,
        "machine_id": experiment_run.machine_id,
        "started_utc": experiment_run.started_utc,
        "complete": experiment_run.complete,
        "experiment_run": to_text(experiment_run),
    }


def stored_version(connection: Connection) -> int | None:
    """The version of the store behind `connection`; None if there is no store yet.

    StoreError for an SQLite file with another program's tables, or where no one version is there.
    """
    tables = set(inspect(connection).get_table_names())
    if about.name in tables:
        return _one_version(connection.execute(select(about.c.version)).scalars().all())
    if tables and connection.dialect.name == "sqlite":
        raise StoreError(
            f"This database holds {', '.join(sorted(tables)[:3])}: it belongs to another program. "
            "Name a file of cubemesh's own with --store."
        )
    return None


def _one_version(found: Sequence[Any]) -> int:
    """The version in the rows of `cubemesh_store`; StoreError where there is not exactly one."""
    versions = set(found)
    version = next(iter(versions), None)
    if len(versions) != 1 or not isinstance(version, int):
        listed = " and ".join(quoted(one) for one in found[:3]) or "nothing"
        raise StoreError(
            f"This store is damaged: its table {about.name} has {listed} where the one version of "
            f"its schema belongs. If a cubemesh of version {CURRENT} wrote it: sqlite3 FILE "
            f"\"delete from {about.name}; insert into {about.name} values ({CURRENT}, '')\"."
        )
    return version


def refuse_newer(version: int, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Raise StoreError where the store was written by a newer cubemesh than this."""
    known = len(migrations) + 1
    if version > known:
        raise StoreError(
            f"This store has schema version {version}, and this cubemesh knows versions up to "
            f"{known}. Upgrade cubemesh, or name another store with --store."
        )


def prepare(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Create the tables, or upgrade an older store to the latest version, in the open transaction.

    It always writes, so that a store that cannot be written fails here and not after the first
    measurement.
    """
    if connection.dialect.name == "postgresql":  # two that open a new store at once take turns
        connection.execute(select(func.pg_advisory_xact_lock(_OPENING_LOCK)))
    version = stored_version(connection)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    latest = len(migrations) + 1
    if version is None:
        metadata.create_all(connection)
        connection.execute(insert(about).values(version=latest, opened_utc=now))
        return
    refuse_newer(version, migrations)
    if version < latest:
        for migrate in migrations[version - 1 :]:
            migrate(connection)
        _compute_ids(connection)
    connection.execute(update(about).values(version=latest, opened_utc=now))


def _compute_ids(connection: Connection) -> None:
    """Compute spec and workload ids again, which hash the field names, with their columns."""
    for sequence in connection.execute(select(records.c.sequence)).scalars().all():
        this = records.c.sequence == sequence
        row = connection.execute(select(records.c.run_id, records.c.record).where(this)).one()
        try:
            record = from_text(RunRecord, row.record, f"Run {row.run_id}")
        except StoreError:
            continue  # damaged: listed when it is read
        record = replace(record, key=replace(record.key, spec_id=record.spec.spec_id))
        connection.execute(update(records).where(this).values(record_row(record)))
