"""Are the files of a data set in memory already? Then reading them measures memory and no disk.

    cachestat(2), from Linux 6.5 on: counts a file's pages in the page cache
    mincore(2), before: looks at a mapping of the file, page by page; of files that the caller may
                not write the kernel tells nothing true (it says that all pages are there)

None is what neither tells. Asking reads nothing and changes nothing.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CACHESTAT = 451
"""The number of the system call, the same on every architecture (include/uapi/asm-generic)."""
_PAGE_BYTES = mmap.PAGESIZE


class _Range(ctypes.Structure):
    """struct cachestat_range."""

    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    """struct cachestat."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


@dataclass(frozen=True, kw_only=True)
class Cached:
    """How much of some files lies in the page cache."""

    cached_bytes: int
    total_bytes: int

    @property
    def share(self) -> float:
        """0 to 1; 1 for files that hold nothing."""
        return self.cached_bytes / self.total_bytes if self.total_bytes else 1.0


def cached(paths: Iterable[Path]) -> Cached | None:
    """How much of these files is in the page cache now; None where the kernel does not tell of one
    of them. OSError for a file that cannot be opened. Some microseconds a file."""
    inside = total = 0
    for path in paths:
        size = path.stat().st_size
        found = _cached_bytes(path, size) if size else 0
        if found is None:
            return None
        inside += min(found, size)
        total += size
    return Cached(cached_bytes=inside, total_bytes=total)


def _cached_bytes(path: Path, size: int) -> int | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = _by_cachestat(descriptor, size)
        if found is None and os.access(path, os.W_OK):
            found = _by_mincore(descriptor, size)
        return found
    finally:
        os.close(descriptor)


def _by_cachestat(descriptor: int, size: int) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    asked, counts = _Range(offset=0, length=size), _Counts()
    done = libc.syscall(
        ctypes.c_long(_CACHESTAT),
        ctypes.c_uint(descriptor),
        ctypes.byref(asked),
        ctypes.byref(counts),
        ctypes.c_uint(0),
    )
    if done == 0:
        return int(counts.cached) * _PAGE_BYTES
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL):
        return None
    raise OSError(number, f"cachestat: {os.strerror(number)}")


def _by_mincore(descriptor: int, size: int) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    # A private mapping that may be written, since ctypes takes the address of no other.
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        pages = -(-size // _PAGE_BYTES)
        resident = (ctypes.c_ubyte * pages)()
        done = libc.mincore(ctypes.byref(first), ctypes.c_size_t(size), resident)
        del first  # or the mapping could not be closed
    if done != 0:
        return None
    return sum(page & 1 for page in resident) * _PAGE_BYTES
