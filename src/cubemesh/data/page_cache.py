"""Page cache: which pages of a file are in memory, and how to drop them.

mincore(2) reports whether a page is in memory without touching it. (A non-blocking read,
RWF_NOWAIT, would trigger read-ahead and change the result.) The kernel reports it only for files
that the user owns or may write to. Pages are dropped with posix_fadvise(POSIX_FADV_DONTNEED), which
needs no permission but leaves dirty pages and those mapped by another process: check afterwards.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NO_FILE = Path(os.devnull)
"""Path of extents that are on no file system of this machine."""
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of a file."""

    path: Path
    offset: int
    size: int


def resident_fraction(extents: Iterable[Extent]) -> float | None:
    """The fraction of `extents` whose middle page is in memory; None if the kernel does not
    report it, or nothing can be opened."""
    looked = found = 0
    for extent in extents:
        here = _is_resident(extent)
        if here is not None:
            looked, found = looked + 1, found + here
    return found / looked if looked else None


def _is_resident(extent: Extent) -> bool | None:
    if extent.size == 0:
        return None
    try:
        descriptor = os.open(extent.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # For files of other users mincore reports all pages as resident (Linux 5.2).
        if os.fstat(descriptor).st_uid != os.geteuid() and not os.access(extent.path, os.W_OK):
            return None
        return _page_is_resident(descriptor, extent.offset + extent.size // 2)
    finally:
        os.close(descriptor)


def _page_is_resident(descriptor: int, offset: int) -> bool | None:
    page = mmap.PAGESIZE
    start = offset // page * page
    libc = _libc()
    address = libc.mmap(None, page, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _FAILED:
        return None
    try:
        state = ctypes.c_ubyte()
        if libc.mincore(address, page, ctypes.byref(state)) != 0:
            return None
        return bool(state.value & 1)
    finally:
        libc.munmap(address, page)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_int64)
    libc.mincore.argtypes = (pointer, size, pointer)
    libc.munmap.argtypes = (pointer, size)
    return libc


def drop(extent: Extent) -> None:
    """Ask the kernel to drop the pages of `extent`; no effect on a missing file."""
    try:
        descriptor = os.open(extent.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.posix_fadvise(descriptor, extent.offset, extent.size, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno not in (errno.ESPIPE, errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)
