"""Limits of a worker process: it ends with its parent, writes no core dump, and has a memory limit.

The memory limit on a CPU is `RLIMIT_DATA`, which since Linux 4.7 covers every private writable
mapping (setrlimit(2)). `RLIMIT_AS` would count mapped libraries and reserved address space too, of
which a framework has gigabytes that it never touches; a control group would need privileges and
would kill instead of refusing. A refused allocation is an error that the framework reports and the
worker catches, so a batch that is too large becomes an outcome and not a dead process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from pathlib import Path

from cubemesh.worker.report.memory import private_writable_bytes

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
"""Of prctl(2)."""

DEFAULT_STACK_BYTES = 8 << 20
SPARE_THREADS = 7
"""Threads a worker may start in addition to those that compute: sampler, feed, autograd, heartbeat,
checkpoints, connection to the ranks' store."""

RESERVE_BYTES = 4 << 20


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel kill this process, or send it another signal, when its parent ends.

    `parent` is the parent's process id as the parent knows it: if it has died before the call, this
    process ends at once. (The kernel acts on the end of the parent's *thread* that started it.)
    """
    _prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number))
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Set the name that `top` and `ps -o comm` show; at most 15 characters."""
    _prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def no_core_dump() -> None:
    """Disable core dumps: the stack of a crash is in the output file."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def first_to_be_killed() -> None:
    """When the machine runs out of memory, let the kernel kill this process rather than the runner.
    Raising one's own score needs no privileges; without write access to /proc, nothing changes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


class MemoryLimit:
    """Limits this process, within a `with` block, to `allowance_bytes` beyond what it holds at
    entry.

    The stacks of `threads` threads are allowed in addition: they reserve megabytes each and touch a
    few pages. Leaving the block lifts the limit and frees a reserve, so that an error can still be
    reported. OSError where the kernel does not report the memory held.
    """

    def __init__(self, allowance_bytes: int, threads: int) -> None:
        self._allowance_bytes = allowance_bytes
        self._threads = threads
        self._reserve: bytearray | None = None

    def __enter__(self) -> None:
        self._reserve = bytearray(RESERVE_BYTES)
        stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
        stack = DEFAULT_STACK_BYTES if stack == resource.RLIM_INFINITY else stack
        stacks = stack * (self._threads + SPARE_THREADS)
        held = private_writable_bytes()
        if held is None:
            raise OSError("this kernel does not report VmData, so memory cannot be limited")
        limit = held + stacks + self._allowance_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

    def __exit__(self, *error: object) -> None:
        self._reserve = None
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _prctl(option: int, value: ctypes.c_ulong | ctypes.c_char_p) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    if libc.prctl(option, value, unused, unused, unused) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
