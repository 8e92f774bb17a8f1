"""Writing checkpoints while training goes on.

    step … step │ snapshot │ step … step … step … step │ snapshot │ step …
                     └──▶ thread: write, sync, rename, remove old ─┘

The snapshot is a copy, so nothing that training does afterwards gets into it. One is written at a
time: where the disk is slower than the training makes them, the next snapshot waits for the one
before it. What cannot be written, for whatever reason, ends no training: what is kept stays, and a
warning says it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from cubemesh.measure.log import Log
from cubemesh.schema.record import Figure
from cubemesh.schema.warning import warn
from cubemesh.training.checkpoint import Checkpoint, give_up, not_finite, prune, save


class Saver:
    """Writes one rank's part of the checkpoints in `folder`; rank 0 of `ranks` removes all but the
    newest `keep`."""

    def __init__(self, folder: Path, *, rank: int, ranks: int, keep: int) -> None:
        self.folder = folder
        self._rank, self._ranks, self._keep = rank, ranks, keep
        self._thread: threading.Thread | None = None
        self._failed: dict[int, str] = {}
        self._written = 0
        self._size_bytes = 0
        self._waited_s = 0.0
        self.newest: int | None = None
        """The step of the last that was written."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Write `checkpoint` from now on. Waits for the one before it."""
        self.wait()
        self._thread = threading.Thread(
            target=self._write, args=(checkpoint,), name="cubemesh-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when what was given is on the disk, or has failed to be."""
        if self._thread is not None:
            start = time.perf_counter()
            self._thread.join()
            self._waited_s += time.perf_counter() - start
            self._thread = None

    def prune(self) -> None:
        """Remove old checkpoints, on rank 0."""
        if self._rank == 0:
            prune(self.folder, self._ranks, self._keep)

    def tell(self, log: Log) -> None:
        """What came of it: how many, how large, how long the training waited, and what failed."""
        self.wait()
        if self._written:
            size = Figure(value=self._size_bytes, unit="B", method="of one rank, the last")
            log.figure("checkpoint_bytes", size)
            log.figure("checkpoints_written", Figure(value=self._written, unit=""))
        wait = Figure(value=self._waited_s, unit="s", method="for the checkpoint before it")
        log.figure("checkpoint_wait_s", wait)
        if self._failed:
            step, why = next(iter(self._failed.items()))
            kept = "none is kept" if self.newest is None else f"the newest is of step {self.newest}"
            cause = (
                f"{len(self._failed)} checkpoints of rank {self._rank} could not be written to "
                f"'{self.folder}', the first after step {step}: {why}; {kept}."
            )
            remedy = "Make room there, keep fewer (keep), or name a folder on another disk."
            log.warning(warn("checkpoint-failed", cause, remedy))

    def _write(self, checkpoint: Checkpoint) -> None:
        failed = self._try_to_write(checkpoint)
        if failed:
            self._failed[checkpoint.step] = failed
            give_up(self.folder, checkpoint.step, self._rank)
        with contextlib.suppress(OSError):  # what cannot be looked through now can be the next time
            self.prune()

    def _try_to_write(self, checkpoint: Checkpoint) -> str:
        """Why it could not be; empty where it was. Nobody would hear what a thread raises."""
        try:
            if (name := not_finite(checkpoint.snapshot)) is not None:
                return f"{name} holds what is no finite number"
            self._size_bytes = save(self.folder, self._rank, checkpoint)
        except OSError as error:
            return error.strerror or type(error).__name__
        except MemoryError:
            return "no memory was left to write it from"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        self._written += 1
        self.newest = checkpoint.step
        return ""
