"""Stores on file systems of several hosts, where SQLite's WAL mode loses what others write.

WAL needs memory that all processes share, which two hosts do not have, and locks that work
(sqlite.org/wal.html, sqlite.org/faq.html#q5). On NFS, SMB, 9p, FUSE and the like the store uses a
rollback journal and has one writer at a time, which a file next to it names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cubemesh.errors import BusyError, StoreError
from cubemesh.untrusted import clean

MOUNTS = Path("/proc/self/mountinfo")
SHARED = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse", "afs", "coda", "davfs"),
        *("virtiofs", "vboxsf", "drvfs", "prl_fs", "vmhgfs"),
        *("ceph", "lustre", "gpfs", "beegfs", "glusterfs", "gfs2", "ocfs2", "orangefs", "pvfs2"),
        "panfs",
    )
)
"""Types of file systems that several hosts can write, or whose locks are unsound; so is any of
FUSE's, `fuse.sshfs`."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


def is_shared(path: Path) -> bool:
    """Whether the file system of a store's file is one of `SHARED`; False where it is unknown."""
    kind = file_system(path.parent)
    return kind in SHARED or kind.startswith("fuse.")


def file_system(folder: Path) -> str:
    """The type of the file system of a folder: that of the longest mount point above it, the last
    of several at one place (proc_pid_mountinfo(5)). Empty if unknown."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    inside, longest, kind = Path(os.path.realpath(folder)), -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, described = before.split(" "), after.split(" ")
        if len(fields) < 5:
            continue
        point = Path(_ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        if inside.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), described[0]
    return kind


@dataclass(frozen=True)
class Writer:
    """The process that writes a store."""

    host: str
    pid: int
    started: int | None
    """As of `started_ticks`: a process id may be used again."""

    @property
    def is_here(self) -> bool:
        """Whether it is or was a process of this host."""
        return self.host == socket.gethostname()

    @property
    def has_ended(self) -> bool:
        """Whether it surely has: it was a process of this host, and is none now."""
        return self.is_here and started_ticks(self.pid) != self.started


def started_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since the boot, which setting the clock does not
    change (proc_pid_stat(5)); None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class WriterLock:
    """The file `STORE.writer`, made by the one process that writes a store and removed at its end.

    To make a file that must not exist is atomic on network file systems, too (open(2), O_EXCL).
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = store.with_name(store.name + ".writer")
        pid = os.getpid()
        self._own = Writer(host=socket.gethostname(), pid=pid, started=started_ticks(pid))

    def take(self, timeout_s: float) -> None:
        """Become the writer. BusyError, naming the writer and PostgreSQL, where another one has not
        ended after `timeout_s`; StoreError where the file cannot be made."""
        end_s = time.monotonic() + timeout_s
        while not self._made():
            writer = self._writer()
            if writer is not None and writer.has_ended:
                self._remove_of(writer)
            elif time.monotonic() >= end_s:
                raise BusyError(self._busy(writer))
            else:
                time.sleep(0.05)

    def release(self) -> None:
        """Stop being the writer."""
        if self._writer() == self._own:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _made(self) -> bool:
        try:
            with open(self._path, "x", encoding="ascii") as file:
                json.dump(asdict(self._own), file)
        except FileExistsError:
            return False
        except OSError as error:
            raise StoreError(
                f"{self._path} cannot be written: {error.strerror}. Name another store with "
                "--store."
            ) from error
        return True

    def _writer(self) -> Writer | None:
        """Who made the file; None if it is gone, or not yet written."""
        try:
            return Writer(**json.loads(self._path.read_text(encoding="ascii")))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def _remove_of(self, ended: Writer) -> None:
        """Remove the file of a writer that has ended; one that was made since is put back."""
        aside = self._path.with_name(f"{self._path.name}-{os.getpid()}")
        with contextlib.suppress(OSError):
            os.rename(self._path, aside)
            with contextlib.suppress(ValueError, TypeError):
                if Writer(**json.loads(aside.read_text(encoding="ascii"))) != ended:
                    os.link(aside, self._path)
            os.unlink(aside)

    def _busy(self, writer: Writer | None) -> str:
        who, killed = "another process", ""
        if writer is not None:
            who = f"process {writer.pid} on {clean(str(writer.host), 100)}"
        if writer is None or not writer.is_here:
            killed = f" If it was killed, which this host cannot see, remove {self._path} by hand."
        return (
            f"The store {self._store} is on a file system of several hosts, where one process at a "
            f"time can write it: {who} does. Wait until it has ended, or use a server with --store "
            f"postgresql+psycopg://user@host/database.{killed}"
        )


def lock_writer(store: Path | None, timeout_s: float) -> WriterLock | None:
    """The lock of the one writer of a store's file on a file system of several hosts; None where it
    needs none. Errors as of `WriterLock.take`."""
    if store is None or not is_shared(store):
        return None
    lock = WriterLock(store)
    lock.take(timeout_s)
    return lock
