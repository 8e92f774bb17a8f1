"""Jobs: the queue, newest first, and the agents that run it."""

from __future__ import annotations

from typing import Any

from cubemesh.errors import unknown_name
from cubemesh.jobs import slurm
from cubemesh.jobs.states import State
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views.job_pages import job_json
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.queued import queue_of, rows_of

PARAMETERS = (
    Parameter(name="state", summary="Only jobs in this state; may be repeated.", repeats=True),
    Parameter(name="sweep", summary="Only jobs of this sweep, by its number."),
    Parameter(name="before", summary="Cursor of the page before: its `next`."),
    Parameter(name="limit", summary="Jobs a page, 1 to 1000; default: 50."),
)
_LIMIT, _MOST = 50, 1000
_MOST_NUMBER = 10**9 - 1


def _page(asked: Asked) -> dict[str, Any]:
    limit = asked.number("limit", _LIMIT, _MOST)
    states = [_state(text) for text in asked.all("state")]
    parent = asked.number("sweep", 1, _MOST_NUMBER) if asked.one("sweep") else None
    before = asked.number("before", 1, _MOST_NUMBER) if asked.one("before") else None
    queue = queue_of(asked)
    jobs = queue.list(states=states, parent_id=parent, limit=limit + 1, before=before)
    return {
        "jobs": jobs[:limit],
        "next": jobs[limit - 1].job_id if len(jobs) > limit else None,
        "counts": queue.counts(),
        "agents": queue.agents(),
        "sweep": parent,
    }


def _state(text: str) -> State:
    if text not in list(State):
        raise unknown_name("state", clean(text, 40), State, plural="states")
    return State(text)


def document(asked: Asked) -> dict[str, Any]:
    """One page of jobs; `next` is the `before` of the following one. `counts` has the number of
    jobs in each state."""
    page = _page(asked)
    return envelope(
        "jobs",
        jobs=[job_json(job) for job in slurm.explained(page["jobs"])],
        next=page["next"],
        counts={str(state): count for state, count in page["counts"].items()},
        agents=[vars(agent) for agent in page["agents"]],
    )


def view(asked: Asked) -> dict[str, Any]:
    """The list with a filter by state."""
    page = _page(asked)
    counts = page["counts"]
    given = {one.name: asked.all(one.name) for one in PARAMETERS}
    return {
        "rows": rows_of(page["jobs"]),
        "total": sum(counts.values()),
        "states": [
            (str(state), counts[state], str(state) in given["state"])
            for state in State
            if counts.get(state) or str(state) in given["state"]
        ],
        "given": given,
        "sweep": page["sweep"],
        "next": {**given, "before": page["next"]} if page["next"] else None,
        "first": {**given, "before": ()} if given["before"] else None,
        "agents": [
            {
                "name": clean(one.hostname, 80),
                "machine_id": one.machine_id,
                "slots": one.slots,
                "gpus": len(one.devices),
                "seen": format_seconds(one.seen_s, 2),
                "state": one.state,
            }
            for one in page["agents"]
            if one.state != "ended"
        ],
        "moving": any(not state.ended and state is not State.PAUSED for state in counts),
    }
