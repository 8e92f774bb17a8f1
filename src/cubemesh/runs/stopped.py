"""Stopped processes of a run: those that a signal (SIGSTOP) or a debugger has stopped.

A rank has a heartbeat. The forkserver and the agent of a run's ranks have none, and while one of
them is stopped the ranks continue, but nothing reports their end. The kernel knows which processes
are stopped, so the runner asks it once a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import psutil

EVERY_S = 1.0
"""Interval of asking for the state."""
SUSPENDED_S = 2.0
"""Where so long passed between two calls, this process itself was suspended, perhaps with the other
one; the time is then counted again."""
STATES = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class StoppedTime:
    """How long a process has been stopped."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.pid = pid
        self._clock = clock
        self._since: float | None = None
        self._called = self._asked = -SUSPENDED_S
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)

    def seconds(self) -> float:
        """Seconds for which it has been stopped; 0 while it runs, and once it has ended. To be
        called several times a second."""
        now = self._clock()
        if now - self._called > SUSPENDED_S:
            self._since = None
            self._asked = now - EVERY_S
        self._called = now
        if now - self._asked >= EVERY_S:
            self._asked = now
            if not self._is_stopped():
                self._since = None
            elif self._since is None:
                self._since = now
        return 0.0 if self._since is None else now - self._since

    def _is_stopped(self) -> bool:
        try:
            return self._process is not None and self._process.status() in STATES
        except psutil.Error:
            return False


def signal_ranks(worker: int, *, is_agent: bool) -> None:
    """Request stacks from the ranks themselves: from the processes that the agent has started, or
    from the worker. The process that would pass the request on is stopped, so it reaps none of
    them, and their numbers are theirs."""
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        ranks = [child.pid for child in psutil.Process(worker).children()] if is_agent else [worker]
        for rank in ranks:
            os.kill(rank, signal.SIGUSR1)


def kill_group(worker: int) -> None:
    """Kill a worker, whose server is stopped and reaps it not, and everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
