"""Slurm: job scripts with explicit resources, and their submission by sbatch.

Every resource is written out, so that nothing depends on a site's defaults. One task per node:
cubemesh starts its ranks itself, on other nodes by srun (multi_host_launcher.py). A job that is
named can be requeued: it gets SIGINT `END_SIGNAL_S` before its time limit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cubemesh.errors import CubemeshError, UsageError
from cubemesh.untrusted import clean, quoted

ON_HOSTS = ("run", "train", "collectives", "agent")
"""Verbs that can run on several hosts."""
CPUS_PER_GPU = 4
"""Cores for each GPU by default: one launches kernels, the others prepare batches."""
END_SIGNAL_S = 120
"""How long before its time limit a named job gets SIGINT; Slurm may send it a minute earlier."""
_ANSWER_S = 10
"""How long a command of Slurm may take."""
_LONG_ENOUGH_S = 4 * END_SIGNAL_S
_TIME = re.compile(r"([0-9]+-)?[0-9]+(:[0-9]{2}){0,2}")
_NAME = re.compile(r"[A-Za-z0-9_.,=:-]+")
_VERB = re.compile(r"[a-z]+(-[a-z]+)*")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of a job; UsageError for a value that Slurm would refuse."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    """None: `CPUS_PER_GPU` for each GPU, or 1."""
    time: str = "1:00:00"
    """Minutes, or `[days-]hours:minutes:seconds`."""
    partition: str | None = None
    account: str | None = None

    @property
    def cpus(self) -> int:
        """CPUs of each node."""
        return self.cpus_per_task or max(1, CPUS_PER_GPU * self.gpus_per_node)

    @property
    def time_s(self) -> int:
        """The time limit in seconds."""
        days, dash, rest = self.time.rpartition("-")
        parts = [int(part) for part in rest.split(":")]
        if dash:
            hours, minutes, seconds = (*parts, 0, 0)[:3]
        elif len(parts) == 3:
            hours, minutes, seconds = parts
        else:
            hours, (minutes, seconds) = 0, (*parts, 0)[:2]
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds

    def __post_init__(self) -> None:
        if self.cpus < self.gpus_per_node:
            raise UsageError(
                f"--cpus-per-task {self.cpus} is too few for --gpus-per-node {self.gpus_per_node}: "
                f"each GPU needs a core. Give {self.gpus_per_node} or more, or leave it out for "
                f"{CPUS_PER_GPU} per GPU."
            )
        if not _TIME.fullmatch(self.time):
            raise UsageError(
                f"--time {self.time}: expected minutes, hours:minutes:seconds or "
                "days-hours:minutes:seconds, such as 1:30:00."
            )
        for name in ("partition", "account"):
            value = getattr(self, name)
            if value is not None and not _NAME.fullmatch(value):
                raise UsageError(f"--{name} '{value}' is not a valid Slurm {name} name.")


def script(
    resources: Resources,
    command: Sequence[str],
    python: str,
    source: str = "",
    name: str | None = None,
) -> str:
    """Job script that runs `cubemesh` with the arguments `command`, by the interpreter `python`
    with `source` on its path. With a `name` it can be requeued. UsageError for a command that
    cannot run on several nodes, and for words that a line of the script cannot hold."""
    if not command:
        raise UsageError(
            "No command. Write it after --, such as: cubemesh launch --slurm -- run quick."
        )
    for word in (*command, python, source):
        if not word.isprintable():
            raise UsageError(
                f"{quoted(word)} has a line break or another control character, which a job "
                "script cannot have. Leave it out."
            )
    if not _VERB.fullmatch(command[0]):
        raise UsageError(f"{quoted(command[0])} is not a command of cubemesh.")
    if resources.nodes > 1 and command[0] not in ON_HOSTS:
        raise UsageError(
            f"cubemesh {command[0]} runs on one node. {', '.join(ON_HOSTS)} run on several."
        )
    asked = {
        "job-name": name or f"cubemesh-{command[0]}",
        "nodes": resources.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": resources.gpus_per_node or None,
        "cpus-per-task": resources.cpus,
        "time": resources.time,
        "partition": resources.partition,
        "account": resources.account,
        "output": "cubemesh-%j.out",
    }
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{k}={v}" for k, v in asked.items() if v is not None]
    if name is not None:
        lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append"]
        if resources.time_s >= _LONG_ENOUGH_S:
            lines.append(f"#SBATCH --signal=B:INT@{END_SIGNAL_S}")
    lines += ["", "set -euo pipefail"]
    if source:
        lines.append(f"export PYTHONPATH={shlex.quote(source)}")
    words = shlex.join([python, "-m", "cubemesh", *command])
    if resources.nodes > 1:
        lines += [
            f"export SRUN_CPUS_PER_TASK={resources.cpus}  # srun does not inherit it",
            'hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)"',
        ]
        words += ' --hosts "$hosts"'
    return "\n".join([*lines, f"exec {words}", ""])


def own_script(resources: Resources, command: Sequence[str], name: str | None = None) -> str:
    """Job script for this Python and this cubemesh."""
    return script(resources, command, sys.executable, os.environ.get("PYTHONPATH", ""), name)


def submit(text: str) -> int:
    """Submit a job script by sbatch; the job number. CubemeshError with sbatch's message where it
    is refused."""
    if shutil.which("sbatch") is None:
        raise CubemeshError(
            "sbatch is not installed. Run this on a node that can submit jobs, or write the script "
            "with --dry-run and submit it there."
        )
    done = subprocess.run(
        ["sbatch", "--parsable"],
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    number = done.stdout.strip().partition(";")[0]
    if done.returncode or not number.isdecimal():
        message = clean((done.stderr or done.stdout).strip(), 1000)
        raise CubemeshError(f"sbatch refused the job: {message}")
    return int(number)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A job that has not ended, as `squeue` lists it."""

    name: str
    number: int
    state: str
    """`PENDING`, `RUNNING` and so on."""
    reason: str
    """Why it waits: `Priority`, `Resources` and so on; `None` where it does not."""
    start: str
    """When it is expected to start; `N/A` where that is not known."""


def listed(names: Iterable[str]) -> dict[str, Listed]:
    """The jobs of these names that Slurm has and that have not ended. CubemeshError where squeue
    does not answer."""
    form = "%j|%i|%T|%r|%S"
    text = _answer(["squeue", "--noheader", f"--format={form}", f"--name={','.join(names)}"])
    found = {}
    for line in text.splitlines():
        name, number, state, reason, start = (*clean(line, 1000).split("|"), "", "", "", "")[:5]
        if number.isdecimal():
            found[name] = Listed(
                name=name, number=int(number), state=state, reason=reason.strip(), start=start
            )
    return found


def cancel(names: Iterable[str]) -> None:
    """Cancel the jobs of these names. CubemeshError where scancel does not answer."""
    for name in names:
        _answer(["scancel", "--quiet", f"--name={name}"])


def requeue(number: int) -> None:
    """End a job and put it into Slurm's queue again. CubemeshError where Slurm refuses."""
    _answer(["scontrol", "requeue", str(number)])


def _answer(command: Sequence[str]) -> str:
    """What a command of Slurm prints; CubemeshError where there is none, or it fails."""
    program = command[0]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWER_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise CubemeshError(f"{program} is not installed here.") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CubemeshError(f"{program} does not answer: {error}") from None
    if done.returncode:
        message = clean((done.stderr or done.stdout).strip(), 1000)
        raise CubemeshError(f"{program} failed: {message}")
    return done.stdout
