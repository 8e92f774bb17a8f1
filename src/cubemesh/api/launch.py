"""Slurm jobs: write the script of a command of cubemesh and submit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.runs.slurm import Resources, own_script, submit


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """A job and its script."""

    job: int | None
    """Its id; None where it was not submitted."""
    script: str


def launch(
    command: Sequence[str],
    *,
    nodes: int = 1,
    gpus_per_node: int = 0,
    cpus_per_task: int | None = None,
    time: str = "1:00:00",
    partition: str | None = None,
    account: str | None = None,
    dry_run: bool = False,
) -> SlurmJob:
    """Submit `command`, the words after `cubemesh`, as a Slurm job; `dry_run` only writes the
    script. UsageError for a resource or a command that Slurm cannot run."""
    resources = Resources(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        cpus_per_task=cpus_per_task,
        time=time,
        partition=partition,
        account=account,
    )
    script = own_script(resources, command)
    return SlurmJob(job=None if dry_run else submit(script), script=script)
