"""Do files come from the disk or from memory? What the kernel keeps of them, and how to drop it.

Whether a page is in memory is asked for with a read that may not wait (preadv2, RWF_NOWAIT: Linux
4.14). Files are dropped with posix_fadvise(POSIX_FADV_DONTNEED), which takes no rights but leaves
pages that are not on the disk yet or that another process has mapped: so look afterwards.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_UNKNOWN = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where some bytes lie."""

    path: Path
    offset: int
    size: int


def resident_share(extents: Iterable[Extent]) -> float | None:
    """The share of `extents` whose middle byte is in memory; None where the kernel or the file
    system cannot tell, or nothing can be opened."""
    looked = found = 0
    for extent in extents:
        here = _is_resident(extent)
        if here is not None:
            looked, found = looked + 1, found + here
    return found / looked if looked else None


def _is_resident(extent: Extent) -> bool | None:
    try:
        descriptor = os.open(extent.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return (
            os.preadv(descriptor, [bytearray(1)], extent.offset + extent.size // 2, os.RWF_NOWAIT)
            == 1
        )
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    finally:
        os.close(descriptor)


def drop(extent: Extent) -> None:
    """Ask the kernel to drop the pages of `extent`; a file that is gone has none."""
    try:
        descriptor = os.open(extent.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.posix_fadvise(descriptor, extent.offset, extent.size, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno not in (*_UNKNOWN, errno.ESPIPE):
            raise
    finally:
        os.close(descriptor)
