"""Form of one experiment, which queues it as a job, now or every night."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.core.settings import settable, split
from cubemesh.experiments.registry import EXPERIMENTS, Experiment
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.schedules import Schedule, Schedules
from cubemesh.untrusted import clean
from cubemesh.views.job_pages import job_json, schedule_json
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Acted, Asked, NotFoundError, Parameter, RefusedFormError
from cubemesh.web.question_form import (
    NOT_FROM_PAGES,
    OPTIONS,
    form_of,
    hosts_of,
    submit_form,
    values_of,
    values_of_schedule,
)
from cubemesh.web.queued import job_address, queue_of, schedule_address

PARAMETERS = (
    Parameter(name="job", summary="Fill the form in with the settings of this job, by its number."),
    Parameter(
        name="schedule", summary="Fill the form in to make the same schedule, by its number."
    ),
    Parameter(name="set", summary="Fill a field in: `epochs=20`.", repeats=True),
)
_MOST_NUMBER = 10**9 - 1


def _experiment(asked: Asked) -> Experiment:
    name = asked.path["experiment"]
    if name not in EXPERIMENTS:
        raise NotFoundError(f"There is no experiment '{clean(name, 40)}'. The page Ask lists them.")
    return EXPERIMENTS[name]


def _values(asked: Asked, experiment: Experiment) -> dict[str, str]:
    """What the form begins with: the settings of a job or a schedule, and those that are given."""
    given = split(asked.all("set"), "set")
    known = {*settable(experiment), *OPTIONS} - NOT_FROM_PAGES
    for name in given:
        if name not in known:
            raise unknown_name("field", clean(name, 40), known, plural="fields")
    return _values_of_job(asked, experiment) | _values_of_schedule(asked, experiment) | given


def _values_of_job(asked: Asked, experiment: Experiment) -> dict[str, str]:
    if not asked.one("job"):
        return {}
    job_id = asked.number("job", 1, _MOST_NUMBER)
    try:
        job = queue_of(asked).get(job_id)
        question = job.question
    except UsageError:
        raise NotFoundError(f"There is no job {job_id}. The page Jobs lists them.") from None
    if not question.names:
        raise UsageError(f"The stored row of job {job_id} is damaged ({clean(job.damage, 300)}).")
    if question.names != (experiment.name,):
        raise UsageError(f"Job {job_id} is not a job of {experiment.name}.")
    return values_of(question)


def _values_of_schedule(asked: Asked, experiment: Experiment) -> dict[str, str]:
    if not asked.one("schedule"):
        return {}
    number = asked.number("schedule", 1, _MOST_NUMBER)
    try:
        schedule = Schedules(queue_of(asked)).get(number)
    except UsageError:
        raise NotFoundError(
            f"There is no schedule {number}. The page Schedules lists them."
        ) from None
    if schedule.question.names != (experiment.name,):
        raise UsageError(f"Schedule {number} is not a schedule of {experiment.name}.")
    return values_of_schedule(schedule)


def document(asked: Asked) -> dict[str, Any]:
    """The fields of the form with their types and defaults."""
    experiment = _experiment(asked)
    form = form_of(experiment.name, _values(asked, experiment), {}, hosts_of(queue_of(asked)))
    return envelope(
        "experiment_form",
        name=experiment.name,
        question=experiment.question,
        settings=[asdict(field) for field in form["own"]],
        fields=[asdict(field) for field in (*form["common"], *form["others"])],
        hosts=form["hosts"],
    )


def act(asked: Asked, form: Mapping[str, tuple[str, ...]]) -> Acted:
    """Queue the experiment with the settings in the fields; several values between commas are a
    sweep. `scale` is quick, default or full; `on_devices` auto, cpu or a number of GPUs; `on_host`
    a host with an agent; `job_priority` a number. With `when` nightly it is queued every night,
    from `nightly_at` (UTC, 02:00), within `nightly_within` (4h), when the host is idle or, with
    `nightly_load` any, has free devices."""
    experiment = _experiment(asked)
    fields, queue = dict(form), queue_of(asked)
    try:
        made = submit_form(queue, asked.store, experiment.name, fields, who=asked.person.name)
    except RefusedFormError as error:
        values = {name: given[-1] for name, given in fields.items()}
        error.view = _view(queue, experiment, values, error.fields, str(error))
        raise
    if isinstance(made, Schedule):
        return Acted(
            address=schedule_address(made.schedule_id),
            document=envelope("schedule", schedule=schedule_json(made)),
        )
    return Acted(address=job_address(made.job_id), document=envelope("job", job=job_json(made)))


def view(asked: Asked) -> dict[str, Any]:
    """The form, empty or with the settings of a job or a schedule."""
    experiment = _experiment(asked)
    return _view(queue_of(asked), experiment, _values(asked, experiment), {}, "")


def _view(
    queue: JobQueue,
    experiment: Experiment,
    values: Mapping[str, str],
    problems: Mapping[str, str],
    problem: str,
) -> dict[str, Any]:
    shown = {name: clean(text, 1000) for name, text in problems.items()}
    return {
        "title": experiment.name,
        "experiment": experiment,
        "problem": clean(problem, 2000),
        **form_of(experiment.name, values, shown, hosts_of(queue)),
    }
