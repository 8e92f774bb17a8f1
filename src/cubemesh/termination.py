"""SIGTERM, as Slurm and systemd send it, and SIGHUP of a closed terminal: the program ends as after
Ctrl-C, its workers first.

Python discards an exception raised while it runs a finalizer or another callback. So the handler's
exception may be lost; long loops call `check`, which raises it again.
"""

from __future__ import annotations

import signal
from typing import NoReturn

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


def _terminate(number: int, frame: object) -> NoReturn:
    global _received
    _received = number
    for again in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_DFL)
    raise Terminated(number)
