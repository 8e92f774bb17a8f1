"""Disk read ceiling: the rate at which a folder's disk delivers an uncached file.

A file of random bytes is written into the folder, forced to the disk and unlinked at once, so that
no file remains however the process ends. It is then read repeatedly, in blocks.

    O_DIRECT if the file system supports it: blocks bypass the page cache
    else     before each pass the kernel is asked to drop the file from the page cache
             (posix_fadvise, POSIX_FADV_DONTNEED), and before each block one of its pages is
             looked up there (preadv2, RWF_NOWAIT)

If pages stay in memory nevertheless, the rate is the memory's, and `doubt` says so. Caches of the
device or a hypervisor cannot be bypassed; they are part of what the file system delivers.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import tempfile

import numpy as np

from cubemesh.data.mounts import mount_of
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import monotonic_s
from cubemesh.schema.warning import Warning, warn
from cubemesh.schema.work import Ceiling
from cubemesh.units import format_bytes

BLOCK_BYTES = 8 << 20
FILE_BYTES = 1 << 30
"""Default size of the file."""
_FREE_FRACTION = 0.25
"""Largest fraction of the free space for the file."""
_CACHED_FRACTION = 0.05
"""A file with more of its pages in memory was not read from the disk."""
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
"""File systems that are memory."""


class DiskRead:
    """A `CeilingProgram` that reads a block of the file with every call.

    UsageError where the folder cannot be written to or has no room.
    """

    unit = "byte/s"
    work_per_call = float(BLOCK_BYTES)

    def __init__(self, folder: str, size_bytes: int | None = None) -> None:
        self._blocks = _blocks(folder, size_bytes)
        try:
            self._file = _written(folder, self._blocks)
        except OSError as error:
            raise UsageError(
                f"folder={folder}: a file of {format_bytes(self._blocks * BLOCK_BYTES)} cannot be "
                f"written there ({error.strerror}). Name a folder with room, or a smaller size."
            ) from error
        self._buffer = mmap.mmap(-1, BLOCK_BYTES)  # page-aligned, as O_DIRECT asks
        mount = mount_of(folder)
        self._kind = "" if mount is None else mount.type
        self._next = 0
        self._looked = self._found = 0
        self.direct = _read_directly(self._file, self._buffer)
        self._drop()
        size = format_bytes(self._blocks * BLOCK_BYTES)
        how = "O_DIRECT" if self.direct else "page cache dropped by posix_fadvise before each pass"
        self.what = f"file of {size} in blocks of {format_bytes(BLOCK_BYTES)}, {how}"

    def call(self) -> None:
        """Read the next block; after the last one the first."""
        if self._next == 0 and not self.direct:
            self._drop()
        offset = self._next * BLOCK_BYTES
        if not self.direct:
            self._look(offset)
        read = os.preadv(self._file, [self._buffer], offset)
        if read != BLOCK_BYTES:
            raise OSError(errno.EIO, f"{read} of {BLOCK_BYTES} bytes came at offset {offset}")
        self._next = (self._next + 1) % self._blocks

    def synchronize(self) -> None:
        """Nothing: a read returns when it is done."""

    def clock(self) -> float:
        """The process's monotonic clock."""
        return monotonic_s()

    def doubt(self) -> Warning | None:
        """Why the rate is not the disk's, by the blocks read so far; None if it is."""
        remedy = "Name a folder on the disk that is to be measured."
        if self._kind in _IN_MEMORY:
            return warn("page-cache", f"The folder is on {self._kind}, which is memory.", remedy)
        if self.direct or self._found <= _CACHED_FRACTION * max(1, self._looked):
            return None
        cause = (
            f"{self._found} of {self._looked} blocks were in memory before they were read: the "
            "file system does not support O_DIRECT and does not drop pages on request."
        )
        return warn("page-cache", cause, remedy)

    def close(self) -> None:
        """Give the file's space back."""
        os.close(self._file)
        self._buffer.close()

    def _drop(self) -> None:
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _look(self, offset: int) -> None:
        """Count whether a page in the middle of the block, beyond any read-ahead, is in memory;
        if the kernel cannot report it, it counts as not in memory."""
        page = bytearray(1)
        self._looked += 1
        try:
            self._found += os.preadv(self._file, [page], offset + BLOCK_BYTES // 2, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL):
                raise


def build(work: Ceiling) -> DiskRead:
    """The disk read program for `work`, a `disk_read`."""
    assert work.folder is not None, "Ceiling requires a folder of disk_read"
    return DiskRead(work.folder, work.size)


def _blocks(folder: str, size_bytes: int | None) -> int:
    """Blocks of the file: the given size, else 1 GiB or a quarter of the free space."""
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise UsageError(
            f"folder={folder}: {error.strerror}. Name a folder that exists, on the disk to measure."
        ) from error
    wanted = size_bytes or min(FILE_BYTES, int(_FREE_FRACTION * free_bytes))
    return max(1, wanted // BLOCK_BYTES)


def _written(folder: str, blocks: int) -> int:
    """A file of random blocks, on the disk and without a name; its descriptor."""
    file, path = tempfile.mkstemp(prefix=".cubemesh-", dir=folder)
    try:
        os.unlink(path)
        random = np.random.default_rng(0)
        for _ in range(blocks):
            rest = memoryview(random.bytes(BLOCK_BYTES))
            while rest:
                rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except BaseException:
        os.close(file)
        raise
    return file


def _read_directly(file: int, buffer: mmap.mmap) -> bool:
    """Switch `file` to O_DIRECT and try one read; False, and as it was, where that is refused."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        os.preadv(file, [buffer], 0)
    except OSError:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
        return False
    return True
