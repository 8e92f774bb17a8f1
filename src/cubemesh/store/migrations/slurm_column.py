"""Migration to version 6: the column `slurm` of `jobs`."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text

from cubemesh.store.migrations.job_tables import jobs


def add_slurm_column(connection: Connection) -> None:
    """Add the column, unless the migration to version 4 has just made the table with it."""
    names = {column["name"] for column in inspect(connection).get_columns(jobs.name)}
    if "slurm" not in names:
        connection.execute(text("ALTER TABLE jobs ADD COLUMN slurm TEXT"))
