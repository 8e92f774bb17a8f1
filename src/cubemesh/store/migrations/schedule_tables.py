"""Tables of nightly schedules, and the migration to version 5, which adds them.

The column `paused_s` is of version 8 (schedule_paused_column.py).
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

schedule_metadata = MetaData()

schedules = Table(
    "schedules",
    schedule_metadata,
    Column("schedule_id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(200), nullable=False),
    Column("question", Text, nullable=False),
    Column("at_s", Integer, nullable=False),
    Column("within_s", Integer, nullable=False),
    Column("when_idle", Boolean, nullable=False),
    Column("device", String(20), nullable=False),
    Column("devices", Integer, nullable=False),
    Column("host", String(255)),
    Column("priority", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("submitter", String(200), nullable=False),
    Column("made_s", Float(53), nullable=False),
    Column("deleted_s", Float(53)),
    Column("waiting_night", String(10)),
    Column("waiting_why", Text),
    Column("paused_s", Float(53)),
    sqlite_autoincrement=True,
)

schedule_nights = Table(
    "schedule_nights",
    schedule_metadata,
    Column("schedule_id", Integer, ForeignKey("schedules.schedule_id"), primary_key=True),
    Column("night", String(10), primary_key=True),
    Column("job_id", Integer),
    Column("why", Text, nullable=False),
    Column("said_utc", String(40), nullable=False),
)


def add_schedule_tables(connection: Connection) -> None:
    """Create the tables of schedules in a store that has none."""
    schedule_metadata.create_all(connection)
