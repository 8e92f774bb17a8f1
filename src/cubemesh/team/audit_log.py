"""Audit log: who did what to which job, when. It is append-only, and an entry is written in the
transaction of what it describes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from cubemesh.store.database import Database, utc
from cubemesh.store.migrations.team_tables import audit_log

MOST_DETAIL = 2000
_MOST_NAME = 200


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """One action of a person."""

    number: int
    said_utc: str
    who: str
    """A user's name, or `user@host` of who used the command line."""
    action: str
    """`submit`, `pause`, `stop`, `add user`, …"""
    job_id: int | None
    detail: str
    """What it was about: the question, the new priority, the user."""


def append_entry(
    connection: Connection,
    time_s: float,
    who: str,
    action: str,
    *,
    job_id: int | None = None,
    detail: str = "",
) -> None:
    """Append an entry in an open transaction; none of what no person did (`who` is empty)."""
    if not who:
        return
    row = {
        "said_utc": utc(time_s),
        "who": who[:_MOST_NAME],
        "action": action,
        "job_id": job_id,
        "detail": detail[:MOST_DETAIL],
    }
    connection.execute(insert(audit_log).values(row))


def entries(
    database: Database,
    *,
    limit: int = 100,
    before: int | None = None,
    who: str | None = None,
    job_id: int | None = None,
) -> list[AuditEntry]:
    """The newest entries, newest first; before a number, of a person, about a job."""
    asked = select(audit_log).order_by(audit_log.c.number.desc()).limit(limit)
    if before is not None:
        asked = asked.where(audit_log.c.number < before)
    if who is not None:
        asked = asked.where(audit_log.c.who == who)
    if job_id is not None:
        asked = asked.where(audit_log.c.job_id == job_id)
    with database.read() as connection:
        return [AuditEntry(**row._asdict()) for row in connection.execute(asked)]
