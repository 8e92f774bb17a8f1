"""Heartbeat of a rank: an event every second, from its own thread.

A process that was stopped (SIGSTOP), whose host is down, or whose native code never releases
Python's lock has no heartbeat; one that computes for minutes, or waits for another rank, has. The
runner checks it (runs/watch.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cubemesh.worker.report.events import EventLog

EVERY_S = 1.0


@contextmanager
def heartbeat(log: EventLog) -> Iterator[None]:
    """Log `alive` every second within a `with` block."""
    done = threading.Event()

    def beat() -> None:
        while not done.is_set():
            log.alive()
            done.wait(EVERY_S)

    thread = threading.Thread(target=beat, name="cubemesh-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
