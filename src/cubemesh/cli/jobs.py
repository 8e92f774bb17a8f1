"""`cubemesh submit`, `jobs`, `watch` and `agent`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.launch import Account, CpusPerTask, Partition
from cubemesh.cli.options import (
    AsJson,
    Hosts,
    NoCache,
    Pythons,
    Settings,
    StoreAt,
    show,
    tell,
)
from cubemesh.errors import UsageError

ACTIONS = (
    *("list", "show", "pause", "resume", "stop", "edit", "clone", "priority", "agents"),
    *("schedules", "pause-schedule", "resume-schedule", "unschedule"),
)


def submit(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="Experiments or suites; `cubemesh experiments` lists them.",
            autocompletion=completion.experiments_and_suites,
        ),
    ],
    settings: Settings = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=V1,V2",
            help="A job for each value; several: for each combination.",
            autocompletion=completion.settings,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter runs.")] = False,
    full: Annotated[bool, typer.Option("--full", help="As thorough as the papers.")] = False,
    priority: Annotated[int, typer.Option(help="Jobs with a higher priority are run first.")] = 0,
    devices: Annotated[
        str, typer.Option(metavar="N|cpu|auto", help="Number of GPUs to reserve, or the CPU.")
    ] = "auto",
    on_host: Annotated[
        str | None, typer.Option("--on-host", metavar="NAME", help="Only the agent of this host.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(help="How often a job is queued again after its process was lost.")
    ] = 3,
    slurm: Annotated[
        bool,
        typer.Option("--slurm", help="Submit each job to Slurm, in an allocation of its own."),
    ] = False,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="With --slurm: number of nodes; default: 1.")
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(min=0, help="With --slurm: GPUs per node; default: those of --devices."),
    ] = None,
    cpus_per_task: CpusPerTask = None,
    time: Annotated[
        str | None, typer.Option(help="With --slurm: time limit; default: 1:00:00.")
    ] = None,
    partition: Partition = None,
    account: Account = None,
    no_cache: NoCache = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="KEY=VALUE",
            help="Interleaved A/B with a program that differs in this; may be repeated.",
            autocompletion=completion.settings,
        ),
    ] = None,
    pythons: Pythons = None,
    hosts: Hosts = None,
    wait: Annotated[
        str,
        typer.Option(
            "--wait",
            metavar="DURATION",
            help="Wait up to this long for a device that another program uses; then the job is "
            "queued again.",
        ),
    ] = "1m",
    wait_quiet: Annotated[
        str,
        typer.Option(
            "--wait-quiet",
            metavar="DURATION",
            help="Wait up to this long (10m) for other programs to end.",
        ),
    ] = "0",
    nightly: Annotated[
        str | None,
        typer.Option(
            "--nightly",
            metavar="HH:MM",
            help="Queue it once a night, from this time (UTC) on, when an agent's host is idle.",
        ),
    ] = None,
    within: Annotated[
        str,
        typer.Option(
            "--within",
            metavar="DURATION",
            help="With --nightly: skip the night if no host is idle within this time.",
        ),
    ] = "4h",
    any_load: Annotated[
        bool,
        typer.Option("--any-load", help="With --nightly: also while other programs use the host."),
    ] = False,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Queue an experiment as a job, once or every night. `cubemesh agent` runs queued jobs on a
    host; with --slurm, each job runs in an allocation of its own."""
    from cubemesh.api.jobs import schedule
    from cubemesh.api.jobs import submit as submit_job
    from cubemesh.views import job_pages
    from cubemesh.views.json_output import envelope

    resources = {
        name: value
        for name, value in (
            *(("nodes", nodes), ("gpus_per_node", gpus_per_node), ("time", time)),
            *(("cpus_per_task", cpus_per_task), ("partition", partition), ("account", account)),
        )
        if value is not None
    }
    if resources and not slurm:
        option = "--" + next(iter(resources)).replace("_", "-")
        raise UsageError(f"{option} belongs to --slurm. Add --slurm, or leave {option} out.")
    if nightly is not None:
        if sweep or hosts:
            raise UsageError("--nightly queues one job of one host: leave out --sweep and --hosts.")
        made = schedule(
            *names,
            at=nightly,
            within=within,
            when_idle=not any_load,
            settings=settings or (),
            quick=quick,
            full=full,
            priority=priority,
            devices=devices,
            on_host=on_host,
            restarts=restarts,
            against=against or (),
            pythons=pythons or (),
            wait=wait,
            wait_quiet=wait_quiet,
            store=store,
        )
        show(
            envelope("schedule", schedule=job_pages.schedule_json(made)),
            as_json,
            lambda console: job_pages.print_scheduled(console, made),
        )
        return
    if any_load:
        raise UsageError("--any-load belongs to --nightly: add --nightly 02:00, or leave it out.")
    job = submit_job(
        *names,
        settings=settings or (),
        sweep=sweep or (),
        quick=quick,
        full=full,
        priority=priority,
        devices=devices,
        on_host=on_host,
        restarts=restarts,
        no_cache=no_cache,
        against=against or (),
        pythons=pythons or (),
        hosts=() if hosts is None else hosts,
        wait=wait,
        wait_quiet=wait_quiet,
        slurm=resources if slurm else None,
        store=store,
    )
    show(
        envelope("job", job=job_pages.job_json(job)),
        as_json,
        lambda console: job_pages.print_submitted(console, job, in_slurm=slurm),
    )


