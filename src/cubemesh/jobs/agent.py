"""Agent of a host: claims jobs that fit its free devices; each runs in a process of its own,
forked by its forkserver.

    when a job is queued (PostgreSQL), when a child ends, and twice a second (5 s if notified):
        jobs of lost holders are queued again → children that ended are reaped → schedules that are
        due are queued (schedules.py) → free devices: claim
    SIGTERM, SIGINT: no more claims; trainings stop at a checkpoint and are queued again; then it
    ends. A second signal ends the children at once.

A child that was killed is queued again by its agent at once; where the agent was killed, its
children die with it and their leases expire. The device locks (runs/locks.py) have the last word: a
job that finds a device in use by another program is queued again for later.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import cubemesh
from cubemesh.errors import BusyError, StoreError, UsageError
from cubemesh.jobs.child import Assignment
from cubemesh.jobs.feed import prune
from cubemesh.jobs.forkserver import JobProcess, JobServer
from cubemesh.jobs.lease import Lease, LeaseLost
from cubemesh.jobs.queue import LEASE_S, RENEW_S, FreeDevices, JobQueue
from cubemesh.jobs.schedules import Schedules
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Agent, QueuedJob
from cubemesh.jobs.wakeup import LISTENING_S, QUEUE, Wakeup
from cubemesh.machines import probe
from cubemesh.measure.telemetry.gpu_set import visible
from cubemesh.runs.quiet import foreign_load
from cubemesh.runs.run_dirs import RunFolders, default_runs_folder
from cubemesh.store import Store
from cubemesh.untrusted import clean

POLL_S = 0.5
"""Interval of looking for jobs."""
SCHEDULES_S = 30.0
"""Interval of looking for schedules that are due."""
GRACE_S = 60.0
"""Time for trainings to reach a checkpoint when the agent is to end."""
SLURM_GRACE_S = 15.0
"""The same when Slurm ends its allocation, with SIGKILL 30 s after SIGTERM (KillWait)."""
END_S = 20.0
"""Time for a child to end its workers, before it is killed."""
LOG_BYTES = 8192


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What an agent does."""

    slots: int | None = None
    """Most jobs at the same time; None: one per usable core or GPU."""
    only: int | None = None
    """The one job, or sweep, that it runs; it ends with that."""
    once: bool = False
    """End after one job."""
    until_idle: bool = False
    """End when no queued job fits."""
    checkpoints: str | None = None
    """Folder of checkpoints of jobs, shared by the hosts; None: with the store's files."""
    hosts: tuple[str, ...] = ()
    """Hosts that its jobs are distributed over, this one first; empty: this one."""
    grace_s: float = GRACE_S
    allocated: bool = False
    """Whether it runs in the allocation of its Slurm job."""
    lease_s: float = LEASE_S
    poll_s: float = POLL_S
    schedules_s: float = SCHEDULES_S
    listening_s: float = LISTENING_S
    """Interval of looking for jobs while the database notifies of them."""


@dataclass(kw_only=True)
class _Child:
    """A running child."""

    job: QueuedJob
    lease: Lease
    process: JobProcess
    log: IO[bytes]
    pause_file: Path
    gpus: tuple[str, ...] = ()
    cpu: bool = False


