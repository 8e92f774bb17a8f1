"""Run-queue delay: how long a thread was ready to run and had no processor.

From /proc/<pid>/task/<tid>/schedstat: nanoseconds on a processor and nanoseconds on a run queue
(the kernel's Documentation/scheduler/sched-stats.rst). The first is updated at clock ticks only, so
the calling thread's own CPU time is read from its CPU clock. What a hypervisor steals is in neither
(CONFIG_PARAVIRT_TIME_ACCOUNTING):

    wall time = on a processor + run-queue delay + stolen + blocked
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

_PER_S = 1e9
_BYTES = 128
NEVER = -1
"""In place of a file that cannot be opened."""


class ThreadTime(NamedTuple):
    """Counters of one thread, in seconds."""

    ran_s: float
    """On a processor."""
    delayed_s: float
    """On a run queue; 0 where the kernel does not count it."""


class OwnThread:
    """Reads the calling thread, in some microseconds."""

    def __init__(self, file: str = "/proc/thread-self/schedstat") -> None:
        try:
            self._file = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = NEVER

    @property
    def counts_delay(self) -> bool:
        """Whether this kernel counts run-queue delay."""
        return self._file != NEVER

    def read(self) -> ThreadTime:
        """Counters since the thread began. Call it in the thread that made this."""
        delayed_ns = 0
        if self._file != NEVER:
            delayed_ns = int(os.pread(self._file, _BYTES, 0).split()[1])
        return ThreadTime(time.thread_time(), delayed_ns / _PER_S)

    def __del__(self) -> None:
        if self._file != NEVER:
            os.close(self._file)


def threads_of_process(folder: str = "/proc/self/task") -> dict[int, ThreadTime]:
    """Counters of every thread of this process by its number; empty where they are not counted."""
    found = {}
    try:
        numbers = os.listdir(folder)
    except OSError:
        return {}
    for number in numbers:
        try:
            with open(f"{folder}/{number}/schedstat", "rb") as file:
                ran_ns, delayed_ns, _ = map(int, file.read().split())
        except (OSError, ValueError):  # it has ended, or the kernel has no such file
            continue
        found[int(number)] = ThreadTime(ran_ns / _PER_S, delayed_ns / _PER_S)
    return found
