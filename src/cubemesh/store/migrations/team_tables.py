"""Tables of a team, and the migration to version 7, which adds them.

`audit_log` is append-only. Of a token only a digest is stored.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, Index, Integer, MetaData, String, Table, Text

team_metadata = MetaData()

users = Table(
    "team_users",
    team_metadata,
    Column("user_id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(80), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("made_utc", String(40), nullable=False),
    Column("revoked_utc", String(40)),
    sqlite_autoincrement=True,
)

audit_log = Table(
    "team_audit_log",
    team_metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("said_utc", String(40), nullable=False),
    Column("who", String(200), nullable=False),
    Column("action", String(40), nullable=False),
    Column("job_id", Integer, index=True),
    Column("detail", Text, nullable=False),
    Index("team_audit_log_by_person", "who", "number"),
    sqlite_autoincrement=True,
)


def add_team_tables(connection: Connection) -> None:
    """Create the tables in a store that has none."""
    team_metadata.create_all(connection)
