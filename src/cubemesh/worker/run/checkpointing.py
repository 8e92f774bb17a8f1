"""Checkpointing in a worker: where a training resumes, and what it saves.

A resumed training must be the same: network, data, order of samples, devices and arithmetic. Its
length and its learning-rate schedule may differ.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Program, SupportsSnapshots, Unsupported
from cubemesh.measure.log import Log
from cubemesh.schema.record import Figure
from cubemesh.schema.serialization import to_plain
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import warn
from cubemesh.training import checkpoint as checkpoints
from cubemesh.training.checkpoint import Checkpoint
from cubemesh.training.checkpoint_writer import CheckpointWriter, TrainingWriter
from cubemesh.training.history import History
from cubemesh.training.tensorboard import EventFile

_OF_WORK = (
    *("network", "image_size", "classes", "sequence_length", "vocabulary", "hidden"),
    *("data", "data_path", "max_image_pixels", "batch_per_device", "seed", "optimizer"),
)
_OF_PROGRAM = (
    *("framework", "precision", "precision_of", "loss_scale", "layout", "sync", "compile_by"),
    *("batch_norm", "deterministic", "decode_location", "cache_decoded"),
)


@dataclass
class Beginning:
    """Start of a training."""

    history: History = field(default_factory=History)
    checkpoint: Checkpoint | None = None
    """Checkpoint to resume from; None to start anew."""

    def restore(self, program: Program, log: Log) -> None:
        """Restore the program from the checkpoint, if any."""
        if self.checkpoint is None:
            return
        if not isinstance(program, SupportsSnapshots):
            raise Unsupported("this framework cannot resume from a checkpoint.")
        with log.phase("resume"):
            program.restore(self.checkpoint.snapshot)
        self.checkpoint = None  # frees its arrays
        log.figure("resumed_at_step", Figure(value=self.history.done, unit=""))


def beginning(spec: RunSpec, group: Group, log: Log) -> Beginning:
    """The newest complete checkpoint, the same for all ranks, or a new start.

    UsageError where it is another training's, or the folder cannot be written to or is not shared
    by all ranks; DataError where there are checkpoints and all are damaged.
    """
    checkpointing = spec.checkpointing
    if checkpointing.checkpoints is None:
        return Beginning()
    folder = Path(checkpointing.checkpoints)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_shared(folder, group)
    except OSError as error:
        raise UsageError(f"checkpoints={folder}: {error.strerror}. Name another folder.") from error
    if not checkpointing.resume:
        return Beginning()
    found = _newest(folder, group, log)
    if found is None:
        return Beginning()
    _check_same(found.progress["trains"], trained(spec), folder)
    return Beginning(history=History.from_plain(found.progress["history"]), checkpoint=found)


def _check_shared(folder: Path, group: Group) -> None:
    """UsageError where the ranks do not share the folder: a complete checkpoint has the files of
    all."""
    if group.size == 1:
        return
    mark = folder / f".seen-{group.broadcast_object(uuid.uuid4().hex)}"
    if group.rank == 0:
        mark.touch()
    group.barrier()
    sees = group.all_gather_object([socket.gethostname(), mark.exists()])
    if group.rank == 0:
        mark.unlink()
    blind = sorted({host for host, there in sees if not there})
    if blind:
        raise UsageError(
            f"checkpoints={folder}: a file of rank 0 on {sees[0][0]} is missing on "
            f"{', '.join(blind)}. Name a folder that all hosts share."
        )


def training_writer(spec: RunSpec, group: Group) -> TrainingWriter:
    """The writer for the checkpoints and curves that the spec asks for; rank 0 writes curves."""
    checkpointing = spec.checkpointing
    checkpoint_writer = None
    if checkpointing.checkpoints is not None:
        checkpoint_writer = CheckpointWriter(
            Path(checkpointing.checkpoints),
            rank=group.rank,
            ranks=group.size,
            keep=checkpointing.keep,
        )
    events = None
    if checkpointing.tensorboard is not None and group.rank == 0:
        try:
            events = EventFile(Path(checkpointing.tensorboard))
        except OSError as error:
            raise UsageError(
                f"tensorboard={checkpointing.tensorboard}: {error.strerror}. Name another folder."
            ) from error
    return TrainingWriter(
        checkpoints=checkpoint_writer,
        every_steps=checkpointing.every_steps,
        trains=trained(spec),
        events=events,
    )


def trained(spec: RunSpec) -> dict[str, Any]:
    """What must be the same in a resumed training, as plain data."""
    work, program = to_plain(spec.work), to_plain(spec.program)
    return {
        **{name: work[name] for name in _OF_WORK},
        **{name: program[name] for name in _OF_PROGRAM},
        "devices": spec.placement.devices,
    }


def _newest(folder: Path, group: Group, log: Log) -> Checkpoint | None:
    """This rank's part of the checkpoint to resume from. Rank 0 reports and removes newer, damaged
    checkpoints."""
    found, damaged = checkpoints.newest_whole(folder, group)
    if damaged:
        if found is None:
            raise DataError(
                f"All {len(damaged)} checkpoints in '{folder}' are damaged: {damaged[0]} "
                "Leave resume out and set another folder to start anew."
            )
        cause = (
            f"{' '.join(damaged)} The training resumed from the previous one, at step {found.step}."
        )
        remedy = "Check the disk for errors (`dmesg`); the steps since then are repeated."
        if group.rank == 0:
            log.warning(warn("checkpoint-damaged", cause, remedy))
    if found is not None and group.rank == 0:
        checkpoints.remove_after(folder, found.step)
    return found


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    for name, value in now.items():
        # Older versions of cubemesh did not record every setting.
        if before.get(name, value) != value:
            raise UsageError(
                f"The checkpoints in '{folder}' have {name}={before[name]}, and this training has "
                f"{name}={value}. Set it as before, or set another folder."
            )
