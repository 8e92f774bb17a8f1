"""Job: what it runs, how far it is, and what can be done with it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from cubemesh.errors import CubemeshError, StoreError, UsageError
from cubemesh.experiments.core.settings import split
from cubemesh.jobs import slurm
from cubemesh.jobs.feed import DAMAGED, newest_events
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import ENDED, State
from cubemesh.jobs.submission import (
    EDITABLE,
    MOST_PRIORITY,
    cloned,
    edit_question,
    submit_question,
)
from cubemesh.jobs.values import QueuedJob
from cubemesh.networks import NETWORKS
from cubemesh.schema import RunSpec
from cubemesh.schema.serialization import from_plain
from cubemesh.schema.work import Train, TrainSteps
from cubemesh.store import Store
from cubemesh.team.roles import Person, Role
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views.job_pages import event_line, job_json
from cubemesh.views.json_output import envelope
from cubemesh.web.equivalence_form import equivalence_fields
from cubemesh.web.forms import check_fields, one
from cubemesh.web.listing import outcome_words
from cubemesh.web.page import Acted, Asked, ForbiddenError, Parameter
from cubemesh.web.question_form import experiment_with_form
from cubemesh.web.queued import (
    dot_of,
    expected_of,
    expected_text,
    figures_of,
    fraction,
    job_address,
    job_of,
    left_text,
    may_change,
    progress_text,
    queue_of,
    rows_of,
    slow_of,
    slow_text,
)
from cubemesh.web.why_slow import Step, step_of, why_slow, why_view

PARAMETERS: tuple[Parameter, ...] = ()
_FIELDS = ("action", "priority", *sorted(EDITABLE))
_LOG_KINDS = ("state", "edited", "message", "run", "warning", "finished", "log", "rewind")
_LOG = 100
"""Newest events of the page."""
_MOST_JOBS = 200
_MOST_RUNS = 100


def document(asked: Asked) -> dict[str, Any]:
    """The job, as `cubemesh jobs show JOB --json` prints it, with the actions that it can take,
    whether its run is `slow`er than expected (null where not), and what takes the time of a step of
    its newest run; `damaged` names those of its newest events that cannot be read."""
    job, queue = job_of(asked), queue_of(asked)
    step = _step(queue, asked.store, job)
    actions = [name for name, _ in _allowed(asked.person, job)]
    newest = newest_events(queue, job.job_id, _LOG_KINDS, _LOG)
    actions += ["edit"] if _editable(job) and may_change(asked.person, job.submitter) else []
    return envelope(
        "job",
        job=job_json(job),
        actions=actions,
        slow=slow_of(job),
        damaged=[event_line(event) for event in newest if event.kind == DAMAGED],
        why_slow=None if step is None else why_slow(asked.store, step),
    )


def act(asked: Asked, form: Mapping[str, tuple[str, ...]]) -> Acted:
    """Change a job: `action` is pause, resume, stop, stop-at-checkpoint, clone; priority, with the
    new one in `priority`; or edit, with the settings that may change at a checkpoint in fields of
    their names."""
    fields = dict(form)
    check_fields(fields, _FIELDS)
    action = one(fields, "action")
    if action not in ACTIONS:
        raise UsageError(f"action={clean(action, 40)}: give one of {', '.join(ACTIONS)}.")
    before, queue, who = job_of(asked), queue_of(asked), asked.person.name
    if action != "clone" and not may_change(asked.person, before.submitter):
        raise ForbiddenError(
            f"Job {before.job_id} is {clean(before.submitter, 80)}'s: a member may change own jobs "
            "and clone any. An administrator may change all."
        )
    given = {name: one(fields, name) for name in sorted(EDITABLE) if name in fields}
    if action != "edit" and given:
        raise UsageError(f"{', '.join(given)}: only the action edit has settings.")
    if action == "clone":
        job_id = _clone(queue, asked.store, before, who)
    else:
        job_id = before.job_id
        if action == "priority":
            queue.set_priority(job_id, _priority(one(fields, "priority")), who=who)
        elif action == "edit":
            edit_question(queue, asked.store, job_id, _changes(before, given), who=who)
        else:
            _CHANGES[action](queue, job_id, who)
    return Acted(
        address=job_address(job_id), document=envelope("job", job=job_json(queue.get(job_id)))
    )


def _clone(queue: JobQueue, store: Store, job: QueuedJob, who: str) -> int:
    wants = job.wants
    made = submit_question(
        queue,
        store,
        cloned(job, ()),
        devices=str(wants.devices) if wants.device == "gpu" else "auto",
        host=wants.host,
        priority=job.priority,
        restarts=job.restarts,
        slurm=slurm.resources_of(queue, job),
        who=who,
    )
    return made.job_id


def _priority(text: str) -> int:
    try:
        found = int(text) if len(text) < 10 else MOST_PRIORITY + 1
    except ValueError:
        found = MOST_PRIORITY + 1
    if abs(found) > MOST_PRIORITY:
        raise UsageError(
            f"priority={clean(text, 40)}: give a whole number, at most {MOST_PRIORITY:,}."
        )
    return found


_CHANGES: dict[str, Callable[[JobQueue, int, str], None]] = {
    "pause": lambda queue, job_id, who: slurm.pause(queue, job_id, who=who),
    "resume": lambda queue, job_id, who: slurm.resume(queue, job_id, who=who),
    "stop": lambda queue, job_id, who: slurm.stop(queue, job_id, who=who),
    "stop-at-checkpoint": lambda queue, job_id, who: slurm.stop(
        queue, job_id, at_checkpoint=True, who=who
    ),
}
ACTIONS = (*_CHANGES, "clone", "priority", "edit")
"""What a form can ask of a job."""


def _changes(job: QueuedJob, given: Mapping[str, str]) -> list[str]:
    """The settings that a form changes, as lines."""
    before = split(job.question.settings)
    found = [f"{name}={text}" for name, text in given.items() if before.get(name) != text]
    if not found:
        raise UsageError(
            f"Nothing changes: give another value of one of {', '.join(sorted(EDITABLE))}."
        )
    return found


def _editable(job: QueuedJob) -> bool:
    """Whether settings of a job may change: of a training that is not done, at a checkpoint."""
    over = job.state in (State.DONE, State.PAUSING)
    return job.question.names == ("train",) and not (job.children or over)


def actions_of(job: QueuedJob) -> list[tuple[str, str]]:
    """What can be done with a job now: (action, the words of its button)."""
    state, found = job.state, []
    if state not in (*ENDED, State.PAUSED, State.PAUSING):
        found.append(("pause", "Pause"))
    if state is State.PAUSED or state in ENDED[1:]:
        found.append(("resume", "Resume"))
    if state.held:
        found.append(("stop-at-checkpoint", "Stop at a checkpoint"))
        found.append(("stop", "Stop now"))
    elif state not in ENDED:
        found.append(("stop", "Cancel"))
    if job.question.names:  # else it is damaged
        found.append(("clone", "Run again"))
    return found


def _allowed(person: Person, job: QueuedJob) -> list[tuple[str, str]]:
    """The actions that a person may take."""
    if may_change(person, job.submitter):
        return actions_of(job)
    return [one for one in actions_of(job) if one[0] == "clone" and person.role >= Role.MEMBER]


def view(asked: Asked) -> dict[str, Any]:
    """The page of a job, or of a sweep with its jobs."""
    job, queue = job_of(asked), queue_of(asked)
    events = newest_events(queue, job.job_id, _LOG_KINDS, _LOG)
    children = queue.list(parent_id=job.job_id, limit=_MOST_JOBS) if job.children else []
    now, step = job.progress, _step(queue, asked.store, job)
    changes, member = may_change(asked.person, job.submitter), asked.person.role >= Role.MEMBER
    return {
        "title": f"Job {job.job_id}",
        "job": job,
        "name": clean(" ".join(job.question.names) or job.name, 200),
        "state": str(job.state),
        "dot": dot_of(job.state),
        "why": clean(job.why, 1000),
        "agent": _agent(queue, job),
        "actions": _allowed(asked.person, job),
        "ask": experiment_with_form(job.question) if member else "",
        "can_reorder": job.state not in ENDED and changes,
        "edit": _edit_fields(job) if _editable(job) and changes else [],
        "equivalence": None
        if step is None or not member
        else equivalence_fields(step.spec, asked.store.machine(step.machine_id)),
        "forecast": {} if step is None or step.record is not None else _forecast(step.spec),
        "slow": slow_text(slow_of(job)),
        "left": left_text(job),
        "left_interval": (
            f"{format_seconds(now['eta_low_s'])} to {format_seconds(now['eta_high_s'])}"
            if left_text(job) and None not in (now.get("eta_low_s"), now.get("eta_high_s"))
            else ""
        ),
        "fraction": fraction(job),
        "progress": progress_text(job),
        "figures": figures_of(job),
        "expected": expected_text(
            expected_of(queue, job.job_id) if job.state.held else None, now.get("samples_per_s")
        ),
        "why_slow": None if step is None else why_view(asked.store, step),
        "children": rows_of(children[::-1]),
        "runs": _runs(queue, job),
        "moving": not job.state.ended and job.state is not State.PAUSED,
        "settings": [line.partition("=")[::2] for line in job.question.settings],
        "command": command_of(job),
        "log": [
            (event.said_utc[11:19], event.kind, text)
            for event in events
            if (text := clean(event_line(event), 2000))
        ],
        "more_events": len(events) == _LOG,
        "has_curves": bool(newest_events(queue, job.job_id, ("points",), 1)) or not job.state.ended,
        "ended": job.state.ended,
        "cursor": events[0].sequence if events else 0,
    }


def _step(queue: JobQueue, store: Store, job: QueuedJob) -> Step | None:
    """The step of the run of a job that an agent holds, or of the newest one that is stored."""
    if job.state.held:
        for event in newest_events(queue, job.job_id, ("run",), 1):
            try:
                spec = from_plain(RunSpec, event.value["spec"])
                return Step(spec=spec, machine_id=str(event.value["machine_id"]))
            except (KeyError, TypeError, ValueError, CubemeshError):  # of another version
                return None
    if not job.state.ended or not job.run_ids:
        return None
    try:
        return step_of(store.record(job.run_ids[-1]))
    except (UsageError, StoreError):  # not stored, or damaged: the page of the run says how
        return None


_EDITS = {
    "epochs": "epochs",
    "learning_rate": "learning rate",
    "schedule": "schedule",
    "warmup_epochs": "warm-up epochs",
    "target_accuracy": "target accuracy",
    "checkpoint_every": "checkpoint every",
}


def _edit_fields(job: QueuedJob) -> list[tuple[str, str, str]]:
    """The settings that may change at a checkpoint: name, words, value now."""
    now = split(job.question.settings)
    return [(name, text, clean(now.get(name, ""), 200)) for name, text in _EDITS.items()]


def _forecast(spec: RunSpec) -> dict[str, str]:
    """The parameters of the page What if for the step of a spec; empty where it has no forecast."""
    work = spec.work
    if not isinstance(work, Train | TrainSteps) or work.network not in NETWORKS:
        return {}
    return {
        "network": work.network,
        "batch_per_device": str(work.batch_per_device),
        "precision": spec.program.precision,
    }


def _runs(queue: JobQueue, job: QueuedJob) -> list[dict[str, str]]:
    """The newest stored runs of a job, by its events."""
    events = newest_events(queue, job.job_id, ("run", "finished"), 2 * _MOST_RUNS)
    named = {e.value["run"]: e.value for e in reversed(events) if e.kind == "run"}
    found = []
    for event in events:
        if event.kind == "finished":
            value, of = event.value, named.get(event.value["run"], {})
            batch = of.get("batch_per_device")
            parts = [str(of.get("network") or of.get("work") or "run")]
            parts += [f"batch size {batch:,}"] if batch else []
            found.append(
                {
                    "run_id": value["run_id"],
                    "name": clean(" · ".join(parts), 200),
                    "framework": clean(str(of.get("framework", "")), 40),
                    "outcome": value["outcome"],
                    "words": outcome_words(value["outcome"]),
                    "reused": "stored before" if value["reused"] else "",
                }
            )
    return found[:_MOST_RUNS]


def _agent(queue: JobQueue, job: QueuedJob) -> str:
    """The host of the agent that holds a job."""
    found = next((one for one in queue.agents() if one.agent_id == job.agent_id), None)
    return clean(found.hostname, 80) if found and job.agent_id else ""


def command_of(job: QueuedJob) -> str:
    """The command that queues the same question; empty where it cannot be read."""
    question = job.question
    if not question.names:  # it is damaged
        return ""
    words = ["cubemesh", "submit", *question.names]
    words += [f"--{question.scale}"] if question.scale in ("quick", "full") else []
    for line in question.settings:
        words += ["--set", line]
    for line in question.against:
        words += ["--against", line]
    return clean(shlex.join(words), 4000)
