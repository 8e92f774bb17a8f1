"""Lock of a checkpoint folder: one run writes to it at a time.

    checkpoints/training.lock    locked (flock) while a run writes; its text names that run

The kernel unlocks the file when its process dies. Not every network file system shows a lock to
other hosts, so a holder also touches the file every few seconds, and a run on another host waits
for that before it takes over. A holder that was taken over notices it before its next checkpoint:
the file no longer has its run id.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import stat
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from cubemesh.errors import BusyError, UsageError
from cubemesh.schema.serialization import from_plain

LOCK_FILE = "training.lock"
TOUCH_S = 2.0
"""Interval at which a holder touches the file."""
WATCH_S = 12.0
"""Time without a touch after which a run on another host counts as ended."""
TRIES, PAUSE_S = 20, 0.1
"""Attempts to lock: another command that looks at the folder locks it for a moment."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The run that writes to a folder."""

    run: str
    host: str
    kernel: str
    """Identifies the running kernel: on one kernel every process sees a lock."""
    pid: int
    started_utc: str

    def __str__(self) -> str:
        return f"run {self.run} (process {self.pid} on {self.host}, since {self.started_utc})"


class FolderLock:
    """The lock of `folder`, held until `close` or the end of the process. BusyError naming the run
    that holds it; OSError where the file cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = _open(folder, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._closed = threading.Event()
        try:
            holder = _holder(folder, self._file, fcntl.LOCK_EX)
            if holder is not None:
                raise in_use(folder, holder)
            self.run = uuid.uuid4().hex[:12]
            own = Holder(
                run=self.run,
                host=socket.gethostname(),
                kernel=_kernel(),
                pid=os.getpid(),
                started_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
            self._file.truncate(0)
            self._file.write(json.dumps(asdict(own)) + "\n")
            self._file.flush()
        except BaseException:
            self._file.close()
            raise
        self._thread = threading.Thread(target=self._touch, name="cubemesh-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """UsageError if another run took the folder over."""
        try:
            with _open(self._folder) as file:
                now = _read(file)
        except OSError:  # the folder is gone or out of reach: the next write reports it
            return
        if now is not None and now.run != self.run:
            raise UsageError(
                f"'{self._folder}' was taken over by {now}, so this run, {self.run}, ended without "
                "a further checkpoint. Train in another folder."
            )

    def close(self) -> None:
        """Unlock the folder."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            with contextlib.suppress(UsageError, OSError):  # another run's name stays
                self.check()
                self._file.truncate(0)
            self._file.close()

    def _touch(self) -> None:
        while not self._closed.wait(TOUCH_S):
            with contextlib.suppress(OSError):
                os.utime(self._file.fileno())


def holder_of(folder: Path) -> Holder | None:
    """The run that writes to `folder`; None if there is none."""
    try:
        file = _open(folder)
    except FileNotFoundError:
        return None
    with file:
        return _holder(folder, file, fcntl.LOCK_SH)


def _open(folder: Path, flags: int = os.O_RDONLY) -> IO[str]:
    """Open the lock file. OSError where a link, a FIFO or anything else has its name: the folder
    may be a stranger's, and what a link names would be emptied."""
    path = folder / LOCK_FILE
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(file)
        raise OSError(errno.EINVAL, f"its {LOCK_FILE} is no file of its own", str(path))
    return os.fdopen(file, "r" if flags == os.O_RDONLY else "a+")


def in_use(folder: Path, holder: Holder) -> BusyError:
    """The error for a folder that another run writes to."""
    return BusyError(
        f"checkpoints={folder}: {holder} writes its checkpoints there. Wait until it has ended, or "
        "choose another folder with --checkpoints."
    )


def _holder(folder: Path, file: IO[str], kind: int) -> Holder | None:
    """The living run that holds the lock; None once it is locked, or free on a file system without
    locks."""
    for attempt in range(TRIES):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            locked = True
            break
        except BlockingIOError:
            if attempt + 1 == TRIES:
                return _read(file) or _UNNAMED
            time.sleep(PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            locked = False
            break
    named = _read(file)
    if named is None or (locked and named.kernel == _kernel()):
        return None
    return named if _is_touched(folder) else None


def _is_touched(folder: Path) -> bool:
    """Whether a living run touches the file. Each look opens it, for then a network file system
    asks its server."""
    before, end = _touched_ns(folder), time.monotonic() + WATCH_S
    while time.monotonic() < end:
        time.sleep(PAUSE_S)
        if _touched_ns(folder) != before:
            return True
    return False


def _touched_ns(folder: Path) -> int:
    with _open(folder) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _read(file: IO[str]) -> Holder | None:
    """The run that the file names; None if it names none."""
    file.seek(0)
    try:
        return from_plain(Holder, json.loads(file.read(4096)))
    except (ValueError, TypeError, RecursionError):
        return None


def _kernel() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


_UNNAMED = Holder(run="without a name", host="an unknown host", kernel="", pid=0, started_utc="")
