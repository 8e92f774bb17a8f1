"""How much memory does this process hold, and how much may it still take?

Read from the kernel's files: `/proc/self/status` (proc_pid_status(5): VmRSS is what is resident
now, RssFile the part of it that files hold, VmHWM the most that ever was, VmData what may be
written and is private), `/proc/meminfo`
(MemAvailable: what can be had without swapping) and the control groups. Of a group's usage the
inactive page cache is not counted: the kernel gives it back before it refuses anything.

None is what this kernel does not say: one that imitates Linux in a sandbox leaves fields out.

The worker must run where nothing but cubemesh's source is, so it reads its control groups by the
usual mount points; machines/cgroup.py, for the description of a machine, finds any.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

KEEP_FREE = 0.05
"""Share of the available memory that is left to the rest of the system."""


def held_bytes() -> int | None:
    """Bytes of memory this process holds now, without the pages of files: the code of a library
    becomes resident as it is first used, and is no memory that training asked for."""
    return _difference("VmRSS", "RssFile")


def peak_held_bytes() -> int | None:
    """Most bytes this process ever held, or has held since `reset_peak`, again without the pages
    of files: less those that are resident now, as the kernel has no peak of the rest alone."""
    return _difference("VmHWM", "RssFile")


def reset_peak() -> bool:
    """Start the peak again from what is held now; False where the kernel does not permit it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def release_freed_memory() -> None:
    """Have the C library give back to the kernel what was freed (malloc_trim(3); others than glibc
    have no such call). Freed memory that stays is held, and whoever takes it next seems to take
    none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def private_writable_bytes() -> int | None:
    """Bytes of address space that count against `RLIMIT_DATA`."""
    return _status_bytes("VmData")


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes this process may still take: the smaller of what the machine has available and what
    its control groups leave it, less a twentieth that is kept free."""
    text = (root / "proc/meminfo").read_text()
    available = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if available is None:
        raise OSError("/proc/meminfo has no MemAvailable: Linux 3.14 or newer is needed.")
    free = [int(available[1]) * 1024, *_group_headrooms(root)]
    return max(0, int(min(free) * (1 - KEEP_FREE)))


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes the kernel's out-of-memory killer has ended in this process's own control
    group, or on the whole machine where the group does not count them; None where nobody counts.

    A number that rises while a worker is killed tells who killed it, without the kernel's log.
    """
    for folder, version in _groups(root):
        name = "memory.events" if version == 2 else "memory.oom_control"
        count = _count(folder / name, "oom_kill")
        if count is not None:
            return count
    return _count(root / "proc/vmstat", "oom_kill")


def _status_bytes(field: str) -> int | None:
    match = re.search(rf"^{field}:\s+(\d+) kB", _text(Path("/proc/self/status")), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _difference(field: str, less: str) -> int | None:
    whole, part = _status_bytes(field), _status_bytes(less)
    return None if whole is None or part is None else whole - part


def _group_headrooms(root: Path) -> Iterator[int]:
    """What each control group above this process leaves, where it limits memory at all."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    for folder, version in _groups(root):
        limit_name, usage_name, cache_name = names[version]
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is not None and usage is not None:
            cache = _count(folder / "memory.stat", cache_name) or 0
            yield max(0, limit - usage + cache)


def _groups(root: Path) -> Iterator[tuple[Path, int]]:
    """(folder, version) of this process's memory group and of every one above it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, version = root / "sys/fs/cgroup", 2
        elif "memory" in controllers.split(","):
            mount, version = root / "sys/fs/cgroup/memory", 1
        else:
            continue
        inside = os.path.normpath(path.strip("/"))
        # A container may be told its path on the host, which it cannot see: levels that are not
        # there say nothing, and the mount point is its own group.
        while inside not in ("", "."):
            yield mount / inside, version
            inside = os.path.dirname(inside)
        yield mount, version


def _text(path: Path) -> str:
    """The file's text; nothing where it cannot be read: a limit nobody shows is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _count(path: Path, name: str) -> int | None:
    match = re.search(rf"^{name} (\d+)$", _text(path), re.MULTILINE)
    return int(match[1]) if match else None