@dataclass(kw_only=True)
class JobAgent:
    """An agent of this host on an open store; `run` returns when it has ended, with its server."""

    store: Store
    location: str
    """Of the store, with its password."""
    server: JobServer
    options: AgentOptions = field(default_factory=AgentOptions)
    announce: Callable[[str], None] = lambda text: None
    _children: list[_Child] = field(default_factory=list)
    interrupted: bool = False
    """Whether SIGINT ended it."""
    _signals: int = 0
    _taken: int = 0
    _seen: float = -RENEW_S
    _looked: float | None = None
    """When it looked for schedules that are due."""

    def __post_init__(self) -> None:
        self.queue = JobQueue(self.store.database)
        self.wakeup = Wakeup(self.store.database, QUEUE)
        self._machine = probe()
        gpus = [gpu.uuid for gpu in visible(self._machine.gpus, os.environ)]
        slots = self.options.slots or max(len(gpus), self._machine.cpu.usable_cores or 1)
        self.agent = Agent(
            agent_id=uuid.uuid4().hex[:16],
            hostname=socket.gethostname(),
            process=os.getpid(),
            machine_id=self._machine.machine_id,
            version=cubemesh.__version__,
            devices=tuple(gpus),
            slots=slots,
            seen_s=0.0,
            state="alive",
        )

    def run(self) -> int:
        """Run jobs until a signal, or until the options say; the number of jobs that it took."""
        if self.options.only is not None:
            self.queue.get(self.options.only)
        self.store.save_machine(self._machine)
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before_fd = signal.set_wakeup_fd(waker)
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        folders = RunFolders(default_runs_folder())
        try:
            self._serve(folders.path, wake)
        finally:
            self._end_children(wake)
            self.server.close()
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            os.close(wake)
            os.close(waker)
            folders.close()
            self.wakeup.close()
            with contextlib.suppress(StoreError, BusyError):
                self.queue.register(replace(self.agent, state="ended"))
        return self._taken

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1
        self.interrupted = self.interrupted or number == signal.SIGINT

    def _serve(self, folder: Path, wake: int) -> None:
        while not self._signals:
            try:
                self._seen_now()
                self.queue.expire()
                self._reap()
                self._submit_due()
                while not self._signals and self._claim(folder):
                    pass
                if self._is_done():
                    return
            except (StoreError, BusyError) as error:  # it may be back in a moment
                self.announce(f"The store does not answer: {error}")
            self._wait(wake, self.options.poll_s, jobs=True)

    def _seen_now(self) -> None:
        if time.monotonic() - self._seen >= RENEW_S:
            self.queue.register(self.agent)
            prune(self.queue)
            self._seen = time.monotonic()

    def _submit_due(self) -> None:
        """Queue the schedules that are due, if this host can run them now."""
        now = time.monotonic()
        if self.options.only is not None:
            return
        if self._looked is not None and now - self._looked < self.options.schedules_s:
            return
        self._looked = now
        for job_id in Schedules(self.queue).submit_due(
            self.agent.agent_id, self._free(), self._other_load
        ):
            self.announce(f"job {job_id} is due tonight and was queued")

    def _other_load(self) -> str:
        """What uses this host, jobs and other programs; empty for nothing."""
        if self._children:
            return f"job {self._children[0].job.job_id} ran on {self.agent.hostname}"
        load = foreign_load(visible(self._machine.gpus, os.environ))
        return "" if load.quiet else f"{load.text.rstrip('.')} on {self.agent.hostname}"

    def _is_done(self) -> bool:
        options = self.options
        if self._children:
            return False
        if options.once and self._taken:
            return True
        if options.only is not None:
            job = self.queue.get(options.only)
            return job.state.ended or job.state is State.PAUSED
        return options.until_idle and not self.queue.waiting(self._free(everything=True))

    def _free(self, *, everything: bool = False) -> FreeDevices:
        used = {uuid for child in self._children for uuid in child.gpus}
        hosts = max(1, len(self.options.hosts))
        gpus, used_gpus = len(self.agent.devices) * hosts, len(used) * hosts
        return FreeDevices(
            hostname=self.agent.hostname,
            cpu=everything or not any(child.cpu for child in self._children),
            gpus=gpus if everything else gpus - used_gpus,
            has_gpus=gpus > 0,
        )

    def _claim(self, folder: Path) -> bool:
        """Claim a job and start it; whether there was one."""
        options = self.options
        if len(self._children) >= self.agent.slots or (options.once and self._taken):
            return False
        job = self.queue.claim(
            self.agent.agent_id,
            self._free(),
            only=options.only,
            lease_s=options.lease_s,
            damaged=lambda job_id, why: self.announce(f"job {job_id} failed: {why}"),
        )
        if job is None:
            return False
        self._taken += 1
        lease = Lease(queue=self.queue, job_id=job.job_id, fence=job.fence, seconds=options.lease_s)
        try:
            self._children.append(self._start(job, lease, folder))
        except OSError as error:
            self.announce(f"Job {job.job_id} could not start: {error.strerror}.")
            lease.fault(f"Its process could not start on {self.agent.hostname}: {error.strerror}.")
            return False
        self.announce(f"job {job.job_id} started: {job.name}")
        return True

    def _start(self, job: QueuedJob, lease: Lease, folder: Path) -> _Child:
        used = {uuid for child in self._children for uuid in child.gpus}
        wants, gpus = job.wants, tuple[str, ...]()
        if self.agent.devices and wants.device in ("gpu", "any"):
            free = [uuid for uuid in self.agent.devices if uuid not in used]
            gpus = tuple(free[: wants.devices])
        own = folder / f"job-{job.job_id}-{job.fence}"
        own.mkdir()
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        roots = self.options.checkpoints
        root = self.store.files / "jobs" if roots is None else Path(roots).expanduser().absolute()
        given = Assignment(
            store=self.location,
            job_id=job.job_id,
            fence=job.fence,
            lease_s=lease.seconds,
            pause_file=str(own / "pause"),
            checkpoints=str(root / f"job-{job.job_id}"),
            hosts=",".join(self.options.hosts),
        )
        log = open(own / "log", "w+b")  # noqa: SIM115 - open until the child is reaped
        try:
            if not self.server.alive:  # it was killed
                self.server.close()
                self.server = JobServer.spawn()
            process = self.server.start(given, environment, log)
        except OSError:
            log.close()
            raise
        return _Child(
            job=job,
            lease=lease,
            process=process,
            log=log,
            pause_file=own / "pause",
            gpus=gpus,
            cpu=not gpus and wants.device != "none",
        )

    def _reap(self) -> None:
        """Queue the jobs again whose children ended without writing how."""
        self.server.poll()
        for child in [c for c in self._children if c.process.exit_code is not None]:
            with contextlib.suppress(LeaseLost):  # its end is written, or it is another's
                self._settle(child)
            self._children.remove(child)
            child.log.close()
            state = self.queue.get(child.job.job_id).state
            self.announce(f"job {child.job.job_id} {state}")

    def _settle(self, child: _Child) -> None:
        child.lease.control()  # LeaseLost where its end is written
        child.log.seek(0, os.SEEK_END)
        child.log.seek(max(0, child.log.tell() - LOG_BYTES))
        text = clean(child.log.read().decode(errors="replace"), LOG_BYTES)
        if text.strip():
            child.lease.renew(events=[("log", {"text": text})])
        code = child.process.exit_code
        assert code is not None
        how = f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}"
        if child.process.failure:
            how = f"could not start: {child.process.failure}"
        child.lease.fault(f"Its process on {self.agent.hostname} {how}.")

    def _end_children(self, wake: int) -> None:
        """End the children: at a checkpoint, then by SIGTERM, then by SIGKILL."""
        for child in self._children:
            child.pause_file.touch()
        grace_s = self.options.grace_s
        if self.options.allocated and not self.interrupted:
            grace_s = min(grace_s, SLURM_GRACE_S)
        steps: Sequence[tuple[float, int | None]] = (
            (grace_s, None),
            (END_S, signal.SIGTERM),
            (END_S, signal.SIGKILL),
        )
        for limit_s, number in steps:
            for child in self._children:
                if number is not None:
                    self.server.send_signal(child.process, number)
            deadline = time.monotonic() + limit_s
            while self._children and time.monotonic() < deadline:
                with contextlib.suppress(StoreError, BusyError):
                    self._reap()
                if self._signals > 1 and number is None:
                    break
                if self._children:
                    self._wait(wake, self.options.poll_s)

    def _wait(self, wake: int, seconds: float, *, jobs: bool = False) -> None:
        """Wait until a child ends, or a signal comes, or with `jobs` one is queued, at most so
        long."""
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            if self.server.alive:
                selector.register(self.server.connection, selectors.EVENT_READ)
            if jobs and self.wakeup.listen():
                selector.register(self.wakeup, selectors.EVENT_READ)
                seconds = self.options.listening_s
            selector.select(seconds)
            self.wakeup.pending()
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 1024)


def check_slots(slots: int | None) -> None:
    """UsageError for a number of slots below 1."""
    if slots is not None and slots < 1:
        raise UsageError(f"--slots {slots}: give 1 or more.")
