"""Jobs in the terminal: the list, one job, agents, and a job that is watched."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cubemesh.exports.record_json import finite
from cubemesh.jobs.feed import DAMAGED
from cubemesh.jobs.points import SENSORS
from cubemesh.jobs.schedules import Night, Schedule
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Agent, JobEvent, QueuedJob
from cubemesh.units import format_number, format_seconds
from cubemesh.untrusted import clean
from cubemesh.views.formatting import moment

_EXIT = {State.DONE: 0, State.PAUSED: 75, State.QUEUED: 75}


def exit_code(job: QueuedJob) -> int:
    """0 of a job that is done, 75 of one that is paused or waits, 1 of one that failed."""
    return _EXIT.get(job.state, 1)


def job_json(job: QueuedJob) -> dict[str, Any]:
    """The document of a job."""
    return {**{name: finite(value) for name, value in asdict(job).items()}, "state": str(job.state)}


def print_jobs(console: Console, jobs: Sequence[QueuedJob]) -> None:
    """The list of jobs."""
    if not jobs:
        console.print("No jobs. Queue one with: cubemesh submit minibatch --quick")
        return
    table = Table("job", "state", "priority", "progress", "what", "why", box=None, pad_edge=False)
    for job in jobs:
        table.add_row(
            str(job.job_id),
            str(job.state),
            str(job.priority),
            _progress(job),
            Text(clean(job.name, 80)),
            Text(clean(why_text(job), 120)),
        )
    console.print(table)


def why_text(job: QueuedJob) -> str:
    """Why a job is in its state or waits, and what of its row is damaged."""
    return " ".join(filter(None, (job.why, job.damage and f"Damaged: {job.damage}.")))


def print_job(console: Console, job: QueuedJob) -> None:
    """Everything about a job."""
    lines = {
        "job": f"{job.job_id}" + (f", of sweep {job.parent_id}" if job.parent_id else ""),
        "what": job.question.text or job.name,
        "state": f"{job.state}" + (f": {job.why}" if job.why else ""),
        "progress": _progress(job),
        "priority": str(job.priority),
        "needs": _needs(job),
        "damaged": job.damage,
        "slurm": "" if job.slurm is None else f"job {job.slurm.number} ({job.slurm.name})",
        "attempts": f"{job.attempt} ({job.faults} after a fault, {job.restarts} allowed)",
        "submitted": f"{job.made_utc} by {job.submitter}",
        "started": job.started_utc or "",
        "ended": job.ended_utc or "",
        "jobs": ", ".join(map(str, job.children)),
        "runs": ", ".join(job.run_ids),
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in lines.items():
        if text:
            table.add_row(name, Text(clean(text, 1000)))
    console.print(table)


def print_submitted(console: Console, job: QueuedJob, *, in_slurm: bool = False) -> None:
    """What was queued, and how to run and watch it."""
    if job.children:
        first, last = job.children[0], job.children[-1]
        console.print(f"queued sweep {job.job_id}: {len(job.children)} jobs, {first} to {last}")
    else:
        console.print(f"queued job {job.job_id}")
    if in_slurm:
        number = "" if job.slurm is None else f" as job {job.slurm.number} ({job.slurm.name})"
        console.print(
            f"Submitted to Slurm{number}. `cubemesh jobs` shows why a job waits there; watch one "
            f"with `cubemesh watch {(job.children or (job.job_id,))[0]}`."
        )
        return
    console.print(f"Run it with `cubemesh agent`, watch it with `cubemesh watch {job.job_id}`.")


def print_agents(console: Console, agents: Sequence[Agent]) -> None:
    """The agents and when they were seen."""
    if not agents:
        console.print("No agents. Start one with: cubemesh agent")
        return
    table = Table("agent", "host", "state", "GPUs", "slots", "seen", box=None, pad_edge=False)
    for one in agents:
        table.add_row(
            one.agent_id,
            Text(clean(one.hostname, 80)),
            one.state,
            str(len(one.devices)),
            str(one.slots),
            f"{format_seconds(one.seen_s)} ago",
        )
    console.print(table)


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    """The document of a nightly schedule."""
    plain = {name: finite(value) for name, value in asdict(schedule).items()}
    nights = [
        {**asdict(one), "state": None if one.state is None else str(one.state)}
        for one in schedule.nights
    ]
    return {**plain, "nights": nights, "at": schedule.at}


def when_text(schedule: Schedule) -> str:
    """`02:00 to 06:00 UTC, when idle`."""
    end = (schedule.at_s + schedule.within_s) % 86_400
    idle = "when idle" if schedule.when_idle else "even when busy"
    return f"{schedule.at} to {end // 3600:02d}:{end % 3600 // 60:02d} UTC, {idle}"


def next_text(schedule: Schedule) -> str:
    """`next 27 Nov 2026, 02:00 UTC`, `paused since 26 Nov 2026, 14:05 UTC`."""
    if schedule.next_utc is None:
        return f"paused since {moment(schedule.paused_utc or '')}"
    return f"next {moment(schedule.next_utc)}"


def night_text(night: Night) -> str:
    """`2026-11-25: job 41, done`, `2026-11-25: skipped, no suitable agent was running`,
    `2026-11-25: job 41, failed: …`."""
    if night.job_id is None:
        return f"{night.night}: skipped, {night.why}"
    state = "" if night.state is None else f", {night.state}"
    why = f": {night.why}" if night.why else ""
    return f"{night.night}: job {night.job_id}{state}{why}"


def print_schedules(console: Console, schedules: Sequence[Schedule]) -> None:
    """The nightly schedules, their next night and what became of the last one."""
    if not schedules:
        console.print("No schedules. Make one with: cubemesh submit acceptance --nightly 02:00")
        return
    columns = ("schedule", "when", "next", "what", "host", "last night")
    table = Table(*columns, box=None, pad_edge=False)
    for one in schedules:
        table.add_row(
            str(one.schedule_id),
            when_text(one),
            next_text(one).removeprefix("next "),
            Text(clean(one.name, 80) + (f" (damaged: {one.damage})" if one.damage else "")),
            Text(clean(one.wants.host or "any", 80)),
            Text(clean(night_text(one.nights[0]) if one.nights else "none yet", 160)),
        )
    console.print(table)


def print_scheduled(console: Console, schedule: Schedule) -> None:
    """What was scheduled, and what runs it."""
    console.print(f"schedule {schedule.schedule_id}: every night from {when_text(schedule)}")
    console.print(
        f"It needs a running `cubemesh agent`; `cubemesh jobs unschedule {schedule.schedule_id}` "
        "ends it."
    )


def event_line(event: JobEvent) -> str:
    """An event as a line of a log; empty for points and estimates."""
    value = event.value
    if event.kind == DAMAGED:
        return f"event {event.sequence} ({value['kind']}) is left out: {value['reason']}"
    if event.kind == "state":
        return f"{value['state']}" + (f": {value['why']}" if value["why"] else "")
    if event.kind in ("message", "log"):
        return str(value["text"])
    if event.kind == "run":
        what = value["network"] or value["work"]
        expected = value.get("expected")
        hope = (
            f"; {format_number(expected['samples_per_s'])} samples/s expected" if expected else ""
        )
        return f"run {value['run']}: {what}, {value['framework']}{hope}"
    if event.kind == "finished":
        again = ", stored before" if value["reused"] else ""
        return f"run {value['run']}: {value['outcome']}{again} ({value['run_id']})"
    if event.kind == "warning":
        return f"{value['code']}: {value['cause']} {value['remedy']}"
    if event.kind == "rewind":
        return f"run {value['run']} resumed at step {value['step']:g}"
    if event.kind == "edited":
        changed = {name: one for name, one in value.items() if name != "who"}
        return f"by {value['who']}: " + ", ".join(
            f"{name} {' '.join(map(str, one)) if isinstance(one, list) else one}"
            for name, one in changed.items()
        )
    return ""


class WatchPages:
    """A watched job: a line for each event that a reader wants, or each event as a line of JSON."""

    def __init__(self, console: Console, as_json: bool) -> None:
        self._console, self._as_json = console, as_json
        self._eta: dict[str, Any] = {}

    def event(self, event: JobEvent) -> None:
        """One event."""
        if self._as_json:
            sys.stdout.write(json.dumps(asdict(event), allow_nan=False) + "\n")
            sys.stdout.flush()
            return
        line = self._line(event)
        if line:
            self._console.print(Text(clean(f"{event.said_utc[11:19]}  {line}", 1000)))

    def end(self, job: QueuedJob) -> None:
        """The job has ended."""
        if not self._as_json:
            print_job(self._console, job)

    def _line(self, event: JobEvent) -> str:
        if event.kind == "eta":
            self._eta = event.value
        if event.kind == "points":
            if event.value["series"] in SENSORS:
                return ""
            return self._points(event.value)
        return event_line(event)

    def _points(self, value: dict[str, Any]) -> str:
        x, y = value["points"][-1] if value["points"] else (None, None)
        number = "not finite" if y is None else f"{y:.4g}"
        at = "not finite" if x is None else f"{x:g}"
        at += " s" if value["series"] == "samples_per_s" else ""
        left = f"   left {eta_text(self._eta)}" if self._eta else ""
        return f"run {value['run']}: {value['series']} {number} at {at}{left}"


def eta_text(eta: dict[str, Any]) -> str:
    """`4 min (3 to 5 min)`."""
    low, high = format_seconds(eta["eta_low_s"]), format_seconds(eta["eta_high_s"])
    least = "" if eta.get("eta_exact", True) else "at least "
    return f"{least}{format_seconds(eta['eta_s'])} ({low} to {high})"


def _progress(job: QueuedJob) -> str:
    now = job.progress
    if job.children:
        return f"{len(job.children)} jobs"
    parts = []
    if now.get("runs"):
        parts.append(f"run {now.get('run') or 1} of {now['runs']}")
    if now.get("fraction") is not None and job.state.held:
        parts.append(f"{100 * now['fraction']:.0f} %")
    if now.get("note") and job.state.held:
        parts.append(str(now["note"]))
    known = all(now.get(name) is not None for name in ("eta_s", "eta_low_s", "eta_high_s"))
    if known and job.state.held:
        parts.append(f"left {eta_text(dict(now))}")
    return clean(", ".join(parts), 200)


def _needs(job: QueuedJob) -> str:
    wants = job.wants
    kinds = {"any": "GPUs, or the CPU", "gpu": "GPUs", "cpu": "the CPU", "none": "no device"}
    count = f"{wants.devices} " if wants.device == "gpu" else ""
    return f"{count}{kinds[wants.device]}" + (f" on {wants.host}" if wants.host else "")
