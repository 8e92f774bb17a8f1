"""Values of the queue: questions, jobs, their events, and agents, as they are read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cubemesh.jobs.states import State
from cubemesh.runs.slurm import Resources

Device = Literal["any", "cpu", "gpu", "none"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a job runs: the arguments of `cubemesh run`."""

    names: tuple[str, ...]
    """Experiments or suites."""
    settings: tuple[str, ...] = ()
    """Lines KEY=VALUE."""
    scale: str | None = None
    """`quick` or `full`; None for the default of each experiment."""
    against: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    no_cache: bool = False
    wait_s: float = 60.0
    """Longest time to wait for a device that another program uses, before the job is queued
    again."""
    wait_quiet_s: float = 0.0

    @property
    def text(self) -> str:
        """As on a command line: `minibatch networks=resnet-18`."""
        return " ".join((*self.names, *self.settings))


@dataclass(frozen=True, kw_only=True)
class Wants:
    """Devices that a job needs on the host of an agent."""

    device: Device = "any"
    """`any`: GPUs where the host has them, else the CPU; `none`: a simulation."""
    devices: int = 1
    """Number of GPUs."""
    host: str | None = None
    """The only host it may run on; None: any."""


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """The Slurm job that runs an agent for a job."""

    name: str
    """Its name in Slurm, of this job alone. Slurm's numbers are used again after a restart."""
    resources: Resources
    number: int | None = None
    """Its number; None before it is submitted."""


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job of the queue, as it was when it was read."""

    job_id: int
    kind: Literal["question", "sweep"]
    """A sweep runs nothing; it holds its jobs together (`children`)."""
    name: str
    question: Question
    state: State
    why: str = ""
    """Why it is in this state, or waits; a sentence, or empty."""
    priority: int = 0
    """Higher ones first; of equal ones the oldest."""
    wants: Wants = Wants()
    parent_id: int | None = None
    children: tuple[int, ...] = ()
    submitter: str = ""
    agent_id: str | None = None
    fence: int = 0
    """Increases with every claim. What a holder writes with an older one is refused."""
    attempt: int = 0
    """Number of claims so far."""
    restarts: int = 3
    """Number of times it is queued again after its holder was lost or the store failed."""
    faults: int = 0
    """Number of times that has happened."""
    control: str | None = None
    """What its holder is to do: pause, stop, stop-at-checkpoint, edit."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """`fraction`, `phase`, `note`, `samples_per_s`, `eta_s`, `eta_low_s`, `eta_high_s`, `run`,
    `runs`, `slow` (a `Slowdown` of expect.py); each where it is known."""
    run_ids: tuple[str, ...] = ()
    """Its stored runs."""
    made_utc: str = ""
    started_utc: str | None = None
    ended_utc: str | None = None
    slurm: SlurmJob | None = None
    """None for a job that any agent may claim."""
    damage: str = ""
    """What of its row cannot be read, and why; empty for nothing. A question that cannot be read
    has no names."""


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """One event of a job; events of a job are numbered from 1 without gaps."""

    job_id: int
    sequence: int
    said_utc: str
    kind: str
    """state, message, run, finished, points, rewind, warning, log, eta, edited; or damaged."""
    value: Any


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A program that runs jobs on a host."""

    agent_id: str
    hostname: str
    process: int
    machine_id: str
    version: str
    devices: tuple[str, ...]
    """UUIDs of the GPUs that it may use; the CPU besides."""
    slots: int
    """Most jobs at the same time."""
    seen_s: float
    """Seconds since it was last seen."""
    state: Literal["alive", "lost", "ended"]
