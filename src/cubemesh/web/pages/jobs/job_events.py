"""Events of a job after a cursor: as a table, as JSON, or live, as server-sent events."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.jobs.feed import events_after
from cubemesh.untrusted import clean
from cubemesh.views.job_pages import event_line
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.queued import job_of, queue_of

PARAMETERS = (
    Parameter(name="after", summary="Cursor: the number of the last event that is known."),
    Parameter(name="limit", summary="Most events, 1 to 1000; default: 200."),
)
_LIMIT, _MOST = 200, 1000
_MOST_DIGITS = 15


def watched(asked: Asked) -> tuple[int, int]:
    """The job of a stream, and the cursor that it begins after."""
    text = asked.one("after", "0")
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise UsageError(f"after={clean(text, 40)} is not valid: give the number of an event.")
    return job_of(asked).job_id, int(text)


def document(asked: Asked) -> dict[str, Any]:
    """Events after the cursor; `next` is the one for the next call. With `Accept:
    text/event-stream` they come as they happen, until the job has ended."""
    job_id, cursor = watched(asked)
    limit = asked.number("limit", _LIMIT, _MOST)
    events, cursor = events_after(queue_of(asked), job_id, cursor, limit)
    return envelope("job_events", events=[asdict(event) for event in events], next=cursor)


def view(asked: Asked) -> dict[str, Any]:
    """The same as a table."""
    job_id, cursor = watched(asked)
    limit = asked.number("limit", _LIMIT, _MOST)
    events, after = events_after(queue_of(asked), job_id, cursor, limit)
    rows = []
    for event in events:
        text = event_line(event)
        if event.kind == "points":
            value = event.value
            text = f"run {value['run']}: {len(value['points'])} of {value['series']}"
        if event.kind == "eta":
            text = f"{event.value['eta_s']} s"
        time = event.said_utc[:19].replace("T", " ")
        rows.append((event.sequence, time, event.kind, clean(text, 2000)))
    return {"job_id": job_id, "rows": rows, "next": after if len(events) == limit else None}
