"""Checkpoint and TensorBoard writer: what a training saves while it goes on.

    step … step │ snapshot │ step … step … step … step │ snapshot │ step …
                     └──▶ thread: write, sync, rename, remove old ─┘

The snapshot is a copy, so later steps do not change it. One is written at a time: if the disk is
slower than the training, the next snapshot waits for the previous one. A failure to write does not
end the training; older checkpoints stay, and a warning reports it.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Program, SupportsSnapshots
from cubemesh.measure.log import Log
from cubemesh.schema.record import Figure
from cubemesh.schema.warning import warn
from cubemesh.training.checkpoint import (
    Checkpoint,
    mark_failed,
    not_finite,
    prune,
    require_safetensors,
    save,
)
from cubemesh.training.checkpoint_interval import (
    FAULT_EVERY_S,
    CheckpointTimes,
    IntervalRule,
    daly_interval_s,
)
from cubemesh.training.history import History
from cubemesh.training.manifest import Claim
from cubemesh.training.tensorboard import EventFile
from cubemesh.units import format_seconds


class CheckpointWriter:
    """Writes one rank's part of the checkpoints in `folder`, in a thread; rank 0 of `ranks` removes
    all but the newest `keep`, and has the `claim` to the folder."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        ranks: int,
        keep: int,
        claim: Claim | None = None,
        fault_every_s: float | None = None,
    ) -> None:
        require_safetensors()
        self.fault_every_s = fault_every_s
        """Expected time between faults; None: the default."""
        self.folder = folder
        self._rank, self._ranks, self._keep = rank, ranks, keep
        self._claim = claim
        self._thread: threading.Thread | None = None
        self._failed: dict[int, str] = {}
        self._written = 0
        self._size_bytes = 0
        self._waited_s = 0.0
        self.times = CheckpointTimes()
        self.newest: int | None = None
        """The step of the last one written."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Start to write `checkpoint`, after the previous one is written. UsageError if another run
        took the folder over."""
        self.wait()
        self.check()
        self.times.begun_s.append(time.perf_counter())
        self._thread = threading.Thread(
            target=self._write, args=(checkpoint,), name="cubemesh-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when the last checkpoint is on the disk, or has failed."""
        if self._thread is not None:
            start = time.perf_counter()
            self._thread.join()
            self._waited_s += time.perf_counter() - start
            self._thread = None

    def check(self) -> None:
        """UsageError if another run took the folder over."""
        if self._claim is not None:
            self._claim.check()

    def prune(self) -> None:
        """Remove old checkpoints, on rank 0."""
        if self._rank == 0:
            with contextlib.suppress(OSError, UsageError):  # the next call may succeed
                self.check()
                prune(self.folder, self._ranks, self._keep)

    def report(self, log: Log) -> None:
        """Log number, size, waiting time and failures."""
        self.wait()
        if self._written:
            size = Figure(value=self._size_bytes, unit="B", method="of one rank, the last")
            log.figure("checkpoint_bytes", size)
            log.figure("checkpoints_written", Figure(value=self._written, unit=""))
            self._report_times(log)
        wait = Figure(value=self._waited_s, unit="s", method="for the checkpoint before it")
        log.figure("checkpoint_wait_s", wait)
        if self._claim is not None:
            self._claim.close()
        if self._failed:
            step, why = next(iter(self._failed.items()))
            newest = "no checkpoint" if self.newest is None else f"step {self.newest}"
            cause = (
                f"{len(self._failed)} checkpoints of rank {self._rank} could not be written to "
                f"'{self.folder}', the first after step {step}: {why}; newest: {newest}."
            )
            remedy = "Free disk space, keep fewer (keep), or name a folder on another disk."
            log.warning(warn("checkpoint-failed", cause, remedy))

    def _report_times(self, log: Log) -> None:
        """Log what a checkpoint costs and the interval, next to that of the rule."""
        times, fault_every_s = self.times, self.fault_every_s or FAULT_EVERY_S
        if times.cost_s is None:
            return
        count = len(times.waits_s)
        method = "median: time for which training waits, and processor time of writing"
        log.figure(
            "checkpoint_cost_s", Figure(value=times.cost_s, unit="s", n=count, method=method)
        )
        write = Figure(value=times.write_s, unit="s", n=count, method="median, in the background")
        log.figure("checkpoint_write_s", write)
        if times.interval_s is not None:
            mean = Figure(value=times.interval_s, unit="s", n=count - 1, method="mean")
            log.figure("checkpoint_interval_s", mean)
        rule_s = daly_interval_s(times.cost_s, fault_every_s)
        method = f"Daly 2006, for a fault every {format_seconds(fault_every_s)}"
        log.figure("checkpoint_rule_s", Figure(value=rule_s, unit="s", method=method))

    def _write(self, checkpoint: Checkpoint) -> None:
        began, busy = time.perf_counter(), time.thread_time()
        failure = self._try_to_write(checkpoint)
        self.times.writes_s.append(time.perf_counter() - began)
        self.times.busy_s.append(time.thread_time() - busy)
        if failure:
            self._failed[checkpoint.step] = failure
            mark_failed(self.folder, checkpoint.step, self._rank, self._ranks)
        self.prune()

    def _try_to_write(self, checkpoint: Checkpoint) -> str:
        """Why it failed, or an empty string: an exception in a thread would be lost."""
        try:
            if (name := not_finite(checkpoint.snapshot)) is not None:
                return f"{name} holds values that are not finite"
            self._size_bytes = save(self.folder, self._rank, self._ranks, checkpoint)
        except OSError as error:
            return error.strerror or type(error).__name__
        except MemoryError:
            return "out of memory"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        self._written += 1
        self.newest = checkpoint.step
        return ""


@dataclass
class TrainingWriter:
    """Checkpoints (with `checkpoints`) and TensorBoard curves (with `events`) of a training; by
    default neither."""

    checkpoints: CheckpointWriter | None = None
    every_steps: int | None = None
    """Steps between checkpoints; None: one after each epoch, or by `rule`."""
    rule: IntervalRule | None = None
    """Plans each from the times of those before."""
    training: str = ""
    """Id of the training, which its checkpoints have too."""
    events: EventFile | None = None
    _saved: int = -1
    _events_failed: str = ""

    def due(self, step: int, ends_epoch: bool) -> bool:
        """Whether a checkpoint is due after `step`."""
        if self.checkpoints is None:
            return False
        if self.rule is not None:
            return step >= self.rule.due
        return ends_epoch if self.every_steps is None else step % self.every_steps == 0

    def stops(self, begin: int, end: int) -> set[int]:
        """The steps after `begin`, up to `end`, after which checkpoints are due."""
        if self.checkpoints is None or self.every_steps is None:
            return set()
        first = begin // self.every_steps + 1
        return set(range(first * self.every_steps, end + 1, self.every_steps))

    def next_stop(self, done: int, end: int) -> int:
        """The step after which the window that begins after `done` ends: `end`, or before that
        where a checkpoint is due by the rule."""
        if self.checkpoints is None or self.rule is None or not done < self.rule.due < end:
            return end
        return self.rule.due

    def saw_window(self, step_s: float) -> None:
        """Add the step time of a window, for the rule."""
        if self.rule is not None:
            self.rule.saw(step_s)

    def plan_next(self, step: int, wait_s: float, group: Group) -> None:
        """Add what the checkpoint after `step` took, and plan the next one, as rank 0 does."""
        if self.checkpoints is None:
            return
        self.checkpoints.times.waits_s.append(wait_s)
        if self.rule is not None:
            planned = self.rule.next_after(step, self.checkpoints.times)
            self.rule.due = group.broadcast_object(planned)

    def save(self, program: Program, history: History) -> bool:
        """Take a snapshot now and write it in the background, once per step; whether it did."""
        if self.checkpoints is None or self._saved == history.done:
            return False
        self._saved = history.done
        snapshot = cast(SupportsSnapshots, program).snapshot()
        self.checkpoints.save(
            Checkpoint(
                step=history.done,
                snapshot=snapshot,
                history=copy.deepcopy(history),
                training=self.training,
            )
        )
        return True

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write points of curves, by tag. A failing disk ends the curves, not the training."""
        if self.events is None:
            return
        try:
            for tag, value in values.items():
                self.events.scalar(tag, value, step)
        except OSError as error:
            self._events_failed = error.strerror or type(error).__name__
            self._close_events()

    def _close_events(self) -> None:
        if self.events is not None:
            self.events.close()
            self.events = None

    def newest(self) -> str:
        """A sentence about the last checkpoint, after a blank; empty without checkpoints."""
        if self.checkpoints is None:
            return ""
        self.checkpoints.wait()
        if self.checkpoints.newest is None:
            return " No checkpoint was written before."
        return (
            f" The newest checkpoint is of step {self.checkpoints.newest}, in "
            f"'{self.checkpoints.folder}'."
        )

    def finish(self, group: Group) -> None:
        """Return when every rank's last checkpoint is on its disk, and old ones are removed."""
        if self.checkpoints is not None:
            self.checkpoints.wait()
            group.barrier()
            self.checkpoints.prune()

    def report(self, log: Log) -> None:
        """Log what was written and what failed."""
        if self.checkpoints is not None:
            self.checkpoints.report(log)
        with contextlib.suppress(OSError):
            self._close_events()
        if self._events_failed:
            cause = f"TensorBoard's event file could not be written: {self._events_failed}."
            remedy = "Free disk space, or name a folder on another disk."
            log.warning(warn("event-file-failed", cause, remedy))
