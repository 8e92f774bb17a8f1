"""Local cache: images from a slow source are stored on a local disk.

DGX-1 V100 white paper [002], section 2.1: working sets are staged and cached on the local disks
while training runs. The first epoch reads from the source; a thread appends each image to one local
file, the *pack*, from which it is read from then on.

The pack is only appended to, by the one run that holds its lock. Its index is written to a file
next to it and renamed when it is complete, so that it is always valid for the pack, however a run
ends; later runs continue with it.

The pack stops growing, and other images are read from the source, if it would exceed the limit or
leave less than a tenth of the disk free, or if writing fails. If the writer falls behind, images
are left to the next epoch: training never waits for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import shutil
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np

from cubemesh.data.images.files import EncodedImages, pread
from cubemesh.data.images.wrapped_readers import WrappedReader
from cubemesh.errors import UsageError

LIMIT_BYTES = 100 << 30
"""Default size limit of a pack."""
FREE_FRACTION = 0.1
"""Fraction of the disk that is left free."""
WAITING = 64
"""Most images in the writer's queue."""

_NOWHERE = -1


class LocalCache(WrappedReader):
    """Encoded images that are read from a pack in `folder` after their first read.

    UsageError if the folder cannot be written. Without `close` the index is not saved.
    """

    def __init__(
        self, encoded: EncodedImages, folder: Path, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        super().__init__(encoded)
        count = len(encoded.labels)
        self.pack = folder / f"cubemesh-images-{encoded.identity()}.pack"
        self.stopped = ""
        """Why nothing more is written; empty while it is."""
        self._limit_bytes = limit_bytes
        self._offset = np.full(count, _NOWHERE, np.int64)
        self._size = np.zeros(count, np.int64)
        self._end = self._begin = 0
        self._waiting: queue.Queue[tuple[int, bytes] | None] = queue.Queue(WAITING)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.pack, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"stage_folder={folder}: {error.strerror}. Name a folder on a local disk that can "
                "be written to."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.stopped = "another run is writing the pack"
        self._load()
        self._writer = threading.Thread(target=self._write, name="cubemesh-stage", daemon=True)
        self._writer.start()

    @property
    def staged_bytes(self) -> int:
        """Bytes in the pack."""
        return self._end

    @property
    def staged(self) -> int:
        """Images in the pack."""
        return int((self._offset != _NOWHERE).sum())

    def read(self, number: int) -> bytes:
        """See `EncodedImages.read`."""
        offset, size = int(self._offset[number]), int(self._size[number])
        if offset != _NOWHERE and len(data := pread(self._file, size, offset)) == size:
            return data
        data = self._encoded.read(number)
        if not self.stopped:
            with contextlib.suppress(queue.Full):  # left to the next epoch
                self._waiting.put_nowait((number, data))
        return data

    def close(self) -> None:
        """End the writer after its queue, save the index and release the lock. Threads may go on
        reading."""
        if not self._writer.is_alive():
            return
        self._waiting.put(None)
        self._writer.join()
        if self._end > self._begin:
            self._save_index()
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if (file := getattr(self, "_file", None)) is not None:
            os.close(file)

    @property
    def _index(self) -> Path:
        return self.pack.with_suffix(".npz")

    def _load(self) -> None:
        """Load the index of an earlier run; one that does not fit is ignored."""
        try:
            with np.load(self._index, allow_pickle=False) as arrays:
                offset, size = arrays["offset"], arrays["size"]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
            return
        end = int((offset + size).max(initial=0))
        if offset.shape == size.shape == self._offset.shape and end <= os.stat(self.pack).st_size:
            self._offset, self._size, self._end, self._begin = offset, size, end, end

    def _write(self) -> None:
        while (item := self._waiting.get()) is not None:
            number, data = item
            if self.stopped or self._offset[number] != _NOWHERE:
                continue
            try:
                self.stopped = self._limit_reached(len(data))
                if not self.stopped:
                    self._append(number, data)
            except OSError as error:
                self.stopped = f"writing failed: {error.strerror}"

    def _limit_reached(self, size: int) -> str:
        disk = shutil.disk_usage(self.pack.parent)
        if self._end + size > self._limit_bytes:
            return "the size limit is reached"
        if disk.free - size < FREE_FRACTION * disk.total:
            return "the disk has less than a tenth free"
        return ""

    def _append(self, number: int, data: bytes) -> None:
        rest, at = memoryview(data), self._end
        while rest:
            written = os.pwrite(self._file, rest, at)
            rest, at = rest[written:], at + written
        self._size[number] = len(data)
        self._offset[number] = self._end  # last: from now on it is read from the pack
        self._end = at

    def _save_index(self) -> None:
        try:
            os.fsync(self._file)
            file, name = tempfile.mkstemp(suffix=".part", dir=self.pack.parent)
            with os.fdopen(file, "wb") as index:
                np.savez(index, offset=self._offset, size=self._size)
            os.replace(name, self._index)
        except OSError as error:
            self.stopped = f"writing failed: {error.strerror}"
