"""Disk ceilings: the rates at which the disks of folders read and write a file.

A file of random bytes is written into the folder, forced to the disk and unlinked at once, so that
no file remains however the process ends. It is then read or overwritten repeatedly, in blocks.

    O_DIRECT if the file system supports it: blocks bypass the page cache
    else     read: before each pass the kernel is asked to drop the file from the page cache
             (posix_fadvise, POSIX_FADV_DONTNEED), and before each block one of its pages is
             looked up there (preadv2, RWF_NOWAIT)
             write: each block is forced to the disk before the next (pwritev2, RWF_DSYNC)

`DiskRead` and `DiskWrite` transfer one block after another. `DiskStreams` runs several of them, one
thread each: a read and a write at the same time (mixed), and several folders at once. The blocks of
a call go to whichever disk is ready, so that disks of different speed add up.

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
import threading
from collections import Counter
from collections.abc import Sequence

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
"""Largest fraction of the free space for the default file."""
_CACHED_FRACTION = 0.05
"""A file with more of its pages in memory was not read from the disk."""
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
"""File systems that are memory."""
_QUEUED = 2
"""Blocks that wait for each disk of several."""
_REMEDY = "Name a folder on the disk that is to be measured."


class _DiskFile:
    """A file of blocks on the disk of a folder, and a buffer of one block.

    `sharing` is the number of files that are measured on the same file system. UsageError where the
    folder cannot be written to or has no room.
    """

    unit = "byte/s"
    work_per_call = float(BLOCK_BYTES)

    def __init__(self, folder: str, size_bytes: int | None = None, sharing: int = 1) -> None:
        self._blocks = _blocks(folder, size_bytes, sharing)
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
        self.file_system = os.fstat(self._file).st_dev
        self._next = 0
        self.direct = _read_directly(self._file, self._buffer)
        size = format_bytes(self._blocks * BLOCK_BYTES)
        how = "O_DIRECT" if self.direct else self._otherwise
        self.what = f"file of {size} in blocks of {format_bytes(BLOCK_BYTES)}, {how}"

    _otherwise: str
    """How the page cache is avoided without O_DIRECT."""

    def synchronize(self) -> None:
        """Nothing: a call returns when it is done."""

    def clock(self) -> float:
        """The process's monotonic clock."""
        return monotonic_s()

    def doubt(self) -> Warning | None:
        """Why the rate is not the disk's, by the blocks transferred so far; None if it is."""
        if self._kind in _IN_MEMORY:
            return warn("page-cache", f"The folder is on {self._kind}, which is memory.", _REMEDY)
        return None

    def close(self) -> None:
        """Give the file's space back."""
        os.close(self._file)
        self._buffer.close()

    def _take_offset(self) -> int:
        """Offset of the next block; after the last one the first."""
        offset = self._next * BLOCK_BYTES
        self._next = (self._next + 1) % self._blocks
        return offset


class DiskRead(_DiskFile):
    """A `CeilingProgram` that reads a block of the file with every call."""

    _otherwise = "page cache dropped by posix_fadvise before each pass"

    def __init__(self, folder: str, size_bytes: int | None = None, sharing: int = 1) -> None:
        super().__init__(folder, size_bytes, sharing)
        self._looked = self._found = 0
        self._drop()

    def call(self) -> None:
        """Read the next block; after the last one the first."""
        if self._next == 0 and not self.direct:
            self._drop()
        offset = self._take_offset()
        if not self.direct:
            self._look(offset)
        read = os.preadv(self._file, [self._buffer], offset)
        if read != BLOCK_BYTES:
            raise OSError(errno.EIO, f"{read} of {BLOCK_BYTES} bytes came at offset {offset}")

    def doubt(self) -> Warning | None:
        """Why the rate is not the disk's, by the blocks read so far; None if it is."""
        if (warning := super().doubt()) is not None:
            return warning
        if self.direct or self._found <= _CACHED_FRACTION * max(1, self._looked):
            return None
        cause = (
            f"{self._found} of {self._looked} blocks were in memory before they were read: the "
            "file system does not support O_DIRECT and does not drop pages on request."
        )
        return warn("page-cache", cause, _REMEDY)

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


class DiskWrite(_DiskFile):
    """A `CeilingProgram` that overwrites a block of the file with every call."""

    _otherwise = "each block forced to the disk (RWF_DSYNC)"

    def __init__(self, folder: str, size_bytes: int | None = None, sharing: int = 1) -> None:
        super().__init__(folder, size_bytes, sharing)
        self._buffer[:] = np.random.default_rng(1).bytes(BLOCK_BYTES)
        self._written = 0

    def call(self) -> None:
        """Overwrite the next block; after the last one the first."""
        offset = self._take_offset()
        self._written += 1
        self._buffer[:8] = self._written.to_bytes(8, "little")  # no block equals another
        written = os.pwritev(self._file, [self._buffer], offset, 0 if self.direct else os.RWF_DSYNC)
        if written != BLOCK_BYTES:
            raise OSError(errno.EIO, f"{written} of {BLOCK_BYTES} bytes went to offset {offset}")


