"""Migration to version 8: the column `paused_s` of `schedules`."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text

from cubemesh.store.migrations.schedule_tables import schedules


def add_schedule_paused_column(connection: Connection) -> None:
    """Add the column, unless the migration to version 5 has just made the table with it."""
    names = {column["name"] for column in inspect(connection).get_columns(schedules.name)}
    if "paused_s" not in names:
        connection.execute(text("ALTER TABLE schedules ADD COLUMN paused_s DOUBLE PRECISION"))
