"""Where does a run keep its files while it runs? In a folder of the runner's own, in the cache.

    $XDG_CACHE_HOME/cubemesh/runs/          (~/.cache/... where that is not set)
        77-x1k2/                            one runner, by its process id
            owner                           locked by the runner as long as it lives
            server-pytorch.txt              what the forkserver printed
            run-3/                          one run: job.json, events-0.jsonl, output-0.txt

A runner removes its folder as it ends. One that was killed cannot, so the next to start removes
every folder whose owner file nobody holds locked. The kernel gives a lock back when its holder
dies, however it dies, which a process id that may be another's by now cannot tell.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

OWNER_FILE = "owner"


def default_runs_folder() -> Path:
    """Where run folders live unless the caller says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return cache / "cubemesh" / "runs"


class RunFolders:
    """The folder of one runner, and the folders of its runs in it."""

    def __init__(self, base: Path) -> None:
        base.mkdir(parents=True, exist_ok=True)
        # One at a time: a folder just made, not yet locked, must not look abandoned.
        with open(base / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _remove_abandoned(base)
            self.path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=base))
            self._owner = open(self.path / OWNER_FILE, "w")  # noqa: SIM115 (held until close)
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._runs = 0

    def new_run(self) -> Path:
        """An empty folder for the next run."""
        self._runs += 1
        path = self.path / f"run-{self._runs}"
        path.mkdir()
        return path

    def close(self) -> None:
        """Remove everything."""
        remove(self.path)
        self._owner.close()


def remove(folder: Path) -> None:
    """Remove a folder with all in it. What cannot be removed now (a network file system keeps a
    file that a dying worker still holds open) is left to the next start."""
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
