"""Control groups (cgroups) of this process: CPU time, memory limits, free memory, OOM kills.

A limit may be set at any level between the process's own group and the root of the hierarchy, and
the tightest one holds; so every visible level is read. Version 2 has one hierarchy (`cpu.max`,
`memory.max`), version 1 one for each controller (`cpu.cfs_quota_us` over `cpu.cfs_period_us`,
`memory.limit_in_bytes`); both may be mounted. `root` is "/" for this machine, another folder for a
copy of its files. Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and
scheduler/sched-bwc.rst of the Linux kernel; proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as the largest number of whole pages, close to 2**63."""
V2 = "cgroup2"


def cgroup_cores(root: Path) -> float | None:
    """CPU time that the groups grant, in cores; None without a limit. 1.5 is 150 ms of processor
    time in every 100 ms."""
    read: dict[str, Callable[[Path], float | None]] = {V2: _cores_v2, "cpu": _cores_v1}
    limits = [
        limit
        for controller, read_level in read.items()
        for folder in _levels(root, controller)
        if (limit := read_level(folder)) is not None
    ]
    return min(limits, default=None)


def cgroup_memory_bytes(root: Path) -> int | None:
    """Bytes of memory that the groups grant; None without a limit."""
    limits = [_number(folder / "memory.max") for folder in _levels(root, V2)]
    for folder in _levels(root, "memory"):
        limits.append(_number(folder / "memory.limit_in_bytes"))
        # Covers the levels above what a container can see.
        limits.append(_count(folder / "memory.stat", "hierarchical_memory_limit"))
    return min((b for b in limits if b is not None and 0 <= b < NO_LIMIT_BYTES), default=None)


def cgroup_free_bytes(root: Path) -> list[int]:
    """Bytes of memory that each level with a limit has left. The inactive page cache counts as
    free: the kernel reclaims it before it refuses an allocation."""
    names = (
        (V2, "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    found = []
    for controller, limit_name, usage_name, cache_name in names:
        for folder in _levels(root, controller):
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is not None and usage is not None:
                cache = _count(folder / "memory.stat", cache_name) or 0
                found.append(max(0, limit - usage + cache))
    return found


def oom_kills(root: Path = Path("/")) -> int | None:
    """Processes ended so far by the kernel's out-of-memory killer in this process's own group, or
    on the whole machine where the group does not count them; None without a count."""
    for controller, name in ((V2, "memory.events"), ("memory", "memory.oom_control")):
        for folder in _levels(root, controller):
            count = _count(folder / name, "oom_kill")
            if count is not None:
                return count
    return _count(root / "proc/vmstat", "oom_kill")


def cgroup_paths(root: Path) -> dict[str, str]:
    """The path of this process's group by controller; version 2 is listed as "cgroup2"."""
    paths = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            for controller in fields[1].split(",") if fields[1] else [V2]:
                paths[controller] = fields[2]
    return paths


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the process's group and of every group above it, as far as mounted."""
    path = cgroup_paths(root).get(controller)
    mount = _mount(root, controller)
    if path is None or mount is None:
        return
    mounted_root, mount_point = mount
    folder, inside = root / mount_point.lstrip("/"), _below(path, mounted_root)
    while inside:
        yield folder / inside
        inside = inside.rpartition("/")[0]
    yield folder


def _below(path: str, mounted_root: str) -> str:
    """`path` relative to the mounted group.

    Where the mounted group is not above the process's (a container that sees its own group as the
    root of the file system but the host's path in /proc), the mount point is the process's group.
    """
    root = mounted_root.rstrip("/")
    if path != root and not path.startswith(f"{root}/"):
        return ""
    inside = path[len(root) :].strip("/")
    return "" if ".." in inside.split("/") else inside


def _mount(root: Path, controller: str) -> tuple[str, str] | None:
    """(mounted group, mount point) of a controller's hierarchy, None where it is not mounted."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not separator or len(fields) < 5 or not kind:
            continue
        options = kind[-1].split(",")
        if kind[0] == controller == V2 or (kind[0] == "cgroup" and controller in options):
            return fields[3], fields[4]
    return None


def _cores_v2(folder: Path) -> float | None:
    fields = _text(folder / "cpu.max").split()
    quota = _whole(fields[0]) if fields else None
    period = _whole(fields[1]) if len(fields) > 1 else 100_000
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _cores_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _text(path: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return path.read_bytes().decode(errors="replace")
    except (OSError, ValueError):  # ValueError: a path with a null character in it
        return ""


def _number(path: Path) -> int | None:
    return _whole(_text(path))


def _whole(text: str) -> int | None:
    match = re.fullmatch(r"\s*(-?[0-9]{1,30})\s*", text)
    return int(match[1]) if match else None


def _count(path: Path, name: str) -> int | None:
    match = re.search(rf"^{name} (\d+)$", _text(path), re.MULTILINE)
    return int(match[1]) if match else None
