"""`cubemesh launch`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, show
from cubemesh.errors import UsageError, unknown_name

CpusPerTask = Annotated[
    int | None,
    typer.Option(
        min=1, help="CPUs per node (Slurm task), at least one per GPU; default: 4 per GPU, or 1."
    ),
]
Partition = Annotated[str | None, typer.Option(help="Slurm partition.")]
Account = Annotated[str | None, typer.Option(help="Slurm account.")]


def launch(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command of cubemesh, after `--`."),
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Write and submit a Slurm job.")] = False,
    nodes: Annotated[
        int, typer.Option(min=1, help="Number of nodes, which become the hosts of the command.")
    ] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs per node.")] = 0,
    cpus_per_task: CpusPerTask = None,
    time: Annotated[str, typer.Option(help="Time limit, such as 1:30:00.")] = "1:00:00",
    partition: Partition = None,
    account: Account = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script and submit nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a command of cubemesh as a Slurm job."""
    from cubemesh.api.launch import launch as submit
    from cubemesh.views.json_output import envelope

    if not slurm:
        raise UsageError("Jobs are submitted to Slurm: add --slurm.")
    _check_command(context, command or [])
    found = submit(
        command or [],
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        cpus_per_task=cpus_per_task,
        time=time,
        partition=partition,
        account=account,
        dry_run=dry_run,
    )
    if dry_run and not as_json:
        typer.echo(found.script, nl=False)
        return
    show(
        envelope("launch", job=found.job, script=found.script),
        as_json,
        lambda c: c.print(f"Submitted job {found.job}; output: cubemesh-{found.job}.out"),
    )


def _check_command(context: typer.Context, command: list[str]) -> None:
    """UsageError for a command that does not exist; click's error for an option that it does not
    have. A job would only fail after it has waited in the queue."""
    if not command:
        return  # refused with an example
    verb, *words = command
    commands = getattr(context.find_root().command, "commands", {})
    if verb not in commands or verb == context.info_name:
        known = [name for name in commands if name != context.info_name]
        raise unknown_name("command of cubemesh", verb, known, plural="commands")
    commands[verb].make_context(f"cubemesh {verb}", words)
