"""Schedules: the questions that are queued every night, and what became of their nights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.jobs.schedules import Schedule, Schedules
from cubemesh.jobs.states import State
from cubemesh.team.roles import Role
from cubemesh.untrusted import clean
from cubemesh.views.job_pages import schedule_json
from cubemesh.views.json_output import envelope
from cubemesh.web.forms import check_fields, one
from cubemesh.web.page import Acted, Asked, ForbiddenError, NotFoundError, Parameter
from cubemesh.web.queued import may_change, queue_of, schedule_address, schedule_rows
from cubemesh.web.stored import results_of

PARAMETERS = (
    Parameter(name="host", summary="Only schedules whose job this host may run, by its name."),
)
ACTIONS = ("pause", "resume", "delete")
"""What a form can ask of a schedule."""
_MOST_DIGITS = 9
_MOST_RUNS = 200
"""The answer of an experiment run of more is left to its own page: it takes seconds."""


def _listed(asked: Asked) -> list[Schedule]:
    return Schedules(queue_of(asked)).list(asked.one("host"))


def document(asked: Asked) -> dict[str, Any]:
    """The nightly schedules, as `cubemesh jobs schedules --json` prints them: the oldest first,
    each with its newest nights, and the `result` of the last one, if it is done."""
    listed = _listed(asked)
    results = _results(asked, listed)
    return envelope(
        "schedules",
        schedules=[
            schedule_json(each) | {"result": results.get(each.schedule_id)} for each in listed
        ],
    )


def _results(asked: Asked, listed: list[Schedule]) -> dict[int, dict[str, str]]:
    """The answers of the last nights that are done, of schedules of one experiment, by the number
    of the schedule."""
    queue, store = queue_of(asked), asked.store
    found = {}
    for each in listed:
        last = each.nights[0] if each.nights else None
        names = each.question.names
        if last is None or last.state is not State.DONE or len(names) != 1:
            continue
        measured = set(queue.get(last.job_id or 0).run_ids)
        own = (one for one in store.experiment_runs(names[0]) if measured & set(one.run_ids))
        first = next(own, None)  # later ones reuse its runs
        if first is None or len(first.run_ids) > _MOST_RUNS:
            continue
        for result in results_of(store, [first]):
            found[each.schedule_id] = {
                "experiment_run_id": first.experiment_run_id,
                "text": result.answer.findings[0].text,
            }
    return found


def act(asked: Asked, form: Mapping[str, tuple[str, ...]]) -> Acted:
    """Change a nightly schedule: `action` is pause, resume or delete, `schedule` its number."""
    fields = dict(form)
    check_fields(fields, ("action", "schedule"))
    action, number = one(fields, "action"), one(fields, "schedule")
    if action not in ACTIONS:
        raise UsageError(f"action={clean(action, 40)}: give one of {', '.join(ACTIONS)}.")
    if not number.isdecimal() or len(number) > _MOST_DIGITS:
        raise UsageError(f"schedule={clean(number, 40)}: give the number of a schedule.")
    schedules, schedule_id, who = Schedules(queue_of(asked)), int(number), asked.person.name
    try:
        before = schedules.get(schedule_id)
    except UsageError:
        raise NotFoundError(
            f"There is no schedule {schedule_id}. The page Schedules lists them."
        ) from None
    if not may_change(asked.person, before.submitter):
        raise ForbiddenError(
            f"Schedule {schedule_id} is {clean(before.submitter, 80)}'s: a member may change own "
            "schedules. An administrator may change all."
        )
    if action == "delete":
        schedules.delete(schedule_id, who=who)
        return Acted(address="/schedules", document=envelope("schedules", deleted=schedule_id))
    change = schedules.pause if action == "pause" else schedules.resume
    return Acted(
        address=schedule_address(schedule_id),
        document=envelope("schedule", schedule=schedule_json(change(schedule_id, who=who))),
    )


def view(asked: Asked) -> dict[str, Any]:
    """The list, with the forms that the person may send."""
    listed = _listed(asked)
    return {
        "schedules": schedule_rows(listed, asked.person, _results(asked, listed)),
        "host": clean(asked.one("host"), 80),
        "member": asked.person.role >= Role.MEMBER,
    }
