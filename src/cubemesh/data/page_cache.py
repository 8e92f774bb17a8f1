"""Page cache: which pages of a file are in memory, and how to drop them.

Whether a page is in memory tells mincore(2), which does not touch it. (A read that may not wait,
RWF_NOWAIT, would have the kernel read ahead, and so change what it is to look at.) The kernel tells
of files that one owns or may write to; of others it says nothing. Files are dropped with
posix_fadvise(POSIX_FADV_DONTNEED), which takes no rights but leaves pages that are not on the disk
yet or that another process has mapped: so look afterwards.
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

_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Extent:
    """Where some bytes lie."""

    path: Path
    offset: int
    size: int


def resident_fraction(extents: Iterable[Extent]) -> float | None:
    """The share of `extents` whose middle page is in memory; None where the kernel does not tell,
    or nothing can be opened."""
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
        if not _is_told_of(descriptor, extent.path):
            return None
        return _page_is_resident(descriptor, extent.offset + extent.size // 2)
    finally:
        os.close(descriptor)


def _is_told_of(descriptor: int, path: Path) -> bool:
    """Of other people's files mincore says that all is in memory (Linux 5.2)."""
    return os.fstat(descriptor).st_uid == os.geteuid() or os.access(path, os.W_OK)


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
    """Ask the kernel to drop the pages of `extent`; a file that is gone has none."""
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
