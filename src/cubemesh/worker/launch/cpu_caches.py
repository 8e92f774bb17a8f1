"""Caches that the processors of a rank use: private ones, and those shared with other processors.

Of each processor the largest level that it does not share beyond its core (on most CPUs L2) and the
last level (L3) are counted, each cache once. Source: /sys/devices/system/cpu/cpu*/cache
(ABI/testing/sysfs-devices-system-cpu of the Linux kernel).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cubemesh.worker.launch.pinning import SYS, numbers_of


def cache_bytes(processors: Collection[int], sys: Path = SYS) -> tuple[int, int] | None:
    """(bytes of caches that only `processors` use, bytes of caches that others use too), of the two
    last levels of data; None where the kernel does not report them."""
    own = set(processors)
    caches: dict[tuple[int, tuple[int, ...]], int] = {}
    for number in own:
        levels: dict[int, tuple[tuple[int, ...], int]] = {}
        for folder in sorted(sys.glob(f"cpu/cpu{number}/cache/index[0-9]*")):
            found = _cache(folder)
            if found is not None:
                level, users, size = found
                levels[level] = users, size
        for level in sorted(levels)[-2:]:
            users, size = levels[level]
            caches[level, users] = size
    if not caches:
        return None
    private = sum(size for (_, users), size in caches.items() if own.issuperset(users))
    return private, sum(caches.values()) - private


def _cache(folder: Path) -> tuple[int, tuple[int, ...], int] | None:
    """Level, processors and bytes of a data or unified cache; None for any other."""
    try:
        if (folder / "type").read_text().strip() == "Instruction":
            return None
        level = int((folder / "level").read_text())
        size = (folder / "size").read_text().strip()
    except (OSError, ValueError):
        return None
    users = tuple(numbers_of(folder / "shared_cpu_list"))
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits = size.rstrip("KMG")
    if not digits.isdecimal() or not users:
        return None
    return level, users, int(digits) * units.get(size[-1], 1)
