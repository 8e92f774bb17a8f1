"""How are two runs on one device kept apart? A locked file for each device.

Two measurements that share a device measure each other. The file stands in `$XDG_RUNTIME_DIR`, or
in `/tmp/cubemesh-UID` where there is none; it names its holder, and the kernel frees the lock when
the holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import IO

from cubemesh.errors import BusyError, CubemeshError
from cubemesh.units import format_seconds

POLL_S = 0.1


class DeviceLocks:
    """The locks one runner holds; it keeps each until it closes, so that nobody comes in between
    the runs of a suite."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[str, IO[str]] = {}

    def take(self, device: str, wait_s: float = 0.0) -> None:
        """Have `device` (`cpu`, or a GPU's UUID) for this runner alone, waiting up to `wait_s`.

        Raises BusyError naming the holder when it stays taken. Taking what is held does nothing.
        """
        if device in self._held:
            return
        self._folder = self._folder or lock_folder()
        path = self._folder / f"device-{re.sub('[^A-Za-z0-9.-]', '_', device)}.lock"
        # Kept open: the lock lasts as long as the file. Not for children: it closes on exec.
        file = open(path, "a+")  # noqa: SIM115
        deadline = time.monotonic() + wait_s
        while not _locked(file):
            if time.monotonic() >= deadline:
                holder = _holder(file)
                file.close()
                raise BusyError(_busy(device, holder, wait_s))
            time.sleep(POLL_S)
        file.truncate(0)
        file.write(f"{os.getpid()} {' '.join(_command())}\n")
        file.flush()
        self._held[device] = file

    def close(self) -> None:
        """Give every device back."""
        for file in self._held.values():
            file.truncate(0)
            file.close()
        self._held.clear()


def lock_folder() -> Path:
    """The folder of the lock files, made if need be; only its owner may look into it.

    Raises CubemeshError when somebody else has put something in its place.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = os.path.isabs(runtime) and os.access(runtime, os.W_OK)
    folder = Path(runtime, "cubemesh") if usable else Path(f"/tmp/cubemesh-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CubemeshError(
            f"'{folder}', where device locks are kept, must be a folder that is yours and closed "
            "to others (mode 0700). Remove it, or set XDG_RUNTIME_DIR to a folder of your own."
        )
    return folder


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: IO[str]) -> str:
    """`process 77 (cubemesh run quick)`; the holder writes it right after it has locked."""
    file.seek(0)
    pid, _, command = file.read().strip().partition(" ")
    return f"process {pid} ({command})" if pid else "another process"


def _busy(device: str, holder: str, wait_s: float) -> str:
    name = "The CPU" if device == "cpu" else f"GPU {device}"
    waited = f" Waited {format_seconds(wait_s)}." if wait_s else ""
    return (
        f"{name} is in use by {holder}, and two runs on one device would measure each other."
        f"{waited} Try again when it is done, or choose another device."
    )


def _command() -> list[str]:
    return [os.path.basename(sys.argv[0]) or "python", *sys.argv[1:]]
