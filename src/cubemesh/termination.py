"""SIGTERM, as Slurm and systemd send it, and SIGHUP of a closed terminal: the program ends as after
Ctrl-C, its workers first.

Python discards an exception raised while it runs a finalizer or another callback. So the handler's
exception may be lost; long loops call `check`, which raises it again.

OpenBLAS, which numpy loads, sends SIGINT to its own process where it cannot start its threads. That
is no Ctrl-C: `can_start_threads` tells them apart.
"""

from __future__ import annotations

import signal
import threading
from typing import NoReturn

NO_THREAD = "no thread can be started"
PROCESS_LIMIT = (
    "The limit of processes is reached. Raise pids.max of the control group, or ulimit -u."
)
_received: int | None = None


class Terminated(SystemExit):
    """A signal ends the program; the exit code is 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def handle_signals() -> None:
    """End the program at the first SIGTERM or SIGHUP; a second one ends it at once. SIGHUP stays
    ignored under nohup."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)


def check() -> None:
    """Raise `Terminated` if a signal has been received."""
    if _received is not None:
        raise Terminated(_received)


def can_start_threads(count: int = 1) -> bool:
    """Whether so many more can run at a time; False where the limit of processes is reached."""
    ended = threading.Event()
    started = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=ended.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        ended.set()
        for thread in started:
            thread.join()
    return True


def _terminate(number: int, frame: object) -> NoReturn:
    global _received
    _received = number
    for again in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_DFL)
    raise Terminated(number)
