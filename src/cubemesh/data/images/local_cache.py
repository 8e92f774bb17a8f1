"""Local cache: images from a slow source are stored on a local disk.

DGX-1 V100 white paper [002], section 2.1: working sets are staged and cached on the local disks
while training runs. The first epoch reads from the source; each image that comes is handed to a
thread that appends it to one local file, the *pack*, and from then on it is read from there.

The pack is only ever appended to, by the one run that holds its lock. Its index is written beside
it and takes its name when it is whole (rename), so that whenever a run ends, the index that is
there is true of the pack: later runs begin with it and go on.

The pack ends, and the rest is read from the source as before, where it would pass the limit or
leave the disk with less than a tenth free, or where writing fails. When the writer falls behind,
images are passed over until the next epoch: training never waits for it.
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
from cubemesh.data.images.timed_reader import WrappedReader
from cubemesh.errors import UsageError

LIMIT_BYTES = 100 << 30
"""Most that a pack takes where nothing else is asked for."""
FREE_SHARE = 0.1
"""Of the disk, to be left free."""
WAITING = 64
"""Images that may wait to be written."""

_NOWHERE = -1


class LocalCache(WrappedReader):
    """Encoded images that are read from a pack in `folder` once they have come from where they lie.

    UsageError where the folder cannot be written to. `close` it, or its pack is forgotten.
    """

    def __init__(
        self, encoded: EncodedImages, folder: Path, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        super().__init__(encoded)
        count = len(encoded.labels)
        self.pack = folder / f"cubemesh-images-{encoded.identity()}.pack"
        self.stopped = ""
        """Why no more is written; empty while it goes on."""
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
            with contextlib.suppress(queue.Full):  # the next epoch has it again
                self._waiting.put_nowait((number, data))
        return data

    def close(self) -> None:
        """End the writer when it has written what waits, keep the index and let others write. What
        is in the pack can be read all the same: threads may be at it."""
        if not self._writer.is_alive():
            return
        self._waiting.put(None)
        self._writer.join()
        if self._end > self._begin:
            self._keep_index()
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if (file := getattr(self, "_file", None)) is not None:
            os.close(file)

    @property
    def _index(self) -> Path:
        return self.pack.with_suffix(".npz")

    def _load(self) -> None:
        """Begin with what an earlier run has kept; an index that does not fit is none."""
        try:
            with np.load(self._index, allow_pickle=False) as arrays:
                offset, size = arrays["offset"], arrays["size"]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
            return
        end = int((offset + size).max(initial=0))
        if offset.shape == size.shape == self._offset.shape and end <= os.stat(self.pack).st_size:
            self._offset, self._size, self._end, self._begin = offset, size, end, end

    def _write(self) -> None:
        while (given := self._waiting.get()) is not None:
            number, data = given
            if self.stopped or self._offset[number] != _NOWHERE:
                continue
            try:
                self.stopped = self._why_no_more(len(data))
                if not self.stopped:
                    self._append(number, data)
            except OSError as error:
                self.stopped = f"writing failed: {error.strerror}"

    def _why_no_more(self, size: int) -> str:
        disk = shutil.disk_usage(self.pack.parent)
        if self._end + size > self._limit_bytes:
            return "the size limit is reached"
        if disk.free - size < FREE_SHARE * disk.total:
            return "the disk has less than a tenth free"
        return ""

    def _append(self, number: int, data: bytes) -> None:
        rest, at = memoryview(data), self._end
        while rest:
            written = os.pwrite(self._file, rest, at)
            rest, at = rest[written:], at + written
        self._size[number] = len(data)
        self._offset[number] = self._end  # last, because from here on it is read from there
        self._end = at

    def _keep_index(self) -> None:
        try:
            os.fsync(self._file)
            file, name = tempfile.mkstemp(suffix=".part", dir=self.pack.parent)
            with os.fdopen(file, "wb") as index:
                np.savez(index, offset=self._offset, size=self._size)
            os.replace(name, self._index)
        except OSError as error:
            self.stopped = f"writing failed: {error.strerror}"
