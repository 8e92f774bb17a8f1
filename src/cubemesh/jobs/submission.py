"""Submission: a question is checked as `cubemesh run` checks it, and put into the queue."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import split
from cubemesh.experiments.registry import Context, Scale
from cubemesh.experiments.runner import plan_first
from cubemesh.experiments.session import resolve
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.jobs import slurm as in_slurm
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.schedules import Schedule, Schedules, parse_hour
from cubemesh.jobs.sweep import combinations
from cubemesh.jobs.values import Device, Question, QueuedJob, Wants
from cubemesh.machines import probe
from cubemesh.runs import Executor
from cubemesh.runs.interpreters import environments
from cubemesh.runs.slurm import Resources
from cubemesh.store import Store

CHECKPOINTING = ("checkpoints", "checkpoint_every", "resume")
MOST_PRIORITY = 1_000_000
MOST_RESTARTS = 1000
_LONGEST_S = 1e9
"""A longer duration is refused as this one is, so that no number overflows."""
EDITABLE = frozenset(
    {"epochs", "learning_rate", "schedule", "target_accuracy", "warmup_epochs", "checkpoint_every"}
)
"""Settings of a training that may change at a checkpoint (training/manifest.py)."""


def check_question(question: Question, store: Store, *, begun: bool = False) -> None:
    """Check everything that `cubemesh run` checks before its first run; of a job that has `begun`,
    not whether its folder of checkpoints is free. UsageError or DataError where it would refuse."""
    scale = None if question.scale is None else Scale(question.scale)
    planned = resolve(question.names, question.settings, scale, question.against)
    if begun:
        texts = split(question.settings)
        lines = [f"{key}={text}" for key, text in texts.items() if key not in CHECKPOINTING]
        planned = resolve(question.names, lines, scale, question.against)
    machine = probe()
    others = environments(question.pythons, os.environ, machine.software)
    with Executor(store, machine=machine, environments=others) as executor:
        for one in planned:
            context = Context(machine=machine, scale=one.scale, hosts=one.hosts)
            plan_first(one.experiment, one.request, context, executor, store)


def submit_question(
    queue: JobQueue,
    store: Store,
    question: Question,
    *,
    sweep: Iterable[str] = (),
    devices: str = "auto",
    host: str | None = None,
    priority: int = 0,
    restarts: int = 3,
    slurm: Resources | None = None,
    who: str | None = None,
) -> QueuedJob:
    """Check a question and queue it, or every job of a sweep; with `slurm` each is submitted to
    Slurm. `who` submits it, by default the user of this process. UsageError for anything invalid,
    before anything is queued."""
    _check_number("--priority", priority, -MOST_PRIORITY, MOST_PRIORITY)
    _check_number("--restarts", restarts, 0, MOST_RESTARTS)
    if slurm is not None:
        if host is not None:
            raise UsageError(
                f"--on-host {host} contradicts --slurm, which chooses the host. Leave one out."
            )
        in_slurm.check_location(queue.database.location)
    swept = tuple(sweep)
    each = combinations(question.names, question.settings, swept)
    questions, wants = [], []
    for lines in each:
        one, want = with_devices(replace(question, settings=lines), devices, host)
        check_question(one, store)
        questions.append(one)
        wants.append(want)
    whole = replace(question, settings=(*question.settings, *swept))
    job = queue.submit(
        questions,
        wants,
        priority=priority,
        restarts=restarts,
        submitter=submitter() if who is None else who,
        sweep=whole if len(each) > 1 else None,
        slurm=slurm,
    )
    if slurm is not None:
        in_slurm.submit_each(queue, job)
    return queue.get(job.job_id)


def schedule_question(
    schedules: Schedules,
    store: Store,
    question: Question,
    *,
    at: str,
    within_s: float,
    when_idle: bool,
    devices: str = "auto",
    host: str | None = None,
    priority: int = 0,
    restarts: int = 3,
    who: str | None = None,
) -> Schedule:
    """Check a question and queue it every night; it is always measured anew. `who` makes it, by
    default the user of this process. UsageError for anything invalid, and for a sweep."""
    _check_number("--priority", priority, -MOST_PRIORITY, MOST_PRIORITY)
    _check_number("--restarts", restarts, 0, MOST_RESTARTS)
    at_s = parse_hour(at)
    if len(combinations(question.names, question.settings, ())) > 1:
        raise UsageError(
            "A schedule is one job a night, and these settings are a sweep. Give each setting one "
            "value, or make a schedule for each."
        )
    one, wants = with_devices(replace(question, no_cache=True), devices, host)
    check_question(one, store)
    return schedules.add(
        one,
        wants,
        at_s=at_s,
        within_s=round(min(within_s, _LONGEST_S)),
        when_idle=when_idle,
        priority=priority,
        restarts=restarts,
        submitter=submitter() if who is None else who,
    )


def cloned(job: QueuedJob, changes: Sequence[str]) -> Question:
    """The question of a job, with some settings changed."""
    if not job.question.names:
        raise UsageError(
            f"Job {job.job_id} cannot be repeated or edited: its stored row is damaged "
            f"({job.damage}). Queue the question anew with cubemesh submit."
        )
    before, after = split(job.question.settings), split(changes)
    lines = tuple(f"{key}={text}" for key, text in {**before, **after}.items())
    return replace(job.question, settings=lines)


def edited(job: QueuedJob, changes: Sequence[str]) -> Question:
    """The changed question of a job; UsageError for a setting that cannot change after it began."""
    if not changes:
        raise UsageError("Nothing to edit: give --set KEY=VALUE, as in --set epochs=20.")
    wrong = sorted(set(split(changes)) - EDITABLE)
    if job.attempt and wrong:
        raise UsageError(
            f"Job {job.job_id} has begun, and {', '.join(wrong)} cannot change any more. What can: "
            f"{', '.join(sorted(EDITABLE))}. Or queue another: cubemesh jobs clone {job.job_id} "
            f"--set {wrong[0]}=…"
        )
    return cloned(job, changes)


def edit_question(
    queue: JobQueue, store: Store, job_id: int, changes: Sequence[str], *, who: str
) -> None:
    """Change settings of a job: of a running training at its next checkpoint, from which it
    continues. UsageError for one that cannot change any more, or is not valid."""
    before = queue.get(job_id)
    question = edited(before, changes)
    asked = "auto" if _OF_DEVICES & split(changes).keys() else _devices_of(before.wants)
    changed, wants = with_devices(question, asked, before.wants.host)
    check_question(changed, store, begun=before.attempt > 0)
    queue.edit(job_id, changed, before.wants if before.attempt else wants, who=who)


_OF_DEVICES = frozenset({"device", "devices", "framework"})
"""Settings that decide which devices a question needs."""


def _devices_of(wants: Wants) -> str:
    """The devices of a job, as `with_devices` takes them."""
    return str(wants.devices) if wants.device == "gpu" else "auto"


def with_devices(question: Question, devices: str, host: str | None) -> tuple[Question, Wants]:
    """The question and the devices that it needs: `auto`, from its settings; `cpu`, to which the
    question is then set; or a number of GPUs."""
    texts = split(question.settings)
    framework = texts.get("framework", "").strip()
    simulates = framework in FRAMEWORKS and FRAMEWORKS[framework].simulates
    asked = devices.strip().lower()
    if asked == "cpu":
        if texts.get("device", "cpu").strip() not in ("cpu", "auto"):
            raise UsageError(
                f"--devices cpu contradicts --set device={texts['device']}. Leave one out."
            )
        texts["device"] = "cpu"
        question = replace(question, settings=tuple(f"{k}={v}" for k, v in texts.items()))
        return question, Wants(device="cpu", host=host)
    if asked.isdecimal() and 0 < int(asked) <= 4096:
        return question, Wants(device="gpu", devices=int(asked), host=host)
    if asked != "auto":
        raise UsageError(
            f"--devices {devices}: give a number of GPUs, cpu, or auto, which takes it from the "
            "settings."
        )
    if simulates:
        return question, Wants(device="none", host=host)
    return question, Wants(device=_device(texts), devices=_count(texts), host=host)


def _device(texts: Mapping[str, str]) -> Device:
    kinds: dict[str, Device] = {"cpu": "cpu", "cuda": "gpu"}
    return kinds.get(texts.get("device", "auto").strip(), "any")


def _count(texts: Mapping[str, str]) -> int:
    """The largest number of devices in the settings."""
    numbers = [part.strip() for part in texts.get("devices", "1").split(",")]
    return max((int(n) for n in numbers if n.isdecimal()), default=1) or 1


def submitter() -> str:
    """Who submits: `user@host`."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def _check_number(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{option} {value}: give a number from {least:,} to {most:,}.")
