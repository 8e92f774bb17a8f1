"""What several pages read from the queue: a job, the rows of a list, and texts about progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.jobs import slurm
from cubemesh.jobs.feed import newest_events
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.schedules import Night, Schedule
from cubemesh.jobs.states import State
from cubemesh.jobs.values import QueuedJob
from cubemesh.schema import Series
from cubemesh.team.roles import Person, Role
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views.facts.run import series_name
from cubemesh.views.formatting import number
from cubemesh.views.job_pages import next_text, night_text, when_text, why_text
from cubemesh.web.page import Asked, NotFoundError
from cubemesh.web.question_form import experiment_with_form

_MOST_DIGITS = 15


def queue_of(asked: Asked) -> JobQueue:
    """The queue of the store."""
    return JobQueue(asked.store.database)


def job_of(asked: Asked) -> QueuedJob:
    """The job that the address names."""
    text = asked.path["job_id"]
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise NotFoundError(f"'{clean(text, 40)}' is not the number of a job.")
    try:
        job = queue_of(asked).get(int(text))
    except UsageError:
        raise NotFoundError(f"There is no job {int(text)}. The page Jobs lists them.") from None
    return slurm.explained([job])[0]


def job_address(job_id: int) -> str:
    """The address of the page of a job."""
    return f"/jobs/{job_id}"


def schedule_address(schedule_id: int) -> str:
    """The address of a schedule in the list of them."""
    return f"/schedules#schedule-{schedule_id}"


def may_change(person: Person, submitter: str) -> bool:
    """Whether a person may change a job or a schedule: an administrator any, a member their own."""
    own = person.role >= Role.MEMBER and submitter == person.name
    return own or person.role >= Role.ADMIN


def dot_of(state: State) -> str:
    """The class of the dot in front of a job."""
    if state is State.DONE or state.held:
        return "ok"
    return "crashed" if state in (State.FAILED, State.LOST) else "waiting"


def rows_of(jobs: Iterable[QueuedJob]) -> list[dict[str, Any]]:
    """Jobs as rows of a list."""
    return [
        {
            "job_id": job.job_id,
            "name": clean(job.name, 120),
            "state": str(job.state),
            "dot": dot_of(job.state),
            "progress": progress_text(job),
            "fraction": fraction(job),
            "left": left_text(job),
            "priority": job.priority,
            "made_utc": job.made_utc,
            "why": clean(why_text(job), 200),
            "parent_id": job.parent_id,
        }
        for job in slurm.explained(jobs)
    ]


def schedule_rows(
    schedules: Iterable[Schedule],
    person: Person,
    results: Mapping[int, Mapping[str, str]] | None = None,
) -> list[dict[str, Any]]:
    """Schedules as a template shows them, with what a person may do with each, and the results of
    their last night by the schedule's number."""
    return [
        {
            "schedule_id": one.schedule_id,
            "name": clean(one.name, 200),
            "damage": clean(one.damage, 300),
            "when": when_text(one),
            "host": clean(one.wants.host or "any host", 80),
            "next": next_text(one),
            "paused": one.paused_utc is not None,
            "submitter": clean(one.submitter, 80),
            "made_utc": one.made_utc,
            "last": _night_row(one.nights[0]) if one.nights else None,
            "before": [_night_row(night) for night in one.nights[1:]],
            "may_change": may_change(person, one.submitter),
            "ask": experiment_with_form(one.question) if person.role >= Role.MEMBER else "",
            "result": (results or {}).get(one.schedule_id),
        }
        for one in schedules
    ]


def _night_row(night: Night) -> dict[str, Any]:
    return {
        "job_id": night.job_id,
        "text": clean(night_text(night), 300),
        "dot": "waiting" if night.state is None else dot_of(night.state),
    }


