"""Pausing a training: a checkpoint between two windows, and the end of the run.

The supervisor of the run makes a file; rank 0 looks for it after each window and its decision is
broadcast, so that all ranks write the same checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cubemesh.frameworks.contract.group import Group, SingleProcessGroup


class Paused(Exception):
    """The training ended after a checkpoint, as requested; it resumes from there."""


@dataclass(frozen=True)
class PauseRequest:
    """The request to pause: a file that exists from then on. Without a path it never comes."""

    path: Path | None = None
    group: Group = field(default_factory=SingleProcessGroup)

    @property
    def received(self) -> bool:
        """Whether it has come, the same on all ranks, which call this together."""
        if self.path is None:
            return False
        here = self.group.rank == 0 and self.path.exists()
        return here if self.group.size == 1 else bool(self.group.broadcast_object(here))
