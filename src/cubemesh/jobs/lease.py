"""Lease of a claimed job: what its holder writes, refused once another holds the job.

Each write compares the fence of the claim in its own transaction, so a holder that was suspended
past its lease changes nothing when it continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, insert, select, update

from cubemesh.jobs.queue import LEASE_S, JobQueue, after_fault, edited_columns, state_asked
from cubemesh.jobs.rows import append_event, change_state, job_row
from cubemesh.jobs.states import HELD, State, stored_state
from cubemesh.store.migrations.job_tables import job_runs, jobs

T = TypeVar("T")


class LeaseLost(Exception):
    """Another process holds the job now, or it has ended: this one must write no more."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to run a job, from a claim."""

    queue: JobQueue
    job_id: int
    fence: int
    seconds: float = LEASE_S

    def renew(
        self,
        progress: Mapping[str, Any] | None = None,
        events: Sequence[tuple[str, Any]] = (),
    ) -> str | None:
        """Renew the lease, with the progress and with events (kind, value) that happened; what the
        holder is to do (`QueuedJob.control`)."""

        def write(connection: Connection, row: Row[Any], now: float) -> str | None:
            values: dict[str, Any] = {"lease_until_s": now + self.seconds}
            if progress is not None:
                values["progress"] = json.dumps(progress, allow_nan=False)
            connection.execute(update(jobs).where(jobs.c.job_id == self.job_id).values(values))
            for kind, value in events:
                append_event(connection, self.job_id, now, kind, value)
            return str(row.control) if row.control else None

        return self._write(write)

    def control(self) -> str | None:
        """What the holder is to do; renews nothing. LeaseLost if the job is another's."""
        asked = select(jobs.c.control, jobs.c.fence, jobs.c.state)
        with self.queue.database.read() as connection:
            row = connection.execute(asked.where(jobs.c.job_id == self.job_id)).one_or_none()
        if row is None or row.fence != self.fence or stored_state(row.state) not in HELD:
            raise LeaseLost
        return row.control and str(row.control)

    def run_started(self) -> None:
        """The job is running."""

        def write(connection: Connection, row: Row[Any], now: float) -> None:
            if row.state == State.STARTING:
                change_state(connection, row, State.RUNNING, now, control=row.control)

        self._write(write)

    def add_run(self, run_id: str) -> None:
        """A run of the job is stored."""

        def write(connection: Connection, row: Row[Any], now: float) -> None:
            own = select(job_runs.c.run_id).where(job_runs.c.job_id == self.job_id)
            known = connection.execute(own).scalars().all()
            if run_id not in known:
                values = {"job_id": self.job_id, "run_id": run_id, "place": len(known) + 1}
                connection.execute(insert(job_runs).values(values))

        self._write(write)

    def end(self, state: State, why: str = "", progress: Mapping[str, Any] | None = None) -> None:
        """The job is done, failed or stopped."""

        def write(connection: Connection, row: Row[Any], now: float) -> None:
            columns = {} if progress is None else {"progress": json.dumps(progress)}
            change_state(connection, row, state, now, why=why, **columns)

        self._write(write)

    def paused(self) -> State:
        """It ended at a checkpoint, or between runs, as its control asked; the new state. Without
        control its agent ends, and it is queued again."""

        return self.release("")

    def release(self, why: str, *, delay_s: float = 0.0) -> State:
        """Queue the job again, through no fault of its own, for after `delay_s` seconds; or pause
        or stop it, if that was asked. The new state."""

        def write(connection: Connection, row: Row[Any], now: float) -> State:
            state = state_asked(row)
            columns = {"not_before_s": now + delay_s, **edited_columns(connection, row, now)}
            change_state(connection, row, state, now, why=why, **columns)
            return state

        return self._write(write)

    def fault(self, why: str, *, delay_s: float = 0.0, at_last: State = State.LOST) -> State:
        """Its process was lost, or the store failed: queue it again for after `delay_s` seconds if
        restarts are left, else it is `at_last`; the new state."""

        def write(connection: Connection, row: Row[Any], now: float) -> State:
            return after_fault(connection, row, now, why, delay_s=delay_s, at_last=at_last)

        return self._write(write)

    def _write(self, work: Callable[[Connection, Row[Any], float], T]) -> T:
        def fenced(connection: Connection) -> T:
            now = self.queue.clock(connection)
            row = job_row(connection, self.job_id)
            if row.fence != self.fence or stored_state(row.state) not in HELD:
                raise LeaseLost
            return work(connection, row, now)

        return self.queue.database.commit(fenced)
