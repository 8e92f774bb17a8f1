"""A rank that stops itself (SIGSTOP), noticed by its heartbeat, whatever the speed of the machine.

On a busy machine a rank may have no heartbeat for a while, so a test would have to allow for a
minute of it. Here heartbeats of that rank count, and only while the kernel says that it is stopped.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from cubemesh.runs import watch
from cubemesh.worker.run.job_file import Job


def stop_this(note: Path) -> None:
    """Stop this process, whose number is in the file `note` then."""
    unnoted = note.with_suffix(".part")
    unnoted.write_text(str(os.getpid()))
    unnoted.rename(note)
    os.kill(os.getpid(), signal.SIGSTOP)


def is_stopped(note: Path) -> bool:
    """Whether the process that `stop_this` stopped is so now."""
    try:
        return psutil.Process(int(note.read_text())).status() == psutil.STATUS_STOPPED
    except (FileNotFoundError, psutil.Error):
        return False


def watch_only(stopped_rank: int, note: Path, replace: Callable[..., None] = setattr) -> None:
    """Runs of this process end for no heartbeat of the stopped rank only, and wait for the stacks
    of rank 0, which it writes. `replace` is called as `setattr`."""
    silent, stacks = watch._Watcher.silent, watch._stacks

    def silent_and_stopped(self: watch._Watcher, most_s: float) -> dict[int, float]:
        found = silent(self, most_s) if is_stopped(note) else {}
        return {rank: s for rank, s in found.items() if rank == stopped_rank}

    def stacks_of_first(job: Job) -> dict[int, str]:
        while 0 not in (found := stacks(job)):
            pass  # each call waits a moment
        return found

    replace(watch._Watcher, "silent", silent_and_stopped)
    replace(watch, "_stacks", stacks_of_first)
