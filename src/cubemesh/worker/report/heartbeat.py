"""Is a rank still there? It says so once a second, from a thread of its own.

A process that was stopped (SIGSTOP), or whose host is gone, says nothing more, and neither does one
whose native code never gives Python's lock back; one that computes for minutes, or waits for
another rank, goes on saying it. The runner listens (runs/watch.py).
"""

from __future__ import annotations

import threading
from types import TracebackType

from cubemesh.worker.report.events import EventLog

EVERY_S = 1.0


class Heartbeat:
    """Within it, the log says `alive` every second."""

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