def jobs(
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION",
            help="list, show, pause, resume, stop, edit, clone, priority, agents, schedules, "
            "pause-schedule, resume-schedule, unschedule.",
        ),
    ] = "list",
    job_id: Annotated[
        int | None, typer.Argument(metavar="JOB", help="Number of a job, sweep or schedule.")
    ] = None,
    value: Annotated[
        int | None, typer.Argument(metavar="PRIORITY", help="New priority, of `priority`.")
    ] = None,
    settings: Settings = None,
    at_checkpoint: Annotated[
        bool, typer.Option("--at-checkpoint", help="With stop: at the next checkpoint.")
    ] = False,
    state: Annotated[
        list[str] | None, typer.Option(help="With list: jobs in this state; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="With list: number of most recent jobs.")] = 50,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, or change one. Pause, resume, stop, edit, clone or reorder a job; list the agents
    and the nightly schedules."""
    from cubemesh.api import jobs as api
    from cubemesh.errors import unknown_name
    from cubemesh.views import job_pages
    from cubemesh.views.json_output import envelope

    if action not in ACTIONS:
        raise unknown_name("action of jobs", action, ACTIONS, "", "actions")
    if settings and action not in ("edit", "clone"):
        raise UsageError(f"--set belongs to edit and clone, not to {action}.")
    if at_checkpoint and action != "stop":
        raise UsageError(f"--at-checkpoint belongs to stop, not to {action}.")
    if value is not None and action != "priority":
        raise UsageError(f"{action} takes one number, that of the job; {value} is one too many.")
    if action == "agents":
        found_agents = api.list_agents(store=store)
        show(
            envelope("agents", agents=[vars(one) for one in found_agents]),
            as_json,
            lambda console: job_pages.print_agents(console, found_agents),
        )
        return
    if action == "schedules":
        schedules = api.list_schedules(store=store)
        show(
            envelope("schedules", schedules=[job_pages.schedule_json(one) for one in schedules]),
            as_json,
            lambda console: job_pages.print_schedules(console, schedules),
        )
        return
    if action == "list":
        found = api.list_jobs(states=state or (), parent_id=job_id, limit=limit, store=store)
        show(
            envelope("jobs", jobs=[job_pages.job_json(one) for one in found]),
            as_json,
            lambda console: job_pages.print_jobs(console, found),
        )
        return
    if job_id is None:
        raise UsageError(f"Which job? Give its number: cubemesh jobs {action} 7. `cubemesh jobs` "
                         "lists them.")  # fmt: skip
    if action in ("pause-schedule", "resume-schedule"):
        change = api.pause_schedule if action == "pause-schedule" else api.resume_schedule
        changed = change(job_id, store=store)
        show(
            envelope("schedule", schedule=job_pages.schedule_json(changed)),
            as_json,
            lambda console: job_pages.print_schedules(console, [changed]),
        )
        return
    if action == "unschedule":
        api.delete_schedule(job_id, store=store)
        show(
            envelope("schedules", deleted=job_id),
            as_json,
            lambda console: console.print(f"schedule {job_id} has ended"),
        )
        return
    if action == "show":
        job = api.job(job_id, store=store)
    elif action == "pause":
        job = api.pause_job(job_id, store=store)
    elif action == "resume":
        job = api.resume_job(job_id, store=store)
    elif action == "stop":
        job = api.stop_job(job_id, at_checkpoint=at_checkpoint, store=store)
    elif action == "edit":
        job = api.edit_job(job_id, settings or (), store=store)
    elif action == "clone":
        job = api.clone_job(job_id, settings or (), store=store)
    else:
        if value is None:
            raise UsageError(f"Which priority? As in: cubemesh jobs priority {job_id} 10")
        job = api.prioritize_job(job_id, value, store=store)
    show(
        envelope("job", job=job_pages.job_json(job)),
        as_json,
        lambda console: job_pages.print_job(console, job),
    )


def watch(
    job_id: Annotated[int, typer.Argument(metavar="JOB", help="Number of the job.")],
    cursor: Annotated[
        int, typer.Option(min=0, help="Begin after this event; its number is in --json.")
    ] = 0,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Follow a job: progress, loss, throughput and the estimated time left, until it ends."""
    from cubemesh.api import jobs as api
    from cubemesh.views import job_pages, terminal

    pages = job_pages.WatchPages(terminal.stdout_console(), as_json)
    for event in api.watch(job_id, cursor, store=store):
        pages.event(event)
    job = api.job(job_id, store=store)
    pages.end(job)
    raise typer.Exit(job_pages.exit_code(job))


def agent(
    slots: Annotated[
        int | None,
        typer.Option(help="Most jobs at the same time; default: one per GPU or usable core."),
    ] = None,
    only: Annotated[
        int | None,
        typer.Option("--only", metavar="JOB", help="Run this job or sweep alone, then end."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after one job.")] = False,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when no queued job fits this host.")
    ] = False,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder of checkpoints, shared by the hosts; default: next to the store.",
        ),
    ] = None,
    grace: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="At SIGTERM: time for trainings to reach a checkpoint."
        ),
    ] = "1m",
    hosts: Hosts = None,
    store: StoreAt = None,
) -> None:
    """Run queued jobs on this host, until Ctrl-C or SIGTERM; their trainings then stop at a
    checkpoint and are queued again."""
    from cubemesh.api.jobs import run_agent
    from cubemesh.jobs.forkserver import JobServer

    taken = run_agent(
        JobServer.fork,
        slots=slots,
        only=only,
        once=once,
        until_idle=until_idle,
        checkpoints=checkpoints,
        grace=grace,
        hosts=() if hosts is None else hosts,
        store=store,
        announce=tell,
    )
    tell(f"The agent took {taken} job{'' if taken == 1 else 's'}.")
