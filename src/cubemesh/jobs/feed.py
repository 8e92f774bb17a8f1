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
| `damaged` | an event whose row cannot be read, or has not the fields of its kind: kind, reason |

`expected` of a run is what throughput it should reach (expect.py): samples_per_s, low and high
(null where unknown), source, run_ids; null where nothing is known. `spec` has the settings of the
run that differ from their defaults, and `machine_id` is where it runs.

`curves` applies points and rewinds: at the end of a run they are the curves of its record. A
damaged event hides no other: it keeps its number, so that cursors pass it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select

from cubemesh.jobs.points import Curves, folded
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.rows import is_number
from cubemesh.jobs.states import ENDED, State
from cubemesh.jobs.values import JobEvent
from cubemesh.store.damage import reason_of
from cubemesh.store.database import utc
from cubemesh.store.json_text import UNREADABLE
from cubemesh.store.migrations.job_tables import job_events, jobs
from cubemesh.untrusted import clean, parse_json, quoted

MOST_EVENTS = 1000
"""Most events of one call."""
KEPT_S = 86_400.0
"""Points of a job are deleted so long after its end: its records have them."""
DAMAGED = "damaged"
"""Kind of an event that cannot be read."""
_MOST_KIND = 40
_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int


def _or_null(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _are_points(value: Any) -> bool:
    y_fits = _or_null(is_number)
    return isinstance(value, list) and all(
        isinstance(point, list) and len(point) == 2 and all(map(y_fits, point)) for point in value
    )


def _is_expected(value: Any) -> bool:
    if not isinstance(value, dict) or not {"low", "high"} <= value.keys():
        return False
    rate, low, high = value.get("samples_per_s"), value["low"], value["high"]
    band = (low is None and high is None) or (is_number(low) and is_number(high))
    positive = rate is not None and is_number(rate) and rate > 0
    return bool(positive and band and _is_text(value.get("source")))


_FIELDS: Mapping[str, Mapping[str, _Check]] = {
    "state": {"state": lambda value: value in list(State), "why": _is_text},
    "edited": {"who": _is_text},
    "message": {"text": _is_text},
    "log": {"text": _is_text},
    "run": {
        "run": _is_count,
        "work": _or_null(_is_text),
        "network": _or_null(_is_text),
        "framework": _is_text,
    },
    "points": {"run": _is_count, "series": _is_text, "points": _are_points},
    "rewind": {"run": _is_count, "step": is_number},
    "warning": dict.fromkeys(("code", "cause", "remedy"), _is_text),
    "eta": dict.fromkeys(("eta_s", "eta_low_s", "eta_high_s"), is_number),
    "finished": {
        "run": _is_count,
        "run_id": _is_text,
        "outcome": _is_text,
        "reused": lambda value: isinstance(value, bool),
    },
}
"""Kind → the fields that its readers need. A kind that is not here is a newer cubemesh's."""
_OPTIONAL: Mapping[str, Mapping[str, _Check]] = {
    "run": {"batch_per_device": _or_null(_is_count), "expected": _or_null(_is_expected)},
}


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
    kind = row.kind
    try:
        value = _value_of(kind, row.value)
    except UNREADABLE as error:
        value = {"kind": clean(str(kind), _MOST_KIND), "reason": reason_of(error)}
        kind = DAMAGED
    return JobEvent(
        job_id=row.job_id,
        sequence=row.sequence,
        said_utc=row.said_utc if isinstance(row.said_utc, str) else "",
        kind=kind,
        value=value,
    )


def _value_of(kind: Any, text: Any) -> Any:
    """The value of an event. Raises one of UNREADABLE where it is no JSON, or lacks what readers of
    its kind need."""
    if not isinstance(kind, str):
        raise TypeError("its kind is no text")
    if kind == "points":  # the many: their check is below
        value = json.loads(text)
    else:
        value = parse_json(text)
        json.dumps(value, allow_nan=False)  # refuses what is not finite
    if not isinstance(value, dict):
        raise TypeError(f"{quoted(value)} is not a table")
    fields = _FIELDS.get(kind, {})
    for name, fits in fields.items():
        if name not in value:
            raise ValueError(f"it has no {name}")
        if not fits(value[name]):
            raise ValueError(f"{name} is {quoted(value[name])}")
    for name, fits in _OPTIONAL.get(kind, {}).items():
        if name in value and not fits(value[name]):
            raise ValueError(f"{name} is {quoted(value[name])}")
    return {name: value[name] for name in fields} if kind == "points" else value


@dataclass(frozen=True, kw_only=True)
class CurvesSoFar:
    """The points of a job so far."""

    curves: Curves
    cursor: int
    """After the last event that they are made of."""
    damaged: tuple[JobEvent, ...]
    """Events that could not be read: their points are missing."""


def curves(queue: JobQueue, job_id: int) -> Curves:
    """The points of a job so far: run → series → points, as `points` and `rewind` make them."""
    return curves_until(queue, job_id).curves


def curves_until(queue: JobQueue, job_id: int) -> CurvesSoFar:
    """The points of a job so far, and the cursor after the last of them."""
    kinds = job_events.c.kind.in_(["points", "rewind"])
    own = select(job_events).where(job_events.c.job_id == job_id, kinds)
    with queue.database.read() as connection:
        rows = connection.execute(own.order_by(job_events.c.sequence)).all()
    events = [_event_of(row) for row in rows]
    return CurvesSoFar(
        curves=folded((event.kind, event.value) for event in events),
        cursor=rows[-1].sequence if rows else 0,
        damaged=tuple(event for event in events if event.kind == DAMAGED),
    )


def newest_events(queue: JobQueue, job_id: int, kinds: Iterable[str], limit: int) -> list[JobEvent]:
    """The newest events of these kinds, newest first; damaged ones among them."""
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
