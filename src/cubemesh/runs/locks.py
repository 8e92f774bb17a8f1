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
from contextlib import suppress
from pathlib import Path

from cubemesh.errors import BusyError, CubemeshError
from cubemesh.units import format_seconds
from cubemesh.untrusted import shown_path

POLL_S = 0.1
_MOST_HOLDER_BYTES = 4096


class DeviceLocks:
    """Locks of one runner, held until `close`, so that no other runner comes between the runs of a
    suite."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

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
        file = _open_lock(path)
        deadline = time.monotonic() + wait_s
        waiting = False
        while not _locked(file):
            if time.monotonic() >= deadline:
                holder = _holder(file)
                os.close(file)
                raise BusyError(_busy(device, holder, wait_s))
            if not waiting:
                waiting = True
                limit = format_seconds(wait_s)
                announce(f"{_name(device)} is in use by {_holder(file)}. Waiting up to {limit}.")
            time.sleep(POLL_S)
        command = [os.path.basename(sys.argv[0]) or "python", *sys.argv[1:]]
        named = f"{os.getpid()} {' '.join(command)}\n".encode(errors="replace")
        with suppress(OSError):  # on a full disk the lock holds as well, without a name
            os.ftruncate(file, 0)
            os.pwrite(file, named[:_MOST_HOLDER_BYTES], 0)
        self._held[device] = file

    def close(self) -> None:
        """Unlock every device."""
        for file in self._held.values():
            with suppress(OSError):
                os.ftruncate(file, 0)
            os.close(file)
        self._held.clear()


def lock_folder() -> Path:
    """The folder of the lock files, created if missing, mode 0700. Raises CubemeshError where it
    cannot be, or is not a folder of this user's."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = os.path.isabs(runtime) and os.access(runtime, os.W_OK)
    folder = Path(runtime, "cubemesh") if usable else Path(f"/tmp/cubemesh-{os.getuid()}")
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise CubemeshError(
            f"'{folder}', the folder of the device locks, cannot be made: {error.strerror}. Set "
            "XDG_RUNTIME_DIR to a folder that can be written."
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CubemeshError(
            f"'{folder}', the folder of the device locks, must be yours and have mode 0700. Remove "
            "it, or set XDG_RUNTIME_DIR to another folder."
        )
    return folder


def _open_lock(path: Path) -> int:
    """Open a lock file, created if missing, without following a link or waiting for the reader of a
    FIFO. Raises CubemeshError where it is none."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    reason = "it is not a regular file"
    try:
        file = os.open(path, flags, 0o600)
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    raise CubemeshError(
        f"The lock file {shown_path(path)} cannot be opened: {reason}. Remove it, or set "
        "XDG_RUNTIME_DIR to another folder."
    )


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: int) -> str:
    """`process 77 (cubemesh run quick)`, which the holder writes after locking."""
    text = os.pread(file, _MOST_HOLDER_BYTES, 0).decode(errors="replace")
    pid, _, command = text.strip().partition(" ")
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
