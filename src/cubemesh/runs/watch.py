"""Following one worker from outside: its events as they come, its end, its time limit.

origin ── server forks ── events …… ── the worker ends        → how it ended
                              └─ time limit passes ── SIGUSR1: it writes its stacks
                                                   ── a moment later SIGKILL
"""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from pathlib import Path
from typing import Any

from cubemesh.runs.endings import Ending
from cubemesh.runs.forkserver import Forkserver, ServerDied
from cubemesh.runs.observer import Observer, Progress
from cubemesh.worker.events import EventReader, events_path
from cubemesh.worker.job import Job
from cubemesh.worker.memory import oom_kills
from cubemesh.worker.ranks import EXITS_FILE

POLL_S = 0.1
"""How often events are looked for; the end of a worker is heard at once."""

UNKILLABLE_S = 30.0
"""How long after its time limit a worker is given up that does not even die."""

STACKS_S = 1.0
"""How long a worker may take to write its stacks."""


def watch(server: Forkserver, job: Job, observer: Observer) -> tuple[list[dict[str, Any]], Ending]:
    """Run `job` in a worker of a server that is ready, to its end; its events and how it ended.

    `job.origin` is when the run began, from which its time limit counts.
    """
    assert job.origin is not None
    watcher = _Watcher(job, observer)
    kills_before = oom_kills()
    stacks, limit_s = "", None
    server_died = False
    try:
        pid = server.run(job.write())
        exit_code = None
        while exit_code is None:
            left_s = job.origin + job.spec.effort.time_limit_s - time.perf_counter()
            if left_s <= 0 and limit_s is None:
                limit_s = job.spec.effort.time_limit_s
                stacks = _ask_for_stacks(server, pid, job.stacks_path)
                server.signal(pid, signal.SIGKILL)
            wait_s = POLL_S if limit_s is not None else max(0.0, min(POLL_S, left_s))
            exit_code = server.exit_code(wait_s)
            watcher.look()
            if limit_s is not None and left_s < -UNKILLABLE_S:
                # It hangs inside the kernel (a driver does that) and cannot be waited for.
                server.close()
                exit_code = -signal.SIGKILL
    except ServerDied as death:
        exit_code, server_died = death.exit_code, True
        limit_s = death.limit_s
        watcher.look()
    kills_after = oom_kills()
    failed = _failed_ranks(Path(job.folder, EXITS_FILE))
    ending = Ending(
        exit_code=exit_code,
        elapsed_s=time.perf_counter() - job.origin,
        time_limit_s=limit_s,
        stacks=stacks,
        oom_kills=(kills_after or 0) - (kills_before or 0),
        output=_text(job.agent_output_path if job.spec.placement.devices > 1 else job.output_path),
        failed_ranks=failed,
        rank_outputs={rank: _text(_output_of(job, rank)) for rank in failed},
        phase=watcher.phase,
        steps=watcher.steps,
        server_died=server_died,
    )
    return watcher.events, ending


class _Watcher:
    """The events of all ranks so far, and where the run stands by those of the first."""

    def __init__(self, job: Job, observer: Observer) -> None:
        folder, ranks = Path(job.folder), job.spec.placement.devices
        self._readers = [EventReader(events_path(folder, rank)) for rank in range(ranks)]
        self._observer = observer
        self.events: list[dict[str, Any]] = []
        self.phase = "start"
        self.steps = 0

    def look(self) -> None:
        """Read what is new, and tell the observer."""
        for rank, reader in enumerate(self._readers):
            for event in reader.read():
                self.events.append({**event, "of_rank": rank})
                if rank == 0:
                    self._follow(event)

    def _follow(self, event: dict[str, Any]) -> None:
        if event["event"] == "enter":
            self.phase, self.steps = event["name"], 0
            self._observer.progress(Progress(phase=self.phase))
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
            self._observer.progress(progress)


def _ask_for_stacks(server: Forkserver, pid: int, path: Path) -> str:
    """Where every thread of the worker stands; nothing when it cannot answer any more."""
    server.signal(pid, signal.SIGUSR1)
    deadline = time.perf_counter() + STACKS_S
    before, text = "", ""
    while time.perf_counter() < deadline and (not text or text != before):
        time.sleep(0.05)
        before, text = text, _text(path)
    return text


def _failed_ranks(path: Path) -> dict[int, int]:
    """What the agent of a run on several devices has left."""
    text = _text(path)
    return {int(rank): code for rank, code in json.loads(text).items()} if text else {}


def _output_of(job: Job, rank: int) -> Path:
    return dataclasses.replace(job, rank=rank).output_path


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
