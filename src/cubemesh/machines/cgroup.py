"""How much processor time and memory do the control groups of this process grant it?

A limit may stand at any level between the process's own group and the root of the hierarchy, and
the tightest one holds; so every level that can be seen is read and the smallest limit is taken.
Version 2 keeps one hierarchy (`cpu.max`, `memory.max`), version 1 one for each controller
(`cpu.cfs_quota_us` over `cpu.cfs_period_us`, `memory.limit_in_bytes`); both may be mounted side by
side. Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and
scheduler/sched-bwc.rst of the Linux kernel; proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from cubemesh.machines.files import Tree, whole_number

NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as the largest number of whole pages, close to 2**63."""

V2 = "cgroup2"


def cgroup_cores(tree: Tree) -> float | None:
    """Cores' worth of time that the control groups grant, None where none limits it.

    1.5 is 150 ms of processor time in every 100 ms.
    """
    read: dict[str, Callable[[Tree, str], float | None]] = {V2: _cores_v2, "cpu": _cores_v1}
    limits = [
        limit
        for controller, read_level in read.items()
        for folder in _levels(tree, controller)
        if (limit := read_level(tree, folder)) is not None
    ]
    return min(limits, default=None)


def cgroup_memory_bytes(tree: Tree) -> int | None:
    """Bytes of memory that the control groups grant, None where none limits it."""
    limits = [whole_number(tree.text(f"{f}/memory.max")) for f in _levels(tree, V2)]
    for folder in _levels(tree, "memory"):
        limits.append(tree.number(f"{folder}/memory.limit_in_bytes"))
        # Covers the levels above what a container can see.
        stat = tree.text(f"{folder}/memory.stat") or ""
        above = re.search(r"^hierarchical_memory_limit (\d+)$", stat, re.MULTILINE)
        limits.append(whole_number(above[1]) if above else None)
    return min((b for b in limits if b is not None and 0 <= b < NO_LIMIT_BYTES), default=None)


def cgroup_paths(tree: Tree) -> dict[str, str]:
    """The path of this process's group by controller; version 2 stands under "cgroup2"."""
    paths = {}
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            for controller in fields[1].split(",") if fields[1] else [V2]:
                paths[controller] = fields[2]
    return paths


def _levels(tree: Tree, controller: str) -> Iterator[str]:
    """The folders of the process's group and of every group above it, as far as mounted."""
    path = cgroup_paths(tree).get(controller)
    mount = _mount(tree, controller)
    if path is None or mount is None:
        return
    mounted_root, mount_point = mount
    inside = _below(path, mounted_root)
    while inside:
        yield f"{mount_point}/{inside}"
        inside = inside.rpartition("/")[0]
    yield mount_point


def _below(path: str, mounted_root: str) -> str:
    """`path` relative to the group that is mounted.

    Where the mounted group is not above the process's (a container that sees its own group as the
    root of the file system but the host's path in /proc), the mount point is the process's group.
    """
    root = mounted_root.rstrip("/")
    if path != root and not path.startswith(f"{root}/"):
        return ""
    inside = path[len(root) :].strip("/")
    return "" if ".." in inside.split("/") else inside


def _mount(tree: Tree, controller: str) -> tuple[str, str] | None:
    """(group mounted, mount point) of a controller's hierarchy, None where it is not mounted."""
    for line in (tree.text("/proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not separator or len(fields) < 5 or not kind:
            continue
        options = kind[-1].split(",")
        if kind[0] == controller == V2 or (kind[0] == "cgroup" and controller in options):
            return fields[3], fields[4]
    return None


def _cores_v2(tree: Tree, folder: str) -> float | None:
    fields = (tree.text(f"{folder}/cpu.max") or "").split()
    quota = whole_number(fields[0]) if fields else None
    period = whole_number(fields[1]) if len(fields) > 1 else 100_000
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _cores_v1(tree: Tree, folder: str) -> float | None:
    quota = tree.number(f"{folder}/cpu.cfs_quota_us")
    period = tree.number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 and period > 0 else None
