"""Host telemetry: CPU time and memory of this process tree, and CPU time of the machine.

A `Reading` has counters that only grow, so any span between two readings can be evaluated later.
The kernel's files are read directly: asking psutil for a process's children reads every process of
the machine, which takes milliseconds and, in Python, the measuring thread's interpreter lock.
Sources: proc_stat(5), proc_pid_stat(5), proc_pid_statm(5), proc_tid_children(5).
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READ_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counters at one moment. CPU times are seconds summed over processors."""

    time_s: float
    """A reading of `time.perf_counter()`."""
    tree_cpu_s: float
    """Used by this process and its descendants, including ended ones."""
    resident_bytes: int
    """Memory of the tree; shared pages count once for each process."""
    cores_busy_s: float
    """Used by any program on the processors this process may run on, including time stolen by the
    hypervisor."""
    host_busy_s: float
    """Used by any program on all processors of the machine."""
    stolen_s: float = 0.0
    """Of `cores_busy_s`, what the hypervisor stole."""


class Reader(Protocol):
    """A source of readings."""

    cores: int
    """Processors this process may run on."""
    host_cores: int
    """Processors of the machine."""

    def read(self) -> Reading:
        """Current counters."""


class HostReader:
    """Reads this machine."""

    def __init__(self) -> None:
        self._own_cores = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        self.cores = len(self._own_cores)
        self.host_cores = len(_times_by_core())

    def read(self) -> Reading:
        """See `Reader.read`."""
        now = time.perf_counter()
        cores = _times_by_core()
        own = [cores[name] for name in self._own_cores if name in cores]
        children = list(_descendants(os.getpid()))
        used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return Reading(
            time_s=now,
            tree_cpu_s=sum(u.ru_utime + u.ru_stime for u in used) + sum(map(_cpu_s, children)),
            resident_bytes=sum(map(_resident_bytes, [os.getpid(), *children])),
            cores_busy_s=sum(busy_s for busy_s, _ in own),
            host_busy_s=sum(busy_s for busy_s, _ in cores.values()),
            stolen_s=sum(stolen_s for _, stolen_s in own),
        )


def _times_by_core() -> dict[str, tuple[float, float]]:
    """Seconds (busy, stolen) of each processor (`cpu0`, …) since the machine started."""
    times = {}
    with open("/proc/stat") as file:
        next(file)  # the sum over all
        for line in file:
            core, *fields = line.split(maxsplit=9)
            if not core.startswith("cpu"):
                break
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            ticks = user + nice + system + irq + softirq + steal
            times[core] = ticks / _TICKS_PER_S, steal / _TICKS_PER_S
    return times


def _descendants(pid: int) -> Iterator[int]:
    """Descendants of a process, without those that end meanwhile."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return
    for thread in threads:
        for child in _text(f"/proc/{pid}/task/{thread}/children").split():
            yield int(child)
            yield from _descendants(int(child))


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and its ended children; 0 when it has ended."""
    # The name of the program, in brackets, may hold blanks and brackets of its own.
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def _resident_bytes(pid: int) -> int:
    fields = _text(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE_BYTES if fields else 0


def _text(path: str) -> str:
    """Content of one of the kernel's files; empty when its process has ended. Read without `Path`,
    which would cost more than the kernel does."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    content = b""
    try:
        while part := os.read(file, _READ_BYTES):  # a page at a time, whatever is asked for
            content += part
    except ProcessLookupError:
        return ""
    finally:
        os.close(file)
    return content.decode(errors="replace")
