"""Jobs: questions in the queue of a store, what becomes of them, and the agents that run them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cubemesh.api.arguments import (
    AnyStore,
    Settings,
    host_lines,
    open_store,
    scale_of,
    setting_lines,
)
from cubemesh.errors import CubemeshError, UsageError, unknown_name
from cubemesh.jobs import feed
from cubemesh.jobs import slurm as in_slurm
from cubemesh.jobs.agent import AgentOptions, JobAgent, check_slots
from cubemesh.jobs.forkserver import JobServer
from cubemesh.jobs.points import Curves
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.schedules import Schedule, Schedules
from cubemesh.jobs.states import State
from cubemesh.jobs.submission import (
    cloned,
    edit_question,
    schedule_question,
    submit_question,
    submitter,
)
from cubemesh.jobs.values import Agent, JobEvent, Question, QueuedJob
from cubemesh.jobs.wakeup import EVENTS, Wakeup
from cubemesh.runs.slurm import Resources
from cubemesh.store import Store
from cubemesh.units import parse_duration

FOLLOW_S = 0.5
"""Interval of asking for new events."""


def submit(
    *names: str,
    settings: Settings = (),
    quick: bool = False,
    full: bool = False,
    store: AnyStore = None,
    no_cache: bool = False,
    against: Settings = (),
    hosts: str | Iterable[str] = (),
    pythons: Settings = (),
    wait: str | float = "1m",
    wait_quiet: str | float = 0.0,
    sweep: Settings = (),
    devices: str | int = "auto",
    on_host: str | None = None,
    priority: int = 0,
    restarts: int = 3,
    slurm: Mapping[str, Any] | None = None,
    **more_settings: Any,
) -> QueuedJob:
    """Queue what `run` would run, for an agent (`agent`) to run. The arguments are those of `run`;
    after `wait` for a device that another program uses, the job is queued again.

    A setting of one number or word that is given several values, `learning_rate="0.1,0.01"`, makes
    a sweep: a job for each combination; `sweep` does so for any setting. `devices` is a number of
    GPUs, "cpu" or "auto"; `on_host` the only host that may run it. Jobs of a higher `priority` come
    first. A job whose process is lost is queued again up to `restarts` times. `slurm` submits each
    job to Slurm, where an agent runs it alone; it has the resources as `launch` takes them,
    `{"partition": "gpu", "time": "8:00:00"}`, and without `gpus_per_node` those of `devices`.

    UsageError before anything is queued, as of `run`.
    """
    question = _question(
        names,
        [*setting_lines(settings), *setting_lines(more_settings), *host_lines(hosts)],
        quick=quick,
        full=full,
        no_cache=no_cache,
        against=against,
        pythons=pythons,
        wait=wait,
        wait_quiet=wait_quiet,
    )
    with open_store(store) as opened:
        return submit_question(
            JobQueue(opened.database),
            opened,
            question,
            sweep=setting_lines(sweep),
            devices=str(devices),
            host=on_host,
            priority=priority,
            restarts=restarts,
            slurm=None if slurm is None else _resources(slurm, str(devices)),
        )


def schedule(
    *names: str,
    at: str,
    within: str | float = "4h",
    when_idle: bool = True,
    settings: Settings = (),
    quick: bool = False,
    full: bool = False,
    store: AnyStore = None,
    against: Settings = (),
    pythons: Settings = (),
    wait: str | float = "1m",
    wait_quiet: str | float = 0.0,
    devices: str | int = "auto",
    on_host: str | None = None,
    priority: int = 0,
    restarts: int = 3,
    **more_settings: Any,
) -> Schedule:
    """Queue what `submit` would queue, every night from `at` on, such as "02:00" (UTC): once, by
    the first agent that it fits and whose host is idle, or, without `when_idle`, has free devices.
    A night in which there is none `within` that time is recorded as skipped. It is always measured
    anew. The other arguments are those of `submit`.

    UsageError before anything is stored, as of `submit`.
    """
    question = _question(
        names,
        [*setting_lines(settings), *setting_lines(more_settings)],
        quick=quick,
        full=full,
        no_cache=True,
        against=against,
        pythons=pythons,
        wait=wait,
        wait_quiet=wait_quiet,
    )
    with open_store(store) as opened:
        return schedule_question(
            Schedules(JobQueue(opened.database)),
            opened,
            question,
            at=at,
            within_s=parse_duration(str(within)),
            when_idle=when_idle,
            devices=str(devices),
            host=on_host,
            priority=priority,
            restarts=restarts,
        )


def _question(
    names: tuple[str, ...],
    lines: Iterable[str],
    *,
    quick: bool,
    full: bool,
    no_cache: bool,
    against: Settings,
    pythons: Settings,
    wait: str | float,
    wait_quiet: str | float,
) -> Question:
    scale = scale_of(quick=quick, full=full)
    return Question(
        names=names,
        settings=tuple(lines),
        scale=None if scale is None else scale.value,
        against=tuple(setting_lines(against)),
        pythons=tuple(setting_lines(pythons)),
        no_cache=no_cache,
        wait_s=parse_duration(str(wait)),
        wait_quiet_s=parse_duration(str(wait_quiet)),
    )


def list_schedules(*, store: AnyStore = None) -> list[Schedule]:
    """The nightly schedules, the oldest first, each with its newest nights."""
    with job_queue(store) as queue:
        return Schedules(queue).list()


def pause_schedule(schedule_id: int, *, store: AnyStore = None) -> Schedule:
    """Let a nightly schedule queue nothing until it is resumed; the nights are recorded as skipped.
    UsageError where it is paused already, or there is none."""
    with job_queue(store, writing=True) as queue:
        return Schedules(queue).pause(schedule_id, who=submitter())


def resume_schedule(schedule_id: int, *, store: AnyStore = None) -> Schedule:
    """Let a paused nightly schedule queue jobs again, from the window that is open, or else the
    next one. UsageError where it is not paused, or there is none."""
    with job_queue(store, writing=True) as queue:
        return Schedules(queue).resume(schedule_id, who=submitter())


def delete_schedule(schedule_id: int, *, store: AnyStore = None) -> None:
    """End a nightly schedule; what it queued stays. UsageError where there is none."""
    with job_queue(store, writing=True) as queue:
        Schedules(queue).delete(schedule_id, who=submitter())


def _resources(given: Mapping[str, Any], devices: str) -> Resources:
    """The resources of a Slurm job; UsageError for an unknown one."""
    known = [field.name for field in fields(Resources)]
    for name in given:
        if name not in known:
            raise unknown_name("resource of Slurm", name, known, plural="resources")
    values = {name: value for name, value in given.items() if value is not None}
    if "gpus_per_node" not in values and devices.isdecimal():
        values["gpus_per_node"] = -(-int(devices) // max(1, values.get("nodes", 1)))
    return Resources(**values)


def list_jobs(
    *,
    states: Iterable[str] = (),
    parent_id: int | None = None,
    limit: int = 100,
    before: int | None = None,
    store: AnyStore = None,
) -> list[QueuedJob]:
    """The newest jobs, newest first; of these states, of this sweep, older than `before`."""
    wanted = [_state(name) for name in states]
    with job_queue(store) as queue:
        found = queue.list(states=wanted, parent_id=parent_id, limit=limit, before=before)
        return in_slurm.explained(found)


def job(job_id: int, *, store: AnyStore = None) -> QueuedJob:
    """One job; UsageError where there is none."""
    with job_queue(store) as queue:
        return in_slurm.explained([queue.get(job_id)])[0]


def job_curves(job_id: int, *, store: AnyStore = None) -> Curves:
    """The curves of a job so far: run, from 1 → series → points."""
    with job_queue(store) as queue:
        queue.get(job_id)
        return feed.curves(queue, job_id)


def list_agents(*, store: AnyStore = None) -> list[Agent]:
    """The agents that ever ran on this store, the last seen first."""
    with job_queue(store) as queue:
        return queue.agents()


def pause_job(job_id: int, *, store: AnyStore = None) -> QueuedJob:
    """Pause a job: a training after a checkpoint, others between two runs; the job after that."""
    with job_queue(store, writing=True) as queue:
        in_slurm.pause(queue, job_id, who=submitter())
        return queue.get(job_id)


def resume_job(job_id: int, *, store: AnyStore = None) -> QueuedJob:
    """Queue a job again that is paused, failed, stopped or lost; it continues from its last
    checkpoint. A job in Slurm is submitted again."""
    with job_queue(store, writing=True) as queue:
        in_slurm.resume(queue, job_id, who=submitter())
        return queue.get(job_id)


def stop_job(job_id: int, *, at_checkpoint: bool = False, store: AnyStore = None) -> QueuedJob:
    """Stop a job at once, or at its next checkpoint. What waits in Slurm is cancelled there."""
    with job_queue(store, writing=True) as queue:
        in_slurm.stop(queue, job_id, at_checkpoint=at_checkpoint, who=submitter())
        return queue.get(job_id)


def prioritize_job(job_id: int, priority: int, *, store: AnyStore = None) -> QueuedJob:
    """Change the priority of a job; higher ones come first."""
    with job_queue(store, writing=True) as queue:
        queue.set_priority(job_id, priority, who=submitter())
        return queue.get(job_id)


def edit_job(job_id: int, settings: Settings, *, store: AnyStore = None) -> QueuedJob:
    """Change settings of a job: of a running training at its next checkpoint, from which it
    continues. UsageError for a setting that cannot change any more."""
    with open_store(store) as opened:
        queue = JobQueue(opened.database)
        edit_question(queue, opened, job_id, setting_lines(settings), who=submitter())
        return queue.get(job_id)


def clone_job(
    job_id: int,
    settings: Settings = (),
    *,
    priority: int | None = None,
    store: AnyStore = None,
) -> QueuedJob:
    """Queue the same question again, with some settings changed; the new job. A sweep is cloned as
    a sweep, a job in Slurm with its resources."""
    with open_store(store) as opened:
        queue = JobQueue(opened.database)
        before = queue.get(job_id)
        wants = before.wants
        count = str(wants.devices) if wants.device == "gpu" else "auto"
        return submit_question(
            queue,
            opened,
            cloned(before, setting_lines(settings)),
            devices=count,
            host=wants.host,
            priority=before.priority if priority is None else priority,
            restarts=before.restarts,
            slurm=in_slurm.resources_of(queue, before),
        )


def watch(job_id: int, cursor: int = 0, *, store: AnyStore = None) -> Iterator[JobEvent]:
    """The events of a job after `cursor`, as they come, until it has ended or is paused."""
    with job_queue(store) as queue, closing(Wakeup(queue.database, EVENTS)) as wakeup:
        yield from feed.follow(queue, job_id, cursor, wait=lambda: wakeup.wait(job_id, FOLLOW_S))


def agent(
    *,
    store: AnyStore = None,
    slots: int | None = None,
    only: int | None = None,
    once: bool = False,
    until_idle: bool = False,
    checkpoints: str | Path | None = None,
    grace: str | float = "1m",
    hosts: str | Iterable[str] = (),
    announce: Any = lambda text: None,
) -> int:
    """Run queued jobs on this host until a signal, or one job (`once`), or until none fits
    (`until_idle`), or until the job or sweep `only` has ended; the number of jobs it took. `hosts`
    are those that its jobs are distributed over, unless their settings name some. `announce` gets a
    sentence about each job. Call it from the main thread."""
    return run_agent(
        JobServer.spawn,
        store=store,
        slots=slots,
        only=only,
        once=once,
        until_idle=until_idle,
        checkpoints=checkpoints,
        grace=grace,
        hosts=hosts,
        announce=announce,
    )


def run_agent(
    start_server: Callable[[], JobServer],
    *,
    store: AnyStore,
    slots: int | None,
    only: int | None,
    once: bool,
    until_idle: bool,
    checkpoints: str | Path | None,
    grace: str | float,
    hosts: str | Iterable[str],
    announce: Any,
) -> int:
    """As `agent`, with a forkserver that `start_server` starts before the store is opened."""
    check_slots(slots)
    if isinstance(store, Store):
        raise UsageError("agent() needs the path or URL of a store: its jobs open it too.")
    options = AgentOptions(
        slots=slots,
        only=only,
        once=once,
        until_idle=until_idle,
        checkpoints=None if checkpoints is None else os.fspath(checkpoints),
        hosts=tuple(named_hosts(hosts)),
        grace_s=parse_duration(str(grace)),
    )
    with closing(start_server()) as server, open_store(store) as opened:
        location = opened.name if store is None else os.fspath(store)
        if only is not None:
            queue = JobQueue(opened.database)
            in_slurm.entered_allocation(queue, only, os.environ)
            allocated = in_slurm.number_in(queue.get(only), os.environ) > 0
            options = replace(options, allocated=allocated)
        runner = JobAgent(
            store=opened, location=location, server=server, options=options, announce=announce
        )
        taken = runner.run()
        if only is not None:
            try:
                why = in_slurm.left_allocation(
                    runner.queue, only, os.environ, interrupted=runner.interrupted
                )
            except CubemeshError as error:
                why = str(error)
            if why:
                announce(why)
        return taken


@contextmanager
def job_queue(store: AnyStore = None, *, writing: bool = False) -> Iterator[JobQueue]:
    """The queue of a store."""
    with open_store(store, reading=not writing) as opened:
        yield JobQueue(opened.database)


def named_hosts(hosts: str | Iterable[str]) -> list[str]:
    """The names of hosts; UsageError as of `run`."""
    text = "".join(host_lines(hosts)).partition("=")[2]
    return [name.strip() for name in text.split(",") if name.strip()]


def _state(name: str) -> State:
    try:
        return State(name)
    except ValueError:
        known = ", ".join(State)
        raise UsageError(f"'{name}' is not a state of a job. States: {known}.") from None
