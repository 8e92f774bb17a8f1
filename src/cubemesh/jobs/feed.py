"""Feed of a job: its events after a cursor, and its curves so far.

A cursor is the number of the last event that was read, 0 at first; events are numbered without
gaps, so a reader that comes back with its cursor misses nothing and gets nothing twice. `value` by
kind:

| kind | value |
|---|---|
| `state` | before, state, why, who |
| `edited` | control, priority or settings, and who |
| `message` | text, before the runs |
| `run` | a run begins: run (from 1), work, network, framework, batch_per_device, expected, spec … |
| `points` | run, series (`training_loss`, `samples_per_s`, `gpu_power_watts`, …), points |
| `rewind` | run, step: it resumed there; later points of its `training_loss`, all others: void |
| `warning` | code, cause, remedy |
| `eta` | eta_s, eta_low_s, eta_high_s, eta_exact |
| `finished` | a run is stored: run, run_id, outcome, message, reused |
| `log` | text |

`expected` of a run is what throughput it should reach (expect.py): samples_per_s, low and high
(null where unknown), source, run_ids; null where nothing is known. `spec` has the settings of the
run that differ from their defaults, and `machine_id` is where it runs.

`curves` applies points and rewinds: at the end of a run they are the curves of its record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select

from cubemesh.jobs.points import Curves, folded
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import ENDED, State
from cubemesh.jobs.values import JobEvent
from cubemesh.store.database import utc
from cubemesh.store.migrations.job_tables import job_events, jobs

MOST_EVENTS = 1000
"""Most events of one call."""
KEPT_S = 86_400.0
"""Points of a job are deleted so long after its end: its records have them."""


def events_after(
    queue: JobQueue, job_id: int, cursor: int = 0, limit: int = MOST_EVENTS
) -> tuple[list[JobEvent], int]:
    """The events after `cursor`, at most `limit`, and the cursor for the next call. UsageError for
    an unknown job."""
    own = select(job_events).where(job_events.c.job_id == job_id, job_events.c.sequence > cursor)
    with queue.database.read() as connection:
        rows = connection.execute(own.order_by(job_events.c.sequence).limit(limit)).all()
    if not rows:
        queue.get(job_id)
        return [], cursor
    events = [_event_of(row) for row in rows]
    return events, events[-1].sequence


def _event_of(row: Row[Any]) -> JobEvent:
    return JobEvent(
        job_id=row.job_id,
        sequence=row.sequence,
        said_utc=row.said_utc,
        kind=row.kind,
        value=json.loads(row.value),
    )


def curves(queue: JobQueue, job_id: int) -> Curves:
    """The points of a job so far: run → series → points, as `points` and `rewind` make them."""
    return curves_until(queue, job_id)[0]


def curves_until(queue: JobQueue, job_id: int) -> tuple[Curves, int]:
    """The points of a job so far, and the cursor after the last of them."""
    kinds = job_events.c.kind.in_(["points", "rewind"])
    own = select(job_events).where(job_events.c.job_id == job_id, kinds)
    with queue.database.read() as connection:
        rows = connection.execute(own.order_by(job_events.c.sequence)).all()
    found = folded((row.kind, json.loads(row.value)) for row in rows)
    return found, rows[-1].sequence if rows else 0


def newest_events(queue: JobQueue, job_id: int, kinds: Iterable[str], limit: int) -> list[JobEvent]:
    """The newest events of these kinds, newest first."""
    own = select(job_events).where(
        job_events.c.job_id == job_id, job_events.c.kind.in_(list(kinds))
    )
    with queue.database.read() as connection:
        rows = connection.execute(own.order_by(job_events.c.sequence.desc()).limit(limit)).all()
    return [_event_of(row) for row in rows]


def follow(
    queue: JobQueue, job_id: int, cursor: int = 0, *, wait: Callable[[], None]
) -> Iterator[JobEvent]:
    """The events after `cursor`, as they come, until the job has ended; `wait` is called where
    there are no new ones."""
    while True:
        ended = queue.get(job_id).state in (*ENDED, State.PAUSED)  # before reading the last events
        events, cursor = events_after(queue, job_id, cursor)
        yield from events
        if not events:
            if ended:
                return
            wait()


def prune(queue: JobQueue, kept_s: float = KEPT_S) -> int:
    """Delete the points of jobs that were done `kept_s` ago; the number of events."""

    def remove(connection: Connection) -> int:
        before = utc(queue.clock(connection) - kept_s)
        over = select(jobs.c.job_id).where(
            jobs.c.state == State.DONE.value, jobs.c.ended_utc < before
        )
        old = job_events.c.job_id.in_(over) & (job_events.c.kind == "points")
        count = int(
            connection.execute(select(func.count()).select_from(job_events).where(old)).scalar_one()
        )
        if count:
            connection.execute(delete(job_events).where(old))
        return count

    return queue.database.commit(remove)
