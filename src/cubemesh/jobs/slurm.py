"""Jobs in Slurm: each runs an agent for one job of the queue, in an allocation of its own.

    submit --slurm ─▶ queued, `slurm` has a name ─▶ sbatch: `cubemesh agent --only JOB`
                                                       │ the agent's lease makes it running
    stop, pause ─▶ state in the store, scancel         ▼
    resume ─▶ sbatch again                          ends with its job

The lease decides what runs, not Slurm. squeue, asked by the name, says only why a job waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from cubemesh.errors import CubemeshError, UsageError
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.values import QueuedJob, SlurmJob
from cubemesh.runs import slurm
from cubemesh.store.location import Location

ASK_S = 15.0
"""What squeue answered is used for so long."""
_WAITING = "Slurm has no job of it any more; `cubemesh jobs resume {0}` submits it again."
_ENDED = "Slurm ended its job"
_HELD = (
    "Slurm has no job of it any more. When its lease has expired, `cubemesh jobs resume {0}` "
    "submits it again."
)


def check_location(location: Location) -> str:
    """The store as a job script names it. UsageError for a URL with a password, which every user
    of the cluster could read in the script or in the list of processes."""
    if location.path is not None:
        return str(location.path)
    if location.url.password:
        raise UsageError(
            "The URL of the store has a password, which a job script would show. Leave it out of "
            "--store and put it into ~/.pgpass, which the nodes of the cluster read too."
        )
    return location.url.render_as_string(hide_password=False)


def submit_each(queue: JobQueue, job: QueuedJob) -> None:
    """Submit a job of the queue to Slurm, of a sweep each of its jobs. Where sbatch refuses, those
    that were not submitted are stopped with its message, and CubemeshError has it."""
    waiting = [one for one in _each(queue, job) if one.slurm is not None]
    for place, one in enumerate(waiting):
        assert one.slurm is not None
        try:
            store = check_location(queue.database.location)
            command = ["agent", "--only", str(one.job_id), "--store", store]
            text = slurm.own_script(one.slurm.resources, command, one.slurm.name)
            number = slurm.submit(text)
        except CubemeshError as error:
            for left in waiting[place:]:
                queue.stop(left.job_id, why=str(error))
            raise
        queue.set_slurm(one.job_id, number)
    _listed.forget()


def pause(queue: JobQueue, job_id: int, *, who: str) -> None:
    """As `JobQueue.pause`; what waits in Slurm is cancelled there."""
    before = _each(queue, queue.get(job_id))
    queue.pause(job_id, who=who)
    _cancel(queue, [one for one in before if one.state is State.QUEUED])


def stop(queue: JobQueue, job_id: int, *, at_checkpoint: bool = False, who: str) -> None:
    """As `JobQueue.stop`; what waits in Slurm, or is stopped at once, is cancelled there."""
    before = _each(queue, queue.get(job_id))
    queue.stop(job_id, at_checkpoint=at_checkpoint, who=who)
    ends = [one for one in before if one.state is State.QUEUED or not at_checkpoint]
    _cancel(queue, [one for one in ends if not one.state.ended])


def resume(queue: JobQueue, job_id: int, *, who: str) -> None:
    """As `JobQueue.resume`; a job of Slurm is submitted again, also one that is queued and that
    Slurm does not have any more."""
    queue.expire()
    job = queue.get(job_id)
    each = _each(queue, job)
    missing = []
    if any(one.slurm for one in each):
        check_location(queue.database.location)
        queued = [one for one in each if one.slurm and one.state is State.QUEUED]
        known = slurm.listed([one.slurm.name for one in queued if one.slurm]) if queued else {}
        missing = [one for one in queued if one.slurm and one.slurm.name not in known]
        if job.kind == "question" and queued and not missing:
            assert job.slurm is not None
            number = known[job.slurm.name].number
            raise UsageError(f"Job {job_id} is queued, and Slurm has it as job {number}.")
    if job.kind == "sweep" or not missing:
        queue.resume(job_id, who=who)
    before = {one.job_id: one.state for one in each}
    again = [
        now
        for now in _each(queue, queue.get(job_id))
        if now.state is State.QUEUED and before[now.job_id] is not State.QUEUED
    ]
    for one in (*missing, *again):
        submit_each(queue, one)


def explained(jobs: Iterable[QueuedJob]) -> list[QueuedJob]:
    """The jobs, with `why` of those that Slurm should have: what they wait for there."""
    found = list(jobs)
    asked = {
        one.slurm.name
        for one in found
        if one.slurm and one.slurm.number and (one.state is State.QUEUED or one.state.held)
    }
    if not asked:
        return found
    try:
        known = _listed.of(asked)
    except CubemeshError as error:
        return [_with(one, f"In Slurm as job {one.slurm.number}. {error}")
                if one.slurm and one.slurm.name in asked and one.state is State.QUEUED
                else one for one in found]  # fmt: skip
    return [
        _with(one, _reason(one, one.slurm, known.get(one.slurm.name)))
        if one.slurm and one.slurm.name in asked
        else one
        for one in found
    ]


def _reason(job: QueuedJob, own: SlurmJob, known: slurm.Listed | None) -> str:
    if known is None:
        return (_HELD if job.state.held else _WAITING).format(job.job_id)
    if job.state.held:
        return ""
    if known.state == "PENDING":
        hour = known.start.removesuffix(":00").replace("T", " ")
        start = "" if known.start in ("", "N/A") else f"; expected start {hour}"
        reason = "just submitted" if known.reason in ("", "None") else known.reason
        return f"Slurm job {known.number} waits: {reason}{start}."
    return f"Slurm job {known.number} is {known.state.lower()}; its agent has not claimed it yet."


def _with(job: QueuedJob, reason: str) -> QueuedJob:
    return replace(job, why=" ".join(filter(None, (job.why, reason))))


def entered_allocation(queue: JobQueue, job_id: int, environment: Mapping[str, str]) -> None:
    """Queue a job again that was stopped when Slurm ended its job, and which Slurm has requeued, as
    after a preemption."""
    job = queue.get(job_id)
    if not number_in(job, environment) or environment.get("SLURM_RESTART_COUNT", "0") == "0":
        return
    if job.state is State.STOPPED and job.why.startswith(_ENDED):
        queue.resume(job_id)


def left_allocation(
    queue: JobQueue, job_id: int, environment: Mapping[str, str], *, interrupted: bool
) -> str:
    """What follows when the agent of a Slurm job was ended before its job: at the time limit
    (`interrupted`) the Slurm job is requeued, up to `restarts` times; else Slurm has ended it, and
    the job is stopped. While a job ends, Slurm does not report whether it requeues it; if so, see
    `entered_allocation`. A sentence, or empty."""
    job = queue.get(job_id)
    number = number_in(job, environment)
    if not number or job.state is not State.QUEUED:
        return ""
    if not interrupted:
        why = f"{_ENDED} {number}: scancel, preemption or its time limit."
        queue.stop(job_id, why=why)
        return why
    count = environment.get("SLURM_RESTART_COUNT", "0")
    if not count.isdecimal() or int(count) >= job.restarts:
        why = f"Its Slurm job {number} reached its time limit {job.restarts + 1} times: see --time."
        queue.stop(job_id, why=why)
        return why
    slurm.requeue(number)
    return f"Slurm job {number} reached its time limit and is requeued."


def number_in(job: QueuedJob, environment: Mapping[str, str]) -> int:
    """The number of the Slurm job of a job, whose processes have this environment; 0 elsewhere."""
    number = environment.get("SLURM_JOB_ID", "")
    own = job.slurm is not None and environment.get("SLURM_JOB_NAME") == job.slurm.name
    return int(number) if own and number.isdecimal() else 0


def resources_of(queue: JobQueue, job: QueuedJob) -> slurm.Resources | None:
    """The resources of a job in Slurm, or of the jobs of a sweep; None outside of Slurm."""
    return next((one.slurm.resources for one in _each(queue, job) if one.slurm), None)


def _each(queue: JobQueue, job: QueuedJob) -> Sequence[QueuedJob]:
    return [queue.get(child) for child in job.children] if job.kind == "sweep" else [job]


def _cancel(queue: JobQueue, jobs: Iterable[QueuedJob]) -> None:
    """Cancel the Slurm jobs. Where that fails, an agent that starts there finds its job ended."""
    for one in jobs:
        if one.slurm is None or one.slurm.number is None:
            continue
        try:
            slurm.cancel([one.slurm.name])
        except CubemeshError as error:
            queue.say(one.job_id, f"Slurm job {one.slurm.number} was not cancelled: {error}")
    _listed.forget()


class _Listed:
    """What squeue answered lately. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._asked: set[str] = set()
        self._found: dict[str, slurm.Listed] = {}
        self._until = 0.0

    def of(self, names: set[str]) -> dict[str, slurm.Listed]:
        """The jobs of these names that Slurm has."""
        with self._lock:
            if not names <= self._asked or self._clock() >= self._until:
                self._found, self._asked = slurm.listed(sorted(names)), set(names)
                self._until = self._clock() + ASK_S
            return self._found

    def forget(self) -> None:
        """Ask again."""
        with self._lock:
            self._asked = set()


_listed = _Listed()
