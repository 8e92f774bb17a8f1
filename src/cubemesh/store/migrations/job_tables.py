"""Tables of jobs, and the migration to version 4, which adds them.

A row of `jobs` changes as the job does; `job_events` is append-only. The column `slurm` is of
version 5 (slurm_column.py). Times that decide are Unix
times of the database's clock: the clocks of hosts differ.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

job_metadata = MetaData()

jobs = Table(
    "jobs",
    job_metadata,
    Column("job_id", Integer, primary_key=True, autoincrement=True),
    Column("kind", String(20), nullable=False),
    Column("name", String(200), nullable=False),
    Column("question", Text, nullable=False),
    Column("next_question", Text),
    Column("state", String(20), nullable=False),
    Column("why", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("host", String(255)),
    Column("device", String(20), nullable=False),
    Column("devices", Integer, nullable=False),
    Column("parent_id", Integer, ForeignKey("jobs.job_id"), index=True),
    Column("submitter", String(200), nullable=False),
    Column("agent_id", String(40)),
    Column("fence", Integer, nullable=False),
    Column("lease_until_s", Float(53)),
    Column("not_before_s", Float(53)),
    Column("attempt", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("faults", Integer, nullable=False),
    Column("control", String(20)),
    Column("progress", Text, nullable=False),
    Column("made_utc", String(40), nullable=False),
    Column("started_utc", String(40)),
    Column("ended_utc", String(40)),
    Column("slurm", Text),
    Index("jobs_by_state", "state", "priority", "job_id"),
    sqlite_autoincrement=True,
)

job_runs = Table(
    "job_runs",
    job_metadata,
    Column("job_id", Integer, ForeignKey("jobs.job_id"), primary_key=True),
    Column("run_id", String(40), primary_key=True),
    Column("place", Integer, nullable=False),
)

job_events = Table(
    "job_events",
    job_metadata,
    Column("job_id", Integer, ForeignKey("jobs.job_id"), primary_key=True),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("said_utc", String(40), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("value", Text, nullable=False),
)

agents = Table(
    "agents",
    job_metadata,
    Column("agent_id", String(40), primary_key=True),
    Column("hostname", String(255), nullable=False),
    Column("process", Integer, nullable=False),
    Column("machine_id", String(40), nullable=False),
    Column("version", String(40), nullable=False),
    Column("devices", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("seen_s", Float(53), nullable=False),
    Column("ended_utc", String(40)),
)


def add_job_tables(connection: Connection) -> None:
    """Create the tables of jobs in a store that has none."""
    job_metadata.create_all(connection)
