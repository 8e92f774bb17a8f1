"""Mounts: the file system on which a path is, its type and its source.

Read from /proc/self/mountinfo (proc_pid_mountinfo(5)). A network file system, such as NFS, is a
mount like any other; its type and server explain a rate of reading.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "9p", "fuse.sshfs")
"""Types of file systems whose files are on another machine."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    type: str
    """Such as `ext4` or `nfs4`."""
    source: str
    """Device, or server and export."""
    point: str
    """Where it is mounted."""

    @property
    def is_network(self) -> bool:
        """Whether its files are on another machine."""
        return self.type in NETWORK

    def __str__(self) -> str:
        """`nfs4 (server:/export, mounted at /net)`."""
        return f"{self.type} ({self.source}, mounted at {self.point})"


def mount_of(path: str | Path) -> Mount | None:
    """The mount of a file or folder; None if unknown."""
    try:
        device = os.stat(path).st_dev
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return mount_in(table, f"{os.major(device)}:{os.minor(device)}")


def mount_in(table: str, device: str) -> Mount | None:
    """The first mount of a device (`8:1`) in the text of mountinfo."""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, more = before.split(), after.split()
        if len(fields) > 4 and fields[2] == device and len(more) > 1:
            return Mount(more[0], _plain(more[1]), _plain(fields[4]))
    return None


def _plain(text: str) -> str:
    """Blanks are written as `\\040`."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
