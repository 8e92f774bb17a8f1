"""Supervision of one worker: follows its events, enforces the time limit, detects hangs.

origin ── server forks ── events …… ── the worker ends        → its exit status
                              ├─ time limit passes ── SIGUSR1: every rank writes its stacks
                              │                    ── a moment later SIGKILL
                              ├─ a rank has no heartbeat for `heartbeat_timeout_s`: the same
                              └─ the server, or the agent of the ranks, is stopped for so long:
                                 the same, and the signals go to the ranks themselves
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

from cubemesh import termination
from cubemesh.cgroups import oom_kills
from cubemesh.runs.exit_status import WorkerExit
from cubemesh.runs.forkserver_client import Forkserver, ServerDied
from cubemesh.runs.progress import EventObserver, Observer, Progress
from cubemesh.runs.stopped import StoppedTime, kill_group, signal_ranks
from cubemesh.worker.launch.ranks import EXITS_FILE, parse_exit_codes
from cubemesh.worker.report.events import EventReader, events_path
from cubemesh.worker.run.job_file import Job

POLL_S = 0.1
"""Interval of reading events; the end of a worker is noticed at once."""

UNKILLABLE_S = 30.0
"""Time after SIGKILL at which a worker that does not die is abandoned."""

REPORT_S = 5.0
"""Longest interval of reports to the observer."""
STALLED_S = 2.0
"""Where so long passed between two polls, this process itself was suspended, and heartbeats may
have been missed."""

OUTPUT_BYTES = 1 << 20
"""Bytes at the end of a rank's output that are read."""
STACKS_S = 1.0
"""Time limit for a worker to write its stacks."""


def watch(
    server: Forkserver, job: Job, observer: Observer
) -> tuple[list[dict[str, Any]], WorkerExit]:
    """Run `job` in a worker of a ready server to its end; its events and exit status. The time
    limit counts from `job.origin`."""
    assert job.origin is not None
    watcher = _Watcher(job, observer)
    kills_before = oom_kills()
    stacks: dict[int, str] = {}
    silent: dict[int, float] = {}
    limit_s, ended = None, None
    server_died = False
    stopped, stopped_s = "", 0.0
    most_s = job.spec.budget.heartbeat_timeout_s
    try:
        pid = server.run(job.write(), most_s)
        worker = StoppedTime(pid)
        exit_code = None
        while exit_code is None:
            termination.check()
            left_s = job.origin + job.spec.budget.time_limit_s - time.perf_counter()
            silent = silent or watcher.silent(most_s)
            server_s, worker_s = server.stopped.seconds(), worker.seconds()
            if ended is None and max(server_s, worker_s) > most_s:
                stopped = server_name(server) if server_s > most_s else _worker_name(pid, job)
                stopped_s, silent = max(server_s, worker_s), {}
                observer.message(f"{stopped} was stopped (SIGSTOP); the run is ended.")
            if ended is None and (left_s <= 0 or silent or stopped):
                limit_s = None if silent or stopped else job.spec.budget.time_limit_s
                stacks = _request_stacks(server, pid, job, stopped=server_s > 0 or worker_s > 0)
                server.signal(pid, signal.SIGKILL)
                ended = time.perf_counter()
                if server_s > 0:  # it cannot pass the signal on, or report the end
                    kill_group(pid)
                    server.close()
                    exit_code = -signal.SIGKILL
                    watcher.poll()
                    break
            wait_s = POLL_S if ended is not None else max(0.0, min(POLL_S, left_s))
            exit_code = server.exit_code(wait_s)
            watcher.poll()
            if ended is not None and time.perf_counter() - ended > UNKILLABLE_S:
                # It hangs inside the kernel (in a driver) and cannot be waited for.
                server.close()
                exit_code = -signal.SIGKILL
    except ServerDied as death:
        exit_code, server_died = death.exit_code, True
        limit_s, stopped_s = death.limit_s, death.stopped_s
        stopped = server_name(server) if stopped_s else ""
        watcher.poll()
    kills_after = oom_kills()
    failed = _failed_ranks(Path(job.folder, EXITS_FILE))
    agent = job.agent_output_path
    ending = WorkerExit(
        exit_code=exit_code,
        elapsed_s=time.perf_counter() - job.origin,
        time_limit_s=limit_s,
        stacks=stacks.get(0, ""),
        rank_stacks=stacks,
        silent=silent,
        stopped=stopped,
        stopped_s=stopped_s,
        oom_kills=(kills_after or 0) - (kills_before or 0),
        output=_text(agent if agent.exists() else job.output_path),
        failed_ranks=failed,
        rank_outputs={r: _text(dataclasses.replace(job, rank=r).output_path) for r in failed},
        phase=watcher.phase,
        steps=watcher.steps,
        server_died=server_died,
        folder=job.folder,
    )
    return [*watcher.events, *watcher.refusals()], ending