class DiskStreams:
    """A `CeilingProgram` of several disk programs, one thread each.

    Every call hands one block to each group, to whichever of its programs is free next. A call
    waits while enough blocks are queued.
    """

    unit = "byte/s"

    def __init__(self, groups: Sequence[Sequence[DiskRead | DiskWrite]]) -> None:
        self.work_per_call = float(BLOCK_BYTES * len(groups))
        self._groups = groups
        self._changed = threading.Condition()
        self._queued = [0] * len(groups)
        self._unfinished = 0
        self._error: OSError | None = None
        self._closed = False
        first = groups[0][0]
        folders = max(map(len, groups))
        both = "one stream reads and one writes" if len(groups) > 1 else ""
        systems = {program.file_system for group in groups for program in group}
        where = "one file system" if len(systems) == 1 else f"{len(systems)} file systems"
        at_once = f"{folders} folders on {where} at once" if folders > 1 else ""
        self.what = ", ".join(filter(None, (at_once, both, f"each a {first.what}")))
        self._threads = [
            threading.Thread(target=self._work, args=(number, program), daemon=True)
            for number, group in enumerate(groups)
            for program in group
        ]
        for thread in self._threads:
            thread.start()

    def call(self) -> None:
        """Queue one block of each group."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._has_room())
            self._check()
            for number in range(len(self._groups)):
                self._queued[number] += 1
                self._unfinished += 1
            self._changed.notify_all()

    def synchronize(self) -> None:
        """Wait until every queued block is transferred."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._unfinished)
            self._check()

    def clock(self) -> float:
        """The process's monotonic clock."""
        return monotonic_s()

    def doubt(self) -> Warning | None:
        """The first reason why a rate is not its disk's; None if all are."""
        doubts = (program.doubt() for group in self._groups for program in group)
        return next((doubt for doubt in doubts if doubt is not None), None)

    def close(self) -> None:
        """End the threads and give the space of all files back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for group in self._groups:
            for program in group:
                program.close()

    def _has_room(self) -> bool:
        pairs = zip(self._queued, self._groups, strict=True)
        return all(queued < _QUEUED * len(group) for queued, group in pairs)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self, number: int, program: DiskRead | DiskWrite) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._queued[number] > 0)
                if self._closed:
                    return
                self._queued[number] -= 1
                self._changed.notify_all()
            error = None
            try:
                program.call()
            except OSError as failed:
                error = failed
            with self._changed:
                self._unfinished -= 1
                self._error = self._error or error
                self._changed.notify_all()


DiskProgram = DiskRead | DiskWrite | DiskStreams


def build(work: Ceiling) -> DiskProgram:
    """The program of `work`, an operation on the disks of its folders."""
    kinds: dict[str, tuple[type[DiskRead] | type[DiskWrite], ...]] = {
        "disk_read": (DiskRead,),
        "disk_write": (DiskWrite,),
        "disk_mixed": (DiskRead, DiskWrite),
    }
    made: list[DiskRead | DiskWrite] = []
    groups: list[list[DiskRead | DiskWrite]] = []
    each = kinds[work.operation]
    sharing = _files_of_file_systems(work.folders, len(each))
    try:
        for kind in each:
            groups.append([])
            for folder in work.folders:
                made.append(kind(folder, work.size, sharing[folder]))
                groups[-1].append(made[-1])
    except BaseException:
        for program in made:
            program.close()
        raise
    return made[0] if len(made) == 1 else DiskStreams(groups)


def _files_of_file_systems(folders: Sequence[str], each: int) -> dict[str, int]:
    """Folder → files that are measured on its file system, `each` for a folder."""
    devices = {}
    for folder in folders:
        try:
            devices[folder] = os.stat(folder).st_dev
        except OSError as error:
            raise _no_folder(folder, error) from error
    count = Counter(devices.values())
    return {folder: each * count[device] for folder, device in devices.items()}


def _no_folder(folder: str, error: OSError) -> UsageError:
    return UsageError(
        f"folder={folder}: {error.strerror}. Name a folder that exists, on the disk to measure."
    )


def _blocks(folder: str, size_bytes: int | None, sharing: int) -> int:
    """Blocks of the file: the given size, else 1 GiB or a quarter of the free space divided among
    `sharing` files. UsageError where the given size exceeds what is free for it."""
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise _no_folder(folder, error) from error
    if size_bytes is not None and size_bytes * sharing > free_bytes:
        files = f"{sharing} files" if sharing > 1 else "a file"
        raise UsageError(
            f"folder={folder}: {files} of size={size_bytes} do not fit into the "
            f"{format_bytes(free_bytes)} that are free there. Set a smaller size, or leave it out."
        )
    wanted = size_bytes or min(FILE_BYTES, int(_FREE_FRACTION * free_bytes)) // sharing
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
