"""What a training leaves behind as it goes: checkpoints, and event files for TensorBoard.

The loop says where it stands; a keeper knows whether that is to be kept. One that keeps nothing is
the default.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from cubemesh.frameworks.api.group import Group
from cubemesh.frameworks.api.program import Program, SupportsSnapshots
from cubemesh.measure.log import Log
from cubemesh.schema.warning import warn
from cubemesh.training.checkpoint import Checkpoint
from cubemesh.training.checkpoint_writer import Saver
from cubemesh.training.history import Course
from cubemesh.training.tensorboard import EventFile


@dataclass
class Keeper:
    """Keeps checkpoints where it has a `saver`, and curves where it has a `board`."""

    saver: Saver | None = None
    every_steps: int | None = None
    """Steps from one checkpoint to the next; None is one after each epoch."""
    trains: Mapping[str, Any] = field(default_factory=dict)
    """What is trained, as plain data: a checkpoint of another training must not be gone on from."""
    board: EventFile | None = None
    _saved: int = -1
    _board_failed: str = ""

    def due(self, step: int, ends_epoch: bool) -> bool:
        """Whether a checkpoint is to be made after `step`."""
        if self.saver is None:
            return False
        return ends_epoch if self.every_steps is None else step % self.every_steps == 0

    def stops(self, begin: int, end: int) -> set[int]:
        """The steps after `begin`, up to `end`, after which checkpoints are due."""
        if self.saver is None or self.every_steps is None:
            return set()
        first = begin // self.every_steps + 1
        return set(range(first * self.every_steps, end + 1, self.every_steps))

    def save(self, program: Program, course: Course) -> None:
        """Take a snapshot here and now, and write it meanwhile; once for each step."""
        if self.saver is None or self._saved == course.done:
            return
        self._saved = course.done
        snapshot = cast(SupportsSnapshots, program).snapshot()
        stands = {"course": course.plain(), "trains": dict(self.trains)}
        self.saver.save(Checkpoint(step=course.done, snapshot=snapshot, stands=stands))

    def show(self, values: Mapping[str, float], step: int) -> None:
        """Points of curves, by tag. A disk that refuses them ends the curves and nothing else."""
        if self.board is None:
            return
        try:
            for tag, value in values.items():
                self.board.scalar(tag, value, step)
        except OSError as error:
            self._board_failed = error.strerror or type(error).__name__
            self.close_board()

    def close_board(self) -> None:
        """End the event file."""
        if self.board is not None:
            self.board.close()
            self.board = None

    def newest(self) -> str:
        """A sentence about the last checkpoint, behind a blank; empty where none are made."""
        if self.saver is None:
            return ""
        self.saver.wait()
        if self.saver.newest is None:
            return " No checkpoint was written before."
        return f" The newest checkpoint is of step {self.saver.newest}, in '{self.saver.folder}'."

    def finish(self, group: Group) -> None:
        """Return when every rank's last checkpoint is on its disk, and old ones are gone."""
        if self.saver is not None:
            self.saver.wait()
            group.barrier()
            self.saver.prune()

    def tell(self, log: Log) -> None:
        """What came of it all."""
        if self.saver is not None:
            self.saver.tell(log)
        with contextlib.suppress(OSError):
            self.close_board()
        if self._board_failed:
            cause = f"TensorBoard's event file could not be written: {self._board_failed}."
            remedy = "Make room on its disk, or name a folder on another."
            log.warning(warn("event-file-failed", cause, remedy))