class _Watcher:
    """Events of all ranks so far, and the progress of the first."""

    def __init__(self, job: Job, observer: Observer) -> None:
        folder, ranks = Path(job.folder), job.spec.placement.devices
        self._hosts = job.spec.placement.hosts
        self._readers = [EventReader(events_path(folder, rank), rank) for rank in range(ranks)]
        self._observer = observer
        self.events: list[dict[str, Any]] = []
        self.phase = "start"
        self.steps = 0
        self._last_heartbeat: dict[int, float] = {}
        self._folder, self._disk_full = folder, False
        self._changed = [reader.changed() for reader in self._readers]
        self._unwritten_changes = [0] * ranks
        self._last_poll = self._reported = time.monotonic()
        self._latest = Progress(phase=self.phase)

    def poll(self) -> None:
        """Read new events, and report progress to the observer."""
        now = time.monotonic()
        if now - self._last_poll > STALLED_S:  # this process was suspended
            self._last_heartbeat = dict.fromkeys(self._last_heartbeat, now)
        self._last_poll = now
        for rank, reader in enumerate(self._readers):
            self._look(rank, now)
            for event in reader.read():
                if event["event"] == "alive" or rank in self._last_heartbeat:
                    self._last_heartbeat[rank] = now
                if event["event"] == "alive":
                    continue
                self.events.append({**event, "of_rank": rank})
                if isinstance(self._observer, EventObserver):
                    self._observer.worker_event(self.events[-1])
                if event["event"] == "outcome":
                    self._last_heartbeat.pop(rank, None)  # its last event
                if rank == 0:
                    self._follow(event)
        if now - self._reported >= REPORT_S:
            self._report(self._latest)

    def _look(self, rank: int, now: float) -> None:
        """Take a file that changed without growing as a heartbeat on a full disk."""
        before, after = self._changed[rank], self._readers[rank].changed()
        self._changed[rank] = after
        if before == after:
            return
        if before[0] != after[0]:
            self._unwritten_changes[rank] = 0
            return
        self._unwritten_changes[rank] += 1
        if rank in self._last_heartbeat:
            self._last_heartbeat[rank] = now
        # The first may be a write that is under way: the time changes before the size.
        if self._unwritten_changes[rank] > 1 and not self._disk_full:
            self._disk_full = True
            self._observer.message(
                f"The disk of the run's folder, {self._folder}, is full. The run continues; its "
                "results wait for room."
            )

    def silent(self, most_s: float) -> dict[int, float]:
        """Ranks with heartbeats whose last one is older than `most_s` → seconds since."""
        now = self._last_poll
        return {r: now - last for r, last in self._last_heartbeat.items() if now - last > most_s}

    def refusals(self) -> list[dict[str, Any]]:
        """A warning for each rank of which events were refused."""
        found = []
        for rank, reader in enumerate(self._readers):
            event = reader.refusals(f"rank {rank}{self._on_host(rank)}")
            if event is not None:
                found.append({**event, "of_rank": rank})
        return found

    def _on_host(self, rank: int) -> str:
        ranks_per_host = len(self._readers) // max(1, len(self._hosts))
        return f" on {self._hosts[rank // ranks_per_host]}" if self._hosts else ""

    def _follow(self, event: dict[str, Any]) -> None:
        if event["event"] == "enter":
            self.phase, self.steps = event["name"], 0
            self._report(Progress(phase=self.phase))
        elif event["event"] == "window" and event["window"]["phase"] == self.phase:
            self.steps += event["window"]["steps"]
        elif event["event"] == "progress":
            self.phase, self.steps = event["phase"], event["steps"]
            progress = Progress(
                phase=self.phase,
                steps=self.steps,
                step_s=event["step_s"],
                fraction=event["fraction"],
                note=event.get("note", ""),
            )
            self._report(progress)

    def _report(self, progress: Progress) -> None:
        """Report progress, also the same again: long phases such as compiling have no events."""
        self._latest, self._reported = progress, time.monotonic()
        self._observer.progress(progress)


def server_name(server: Forkserver) -> str:
    """The forkserver in a message."""
    return f"the worker's server (process {server.pid})"


def _worker_name(pid: int, job: Job) -> str:
    """The worker in a message; of several ranks it is the agent that starts them."""
    what = "the agent of the ranks" if job.agent_output_path.exists() else "the worker"
    return f"{what} (process {pid})"


def _request_stacks(
    server: Forkserver, pid: int, job: Job, *, stopped: bool = False
) -> dict[int, str]:
    """Stacks of each rank's threads; without ranks that do not respond. Where the process that
    passes the request on is `stopped`, the ranks of this host get it directly."""
    if not stopped:
        server.signal(pid, signal.SIGUSR1)
    elif not job.spec.placement.hosts:
        signal_ranks(pid, is_agent=job.agent_output_path.exists())
    return _stacks(job)


def _stacks(job: Job) -> dict[int, str]:
    """What ranks have written when all have, or after `STACKS_S`."""
    deadline = time.perf_counter() + STACKS_S
    ranks = range(job.spec.placement.devices)
    paths = [dataclasses.replace(job, rank=rank).stacks_path for rank in ranks]
    before: list[str] = []
    texts = [""] * len(paths)
    while time.perf_counter() < deadline and (not all(texts) or texts != before):
        time.sleep(0.05)
        before, texts = texts, [_text(path) for path in paths]
    return {rank: text for rank, text in enumerate(texts) if text}


def _failed_ranks(path: Path) -> dict[int, int]:
    """Exit codes of failed ranks, which the agent of a run on several devices writes."""
    try:
        return parse_exit_codes(_text(path))
    except ValueError:  # there is none, or a full disk cut it off
        return {}


def _text(path: Path) -> str:
    """The last `OUTPUT_BYTES` of a file of a run, as text; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - OUTPUT_BYTES))
            return file.read(OUTPUT_BYTES).decode(errors="replace")
    except OSError:
        return ""
