"""Memory of this process: bytes held, peak, and bytes still available to it.

Read from `/proc/self/status` (proc_pid_status(5): VmRSS is resident memory, RssFile the part of it
that files back, VmHWM the peak, VmData private writable memory), `/proc/meminfo` (MemAvailable:
available without swapping) and the control groups (cgroups.py). None is what this kernel does not
report: one that imitates Linux in a sandbox leaves fields out.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from cubemesh.cgroups import cgroup_free_bytes

KEEP_FREE = 0.05
"""Fraction of the available memory left to the rest of the system."""


def held_bytes() -> int | None:
    """Resident bytes of this process without file-backed pages: a library's code becomes resident
    when it is first used and is not memory of the training."""
    return _difference("VmRSS", "RssFile")


def peak_held_bytes() -> int | None:
    """Peak resident bytes, ever or since `reset_peak`, less the file-backed pages that are resident
    now: the kernel has no peak without them."""
    return _difference("VmHWM", "RssFile")


def reset_peak() -> bool:
    """Reset the peak to what is held now; False where the kernel does not permit it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def release_freed_memory() -> None:
    """Return freed memory to the kernel (malloc_trim(3), glibc only). Otherwise it stays resident,
    and the next allocation seems to need none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def private_writable_bytes() -> int | None:
    """Bytes of address space that count against `RLIMIT_DATA`."""
    return _status_bytes("VmData")


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes this process can still allocate: the smallest of what the machine has available and its
    control groups have left, less `KEEP_FREE`."""
    text = (root / "proc/meminfo").read_text()
    available = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if available is None:
        raise OSError("/proc/meminfo has no MemAvailable: Linux 3.14 or newer is needed.")
    free = [int(available[1]) * 1024, *cgroup_free_bytes(root)]
    return max(0, int(min(free) * (1 - KEEP_FREE)))


def _status_bytes(field: str) -> int | None:
    match = re.search(rf"^{field}:\s+(\d+) kB", _text(Path("/proc/self/status")), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _difference(field: str, less: str) -> int | None:
    whole, part = _status_bytes(field), _status_bytes(less)
    return None if whole is None or part is None else whole - part


def _text(path: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
