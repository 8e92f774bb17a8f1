"""Wake-up of those that wait for jobs: PostgreSQL's LISTEN and NOTIFY.

Each event of a job notifies `EVENTS` and each job that is queued `QUEUE`, with the job's number, in
the transaction that writes it (rows.py). So PostgreSQL delivers it when it can be read. SQLite has
no such thing, and a connection can be lost: who waits also asks from time to time, more often
without a connection.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from typing import Any, Literal

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from cubemesh.store.database import Database

Channel = Literal["cubemesh_events", "cubemesh_queue"]
EVENTS: Channel = "cubemesh_events"
QUEUE: Channel = "cubemesh_queue"
LISTENING_S = 5.0
"""Interval of asking while notifications come."""
AGAIN_S = 10.0
"""A connection that could not be made, or was lost, is tried again after so long."""
_DRIVER = "psycopg"


def notify(connection: Connection, channel: Channel, job_id: int) -> None:
    """Wake all who wait, when the transaction is committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_notify(:channel, :job)"),
                           {"channel": channel, "job": str(job_id)})  # fmt: skip


class Wakeup:
    """Notifications of a channel, on a connection of its own. One thread at a time may use it;
    `close` ends it."""

    def __init__(self, database: Database, channel: Channel) -> None:
        self._engine, self._channel = database.engine, channel
        self._driver: Any = None
        self._tried: float | None = None

    @property
    def possible(self) -> bool:
        """Whether the database has notifications, and its driver is one that is used for them."""
        dialect = self._engine.dialect
        return (dialect.name, dialect.driver) == ("postgresql", _DRIVER)

    @property
    def listening(self) -> bool:
        """Whether there is a connection."""
        return self._driver is not None

    def listen(self) -> bool:
        """Connect if there is no connection, every `AGAIN_S`; whether there is one."""
        due = self._tried is None or time.monotonic() - self._tried >= AGAIN_S
        if self._driver is None and self.possible and due:
            self._tried = time.monotonic()
            self._driver = self._connect()
        return self.listening

    def fileno(self) -> int:
        """The file descriptor that can be read when a notification came; while `listening`."""
        return int(self._driver.pgconn.socket)

    def pending(self) -> set[int]:
        """The numbers of the jobs that were notified since the last call, without waiting."""
        if self._driver is None:
            return set()
        found = set()
        try:
            self._driver.pgconn.consume_input()
            while (one := self._driver.pgconn.notifies()) is not None:
                if one.extra.isdigit():  # anyone who may connect can notify
                    found.add(int(one.extra))
        except self._error:
            tried = self._tried
            self.close()
            self._tried = tried  # it is lost: not again at once
        return found

    def wait(self, job_id: int, seconds: float, listening_s: float = LISTENING_S) -> None:
        """Wait until a job is notified, at most `seconds`, or `listening_s` while listening."""
        if not self.listen():
            time.sleep(seconds)
            return
        deadline = time.monotonic() + listening_s
        while self.listening and (left_s := deadline - time.monotonic()) > 0:
            with selectors.DefaultSelector() as selector:
                selector.register(self, selectors.EVENT_READ)
                selector.select(left_s)
            if job_id in self.pending():
                return

    def close(self) -> None:
        """Close the connection."""
        driver, self._driver, self._tried = self._driver, None, None
        if driver is not None:
            with contextlib.suppress(self._error):
                driver.close()

    @property
    def _error(self) -> type[Exception]:
        found: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        return found

    def _connect(self) -> Any:
        try:
            pooled = self._engine.raw_connection()
            driver: Any = pooled.driver_connection
            pooled.detach()  # it is used for nothing else
            driver.rollback()
            driver.autocommit = True
            driver.execute(f"LISTEN {self._channel}")
        except (self._error, SQLAlchemyError):
            return None
        return driver
