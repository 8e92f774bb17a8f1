"""Heartbeat of a rank: an event every second, from its own thread.

A process that was stopped (SIGSTOP), whose host is down, or whose native code never releases
Python's lock has no heartbeat; one that computes for minutes, or waits for another rank, has. The
runner checks it (runs/watch.py).
"""

from __future__ import annotations

import threading
from types import TracebackType

from cubemesh.worker.report.events import EventLog

EVERY_S = 1.0


class Heartbeat:
    """Logs `alive` every second within a `with` block."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="cubemesh-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._done.is_set():
            self._log.alive()
            self._done.wait(EVERY_S)
