"""What does a training leave behind besides its record? No part of what is trained: the workload's
id leaves it out."""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.errors import UsageError
from cubemesh.schema.budget import at_least


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Checkpoints and event files of a training, in folders that stay."""

    checkpoints: str | None = None
    """Folder of the checkpoints, an absolute path that every rank sees; None keeps none."""
    every_steps: int | None = None
    """Steps from one checkpoint to the next; None is one after each epoch."""
    keep: int = 3
    """How many checkpoints stay, the newest."""
    resume: bool = False
    """Whether the training goes on from the newest whole checkpoint, where there is one."""
    tensorboard: str | None = None
    """Folder of the event files that TensorBoard reads; None writes none."""

    def __post_init__(self) -> None:
        at_least(self, 1, "every_steps", "keep")
        if self.checkpoints is None and (self.resume or self.every_steps is not None):
            raise UsageError(
                "resume and every_steps are about checkpoints, and no folder is named for them. "
                "Set checkpoints=FOLDER."
            )
