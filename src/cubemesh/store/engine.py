"""Database engine: durable settings of SQLite, and connections to other databases.

SQLite runs in WAL mode, in which readers and a writer do not block each other, with
`synchronous=FULL`: a commit returns once the log is on the disk, so a stored record survives
`kill -9` and a power cut (sqlite.org/wal.html, sqlite.org/pragma.html#pragma_synchronous). Writing
transactions begin with BEGIN IMMEDIATE: one that began by reading could not wait for its turn. On a
file system of several hosts a rollback journal takes the place of WAL (shared_disk.py).
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import NoSuchModuleError

from cubemesh.errors import UsageError
from cubemesh.store.location import Location
from cubemesh.store.shared_disk import is_shared

IDLE_TRANSACTION_S = 30.0
"""How long a process may be idle in a writing transaction of PostgreSQL: one that is stopped there
(SIGSTOP) must not prevent the others from writing."""
BUSY_TIMEOUT = "busy_timeout_s"
"""Execution option of a transaction: how long it waits for a lock, in place of the engine's."""


def connect(location: Location, *, read_only: bool, busy_timeout_s: float) -> Engine:
    """An engine for `location`; nothing is opened before its first connection.

    UsageError when the driver for another database than SQLite is not installed.
    """
    if location.url.get_backend_name() != "sqlite":
        return _server(location)
    url, arguments = location.url, {"timeout": busy_timeout_s}
    if read_only and location.path is not None:
        query = {"mode": "ro", "uri": "true"} | _immutable(location.path)
        url = url.set(database=location.path.as_uri(), query=query)
    engine = create_engine(url, connect_args=arguments)

    shared = location.path is not None and is_shared(location.path)

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        connection.text_factory = _text
        connection.execute("PRAGMA foreign_keys=ON")
        if not read_only:
            # EXTRA also forces the removal of a rollback journal to the disk.
            connection.execute(f"PRAGMA synchronous={'EXTRA' if shared else 'FULL'}")
            _set_journal(connection, "DELETE" if shared else "WAL", busy_timeout_s)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        timeout_s = options.get(BUSY_TIMEOUT, busy_timeout_s)
        connection.exec_driver_sql(f"PRAGMA busy_timeout={round(1000 * timeout_s)}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("writes") else "BEGIN")

    return engine


def _text(data: bytes) -> str:
    """Text of a damaged row: it must not keep the others from being read."""
    return data.decode("utf-8", errors="replace")


def _server(location: Location) -> Engine:
    try:
        engine = create_engine(location.url, pool_pre_ping=True)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise UsageError(
            f"The store {location.name} needs a driver that is not installed ({error}). For "
            "PostgreSQL: pip install 'cubemesh[postgresql]' and "
            "postgresql+psycopg://user@host/database."
        ) from error

    @event.listens_for(engine, "begin")
    def _limit(connection: Connection) -> None:
        if engine.dialect.name == "postgresql" and connection.get_execution_options().get("writes"):
            limit_ms = round(1000 * IDLE_TRANSACTION_S)
            setting = f"SET LOCAL idle_in_transaction_session_timeout = {limit_ms}"
            connection.exec_driver_sql(setting)

    return engine


def _immutable(path: Path) -> dict[str, str]:
    """In a read-only folder SQLite can read a WAL database only with a flag that no process writes
    it; that is true if there is no log file."""
    log = path.with_name(path.name + "-wal")
    fixed = not os.access(path.parent, os.W_OK) and not log.exists()
    return {"immutable": "1"} if fixed else {}


def _set_journal(connection: sqlite3.Connection, mode: str, busy_timeout_s: float) -> None:
    """Switch to a journal mode; a file remembers WAL. SQLite does not wait for its turn at this one
    statement, so two processes that make a store at the same moment must try again."""
    until = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={mode}")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
