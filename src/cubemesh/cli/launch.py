"""The verb that hands a command to a cluster."""

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
    nodes: Annotated[int, typer.Option(min=1, help="Nodes; the command gets them as hosts.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs of each node.")] = 0,
    cpus_per_task: Annotated[
        int, typer.Option(min=1, help="Processors of each node's task: one a device at least.")
    ] = 1,
    time: Annotated[str, typer.Option(help="Time limit, such as 1:30:00.")] = "1:00:00",
    partition: Annotated[str | None, typer.Option(help="Slurm's partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Who is charged.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script and submit nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a command of cubemesh as a Slurm job. What it needs is named one by one."""
    from cubemesh.runs.slurm import Resources, own_script, submit
    from cubemesh.views.json_output import envelope

    if not slurm:
        raise UsageError("Jobs are launched by Slurm: add --slurm.")
    resources = Resources(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        cpus_per_task=cpus_per_task,
        time=time,
        partition=partition,
        account=account,
    )
    text = own_script(resources, command or [])
    if dry_run and not as_json:
        typer.echo(text, nl=False)
        return
    job = None if dry_run else submit(text)
    show(
        envelope("launch", job=job, script=text),
        as_json,
        lambda console: console.print(f"Submitted job {job}; it writes cubemesh-{job}.out."),
    )
