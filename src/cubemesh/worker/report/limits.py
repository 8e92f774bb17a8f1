"""What a worker may not do: outlive its parent, write a core, take more memory than it was given.

The memory limit on a CPU is `RLIMIT_DATA`, which since Linux 4.7 covers every private writable
mapping (setrlimit(2)). `RLIMIT_AS` would count mapped libraries and reserved address space too, of
which a framework holds gigabytes it never touches; a control group would need rights and would kill
instead of refusing. A refused allocation is an error that the framework reports and the worker
catches, so a batch too large for the limit ends as an outcome and not as a dead process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from pathlib import Path
from types import TracebackType

from cubemesh.worker.report.memory import private_writable_bytes

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
"""Of prctl(2)."""

DEFAULT_STACK_BYTES = 8 << 20
SPARE_THREADS = 6
"""Threads a worker may start beside those that compute: sampler, feed, autograd, signs of life,
checkpoints."""

RESERVE_BYTES = 4 << 20


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process the moment its parent's life ends.

    `parent` is the parent's process id as the parent knows it: it may have died before the kernel
    was told, and then this process, adopted by another, ends here and now. (What the kernel waits
    for is the end of the parent's *thread* that started this process.)
    """
    _prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """What `top` and `ps -o comm` show for this process; 15 characters at most."""
    _prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def no_core_dump() -> None:
    """A crash leaves its stack in the output file, not gigabytes on the disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def first_to_be_killed() -> None:
    """When the whole machine runs out of memory, let the kernel end this process rather than the
    runner that keeps what was measured. Raising one's own score needs no rights; where /proc
    cannot be written at all, the kernel decides as it would have."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


class MemoryLimit:
    """Within it, this process may take `allowance_bytes` beyond what it holds at its beginning.

    The stacks of `threads` threads are allowed on top: they reserve megabytes each and touch a few
    pages. Leaving it, by an error too, lifts the limit and frees a reserve, so that what happened
    can still be told. OSError where the kernel does not say what is held.
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
            raise OSError("this kernel does not say VmData, without which memory is not limited")
        limit = held + stacks + self._allowance_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reserve = None
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _prctl(option: int, value: ctypes.c_ulong | ctypes.c_char_p) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    if libc.prctl(option, value, unused, unused, unused) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
