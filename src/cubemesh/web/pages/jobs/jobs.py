"""Jobs: the queue, newest first, the agents that run it, and the nightly schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cubemesh.errors import UsageError, unknown_name
from cubemesh.jobs import slurm
from cubemesh.jobs.schedules import Schedule, Schedules
from cubemesh.jobs.states import State
from cubemesh.team.roles import Role
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views.job_pages import job_json, night_text, schedule_json, when_text
from cubemesh.views.json_output import envelope
from cubemesh.web.forms import check_fields, one
from cubemesh.web.page import Acted, Asked, Parameter
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
        "schedules": Schedules(queue).list(),
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
        schedules=[schedule_json(schedule) for schedule in page["schedules"]],
    )


def act(asked: Asked, form: Mapping[str, tuple[str, ...]]) -> Acted:
    """End a nightly schedule, which everyone's nights depend on: `action` is unschedule, `schedule`
    its number."""
    fields = dict(form)
    check_fields(fields, ("action", "schedule"))
    action, number = one(fields, "action"), one(fields, "schedule")
    if action != "unschedule":
        raise UsageError(f"action={clean(action, 40)}: give unschedule.")
    if not number.isdecimal() or int(number) > _MOST_NUMBER:
        raise UsageError(f"schedule={clean(number, 40)}: give the number of a schedule.")
    Schedules(queue_of(asked)).delete(int(number), who=asked.person.name)
    return Acted(address="/jobs", document=envelope("schedules", deleted=int(number)))


def view(asked: Asked) -> dict[str, Any]:
    """The list with a filter by state, and the schedules."""
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
        "schedules": [_schedule_row(one) for one in page["schedules"]],
        "may_unschedule": asked.person.role >= Role.ADMIN,
        "moving": any(not state.ended and state is not State.PAUSED for state in counts),
    }


def _schedule_row(schedule: Schedule) -> dict[str, Any]:
    return {
        "schedule_id": schedule.schedule_id,
        "name": clean(schedule.name, 120),
        "damage": clean(schedule.damage, 300),
        "when": when_text(schedule),
        "host": clean(schedule.wants.host or "any host", 80),
        "next_utc": schedule.next_utc,
        "nights": [
            {"job_id": night.job_id, "text": clean(night_text(night), 300)}
            for night in schedule.nights
        ],
    }
