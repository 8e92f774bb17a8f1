"""`cubemesh launch`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, show
from cubemesh.errors import UsageError


def launch(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command of cubemesh, after `--`."),
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Write and submit a Slurm job.")] = False,
    nodes: Annotated[
        int, typer.Option(min=1, help="Number of nodes, which become the hosts of the command.")
    ] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs per node.")] = 0,
    cpus_per_task: Annotated[
        int, typer.Option(min=1, help="CPUs per node (Slurm task); at least one per device.")
    ] = 1,
    time: Annotated[str, typer.Option(help="Time limit, such as 1:30:00.")] = "1:00:00",
    partition: Annotated[str | None, typer.Option(help="Slurm partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account.")] = None,
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