def fraction(job: QueuedJob) -> float | None:
    """The completed part of a job that an agent holds, from 0 to 1; None where it is not known."""
    now = job.progress
    own = now.get("fraction")
    if not job.state.held or own is None:
        return None
    runs, run = now.get("runs") or 1, now.get("run") or 1
    return float(min(1.0, max(0.0, (run - 1 + own) / max(runs, run))))


def progress_text(job: QueuedJob) -> str:
    """How far a job is: `run 2 of 5 · epoch 3 of 10`."""
    now = job.progress
    if job.children:
        return f"{len(job.children)} jobs"
    parts = []
    if (now.get("runs") or 0) > 1:
        parts.append(f"run {now.get('run', 1)} of {now['runs']}")
    if job.state.held:
        parts += [clean(str(now[key]), 120) for key in ("note",) if now.get(key)]
        if not now.get("note") and now.get("phase"):
            parts.append(clean(str(now["phase"]), 40))
    elif job.run_ids:
        parts = [f"{len(job.run_ids)} run{'' if len(job.run_ids) == 1 else 's'}"]
    return " · ".join(parts)


def left_text(job: QueuedJob) -> str:
    """The estimated time left: `4 min`; empty where it is not known."""
    left = job.progress.get("eta_s")
    if left is None or not job.state.held:
        return ""
    least = "" if job.progress.get("eta_exact", True) else "at least "
    return f"{least}{format_seconds(left)}"


def figures_of(job: QueuedJob) -> list[tuple[str, str]]:
    """The latest figures of a running job, as (name, value)."""
    now = job.progress
    if not job.state.held:
        return []
    found = []
    if now.get("samples_per_s") is not None:
        found.append(("throughput", f"{number(now['samples_per_s'], 4)} samples/s"))
    if now.get("loss") is not None:
        found.append(("loss", number(now["loss"], 4)))
    return found


_MOST_BEGUN = 1000


def expected_of(queue: JobQueue, job_id: int, run: int | None = None) -> dict[str, Any] | None:
    """What throughput a run of a job was expected to reach when it began, by default the latest;
    None where nothing was known."""
    for event in newest_events(queue, job_id, ("run",), 1 if run is None else _MOST_BEGUN):
        if event.kind == "run" and (run is None or event.value["run"] == run):
            found: dict[str, Any] | None = event.value.get("expected")
            return found
    return None


def slow_of(job: QueuedJob) -> dict[str, Any] | None:
    """How much slower than expected the run of a job is now (`Slowdown`); None where it is not."""
    found: dict[str, Any] | None = job.progress.get("slow")
    return found if job.state.held else None


def slow_text(slow: dict[str, Any] | None) -> str:
    """`Slower than expected for 2 min: 6,900 samples/s, 85 % of the expected throughput. Since
    then: input wait 18 % (before 1 %).`; empty where it is not."""
    if slow is None:
        return ""
    text = (
        f"Slower than expected for {format_seconds(slow['for_s'])}: "
        f"{number(slow['samples_per_s'], 4)} samples/s, "
        f"{100 * slow['share']:.0f} % of the expected throughput."
    )
    signs = []
    for sign in slow["signs"]:
        name, unit = series_name(Series(name=sign["series"]))
        before = "" if sign["before"] is None else f" (before {number(sign['before'], 3)} {unit})"
        signs.append(f"{name} {number(sign['now'], 3)} {unit}{before}")
    return f"{text} Since then: {', '.join(signs)}." if signs else text


def expected_text(expected: dict[str, Any] | None, measured: float | None) -> str:
    """`98 % of the expected 1,070 samples/s (1,020 to 1,120), from 3 earlier runs …`; empty where
    nothing is expected."""
    if not expected:
        return ""
    rate, low, high = (expected[name] for name in ("samples_per_s", "low", "high"))
    share = "" if measured is None else f"{100 * measured / rate:.0f} % of the "
    band = "" if low is None else f" ({number(low, 3)} to {number(high, 3)})"
    source = clean(str(expected["source"]), 300)
    return f"{share}expected {number(rate, 4)} samples/s{band}, from {source}"
