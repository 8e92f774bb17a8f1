"""Encoded image files: the protocol `EncodedImages`, and safe reading.

`EncodedImages` is what image folders and tar shards have in common: numbered images that are read
as bytes, each with its class. `read_whole` reads a file without trusting its name: a folder, a
pipe, a device or a circular link called `x.jpg` neither blocks nor ends the run.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import Skipped
from cubemesh.data.page_cache import Extent

MAX_FILE_BYTES = 64 << 20
"""Most bytes that an encoded image may have."""

_REASONS = {
    errno.EACCES: "no permission to read",
    errno.EPERM: "no permission to read",
    errno.ELOOP: "link in a circle",
    errno.ENOENT: "missing",
    errno.EISDIR: "a folder, not a file",
    errno.ENXIO: "not a file",
}


class EncodedImages(Protocol):
    """Numbered images as bytes, with their classes."""

    labels: NDArray[np.int64]
    """(images,): the class of each."""
    classes: tuple[str, ...]
    """Their names, by label."""

    @property
    def ignored(self) -> Mapping[str, int]:
        """Ignored entries by kind → count."""

    def read(self, number: int) -> bytes:
        """The file; Skipped with the reason where it cannot be read."""

    def name(self, number: int) -> str:
        """Its name, printable whatever bytes it consists of."""

    def order(self, generator: np.random.Generator) -> Iterable[int]:
        """All numbers once, in the order in which an epoch reads them."""

    def extent(self, number: int) -> Extent:
        """Location of its bytes."""

    def identity(self) -> str:
        """Sixteen hexadecimal digits that change when files are added, removed or replaced."""


def read_whole(path: str | Path) -> bytes:
    """The bytes of a regular file of at most `MAX_FILE_BYTES`; Skipped with the reason."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                raise Skipped(_REASONS[errno.EISDIR])
            if not stat.S_ISREG(found.st_mode):
                raise Skipped("not a file")
            if found.st_size > MAX_FILE_BYTES:
                raise Skipped("file too large")
            return pread(descriptor, found.st_size, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Skipped(_REASONS.get(error.errno or 0, "cannot be read")) from error


def regular_size(path: str | Path) -> int:
    """Bytes of a regular file; OSError where it is something else."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return found.st_size


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """The bytes of a regular file; OSError where it is something else, which may have no end, or
    has more than `most_bytes`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", str(path))
        return pread(descriptor, found.st_size, 0)
    finally:
        os.close(descriptor)


def pread(descriptor: int, size: int, offset: int) -> bytes:
    """`size` bytes from `offset`, fewer only where the file ends."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def readable(name: str) -> str:
    """A file's name as text that can be stored and shown."""
    return name.encode("utf-8", "backslashreplace").decode()


def identity_of(images: Iterable[str], folders: Iterable[Path]) -> str:
    """A value for `EncodedImages.identity` from image names and the modification times of their
    files and folders."""
    digest = hashlib.sha256()
    for name in images:
        digest.update(os.fsencode(name) + b"\0")
    for folder in folders:
        found = folder.stat()
        digest.update(f"{folder} {found.st_size} {found.st_mtime_ns}\0".encode(errors="replace"))
    return digest.hexdigest()[:16]
