"""Folders of running runs, in a folder of the runner's own, in the cache.

    $XDG_CACHE_HOME/cubemesh/runs/          (~/.cache/... where that is not set)
        77-x1k2/                            one runner, by its process id
            owner                           locked by the runner while it lives
            server-pytorch.txt              output of the forkserver
            run-3/                          one run: job.json, events-0.jsonl, output-0.txt

A runner removes its folder when it ends. A killed one cannot, so the next runner removes every
folder whose owner file is not locked: the kernel releases a lock when its holder dies, whereas a
process id may have been reused.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from cubemesh.errors import CubemeshError, UsageError
from cubemesh.user_folders import cache_folder

OWNER_FILE = "owner"


def default_runs_folder() -> Path:
    """Default location of run folders."""
    return cache_folder() / "runs"


class RunFolders:
    """The folder of one runner, with a folder for each of its runs."""

    def __init__(self, base: Path) -> None:
        try:
            base.mkdir(parents=True, exist_ok=True)
            # One at a time: a new folder that is not yet locked must not look abandoned.
            with open(base / ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                _remove_abandoned(base)
                self.path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=base))
                self._owner = open(self.path / OWNER_FILE, "w")  # noqa: SIM115 (held until close)
                fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"The folder of running runs, {base}, cannot be written: {error.strerror}. Set "
                "XDG_CACHE_HOME to a folder that can."
            ) from error
        self._runs = 0

    def new_run(self) -> Path:
        """An empty folder for the next run."""
        self._runs += 1
        path = self.path / f"run-{self._runs}"
        try:
            path.mkdir()
        except OSError as error:
            raise self.error(error) from error
        return path

    def error(self, error: OSError) -> CubemeshError:
        """What to tell about a run that cannot begin, because of its folder or its process."""
        return CubemeshError(
            f"A run cannot begin in {self.path}: {error.strerror or error}. Finished runs are "
            "saved; once there is room, the same command continues. XDG_CACHE_HOME names another "
            "folder."
        )

    def close(self) -> None:
        """Remove the runner's folder."""
        remove(self.path)
        self._owner.close()


def remove(folder: Path) -> None:
    """Remove a folder and its contents. What cannot be removed now (a network file system holds a
    file that a dying worker still has open) is left to the next runner."""
    shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(base: Path) -> None:
    for folder in base.iterdir():
        if folder.is_dir() and not _held(folder / OWNER_FILE):
            remove(folder)


def _held(owner: Path) -> bool:
    try:
        with open(owner, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # locked by its runner, or not ours to open
        return True
    return False
