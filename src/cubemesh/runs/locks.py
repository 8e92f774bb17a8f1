"""Device locks: a locked file for each device, so that two runs do not measure each other.

The files are in `$XDG_RUNTIME_DIR`, or in `/tmp/cubemesh-UID` without it. A file names its holder,
and the kernel releases the lock when the holder dies.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from cubemesh.errors import BusyError, CubemeshError
from cubemesh.units import format_seconds

POLL_S = 0.1


class DeviceLocks:
    """Locks of one runner, held until `close`, so that no other runner comes between the runs of a
    suite."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[str, IO[str]] = {}

    def take(
        self,
        device: str,
        wait_s: float = 0.0,
        announce: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Lock `device` (`cpu`, or a GPU's UUID), waiting up to `wait_s`; `announce` gets a
        sentence before that. Raises BusyError with the holder if it stays locked. Does nothing for
        a device that is held already."""
        if device in self._held:
            return
        self._folder = self._folder or lock_folder()
        path = self._folder / f"device-{re.sub('[^A-Za-z0-9.-]', '_', device)}.lock"
        # The lock lasts while the file is open; children close it on exec.
        file = open(path, "a+")  # noqa: SIM115
        deadline = time.monotonic() + wait_s
        waiting = False
        while not _locked(file):
            if time.monotonic() >= deadline:
                holder = _holder(file)
                file.close()
                raise BusyError(_busy(device, holder, wait_s))
            if not waiting:
                waiting = True
                limit = format_seconds(wait_s)
                announce(f"{_name(device)} is in use by {_holder(file)}. Waiting up to {limit}.")
            time.sleep(POLL_S)
        command = [os.path.basename(sys.argv[0]) or "python", *sys.argv[1:]]
        file.truncate(0)
        file.write(f"{os.getpid()} {' '.join(command)}\n")
        file.flush()
        self._held[device] = file

    def close(self) -> None:
        """Unlock every device."""
        for file in self._held.values():
            file.truncate(0)
            file.close()
        self._held.clear()


def lock_folder() -> Path:
    """The folder of the lock files, created if missing, mode 0700. Raises CubemeshError where it is
    not a folder of this user's."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = os.path.isabs(runtime) and os.access(runtime, os.W_OK)
    folder = Path(runtime, "cubemesh") if usable else Path(f"/tmp/cubemesh-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CubemeshError(
            f"'{folder}', the folder of the device locks, must be yours and have mode 0700. Remove "
            "it, or set XDG_RUNTIME_DIR to another folder."
        )
    return folder


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: IO[str]) -> str:
    """`process 77 (cubemesh run quick)`, which the holder writes after locking."""
    file.seek(0)
    pid, _, command = file.read().strip().partition(" ")
    return f"process {pid} ({command})" if pid else "another process"


def _busy(device: str, holder: str, wait_s: float) -> str:
    waited = f" Waited {format_seconds(wait_s)}." if wait_s else ""
    wait = "Try again when it is done" if wait_s else "Wait for it with --wait 10m"
    return (
        f"{_name(device)} is in use by {holder}; two runs on one device would measure each other."
        f"{waited} {wait}, or choose another device."
    )


def _name(device: str) -> str:
    return "The CPU" if device == "cpu" else f"GPU {device}"
