"""Version of a store, and the upgrade of an older one, in one transaction: completely or not at
all."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, func, insert, inspect, select, update

from cubemesh.errors import StoreError
from cubemesh.schema import ExperimentRun, RunRecord
from cubemesh.store.json_text import from_text
from cubemesh.store.list_rows import (
    Listed,
    hostnames_by_machine,
    insert_listed,
    link_experiment_run,
)
from cubemesh.store.migrations import MIGRATIONS, RECOMPUTED, Migration
from cubemesh.store.migrations.job_tables import add_job_tables
from cubemesh.store.migrations.schedule_tables import add_schedule_tables
from cubemesh.store.migrations.team_tables import add_team_tables
from cubemesh.store.tables import (
    COMPUTED,
    about,
    experiment_runs,
    metadata,
    record_row,
    records,
)
from cubemesh.untrusted import quoted

_OPENING_LOCK = 0x63756265
"""Any number that no other program is likely to lock in PostgreSQL: "cube" in ASCII."""

CURRENT = len(MIGRATIONS) + 1
"""Schema version of the stores that this cubemesh writes."""
_RECORDS_AT_A_TIME = 200


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
        add_job_tables(connection)
        add_schedule_tables(connection)
        add_team_tables(connection)
        connection.execute(insert(about).values(version=latest, opened_utc=now))
        return
    refuse_newer(version, migrations)
    if version < latest:
        missing = migrations[version - 1 :]
        for migrate in missing:
            migrate(connection)
        if RECOMPUTED.intersection(missing):
            _compute_again(connection)
    connection.execute(update(about).values(version=latest, opened_utc=now))


def _compute_again(connection: Connection) -> None:
    """Compute spec and workload ids again, which hash the field names, and the tables computed from
    records."""
    metadata.drop_all(connection, tables=COMPUTED)
    metadata.create_all(connection, tables=COMPUTED)
    hostnames = hostnames_by_machine(connection)
    columns = select(records).order_by(records.c.sequence)
    last = 0
    while some := connection.execute(
        columns.where(records.c.sequence > last).limit(_RECORDS_AT_A_TIME)
    ).all():
        last = some[-1].sequence
        listed: list[Listed] = []
        for row in some:
            try:
                record = from_text(RunRecord, row.record, f"Run {row.run_id}")
            except StoreError:
                continue  # damaged: listed when it is read
            if record.key.spec_id != record.spec.spec_id:
                record = replace(record, key=replace(record.key, spec_id=record.spec.spec_id))
                this = records.c.sequence == row.sequence
                connection.execute(update(records).where(this).values(record_row(record)))
            listed.append(Listed(row.sequence, record))
        insert_listed(connection, listed, hostnames)
    for (plain,) in connection.execute(select(experiment_runs.c.experiment_run)).all():
        with suppress(StoreError):
            link_experiment_run(connection, from_text(ExperimentRun, plain, "it"))
