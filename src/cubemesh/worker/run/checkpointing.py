"""Checkpointing in a worker: where a training resumes, and what it saves.

Rank 0 claims the folder for its training (training/manifest.py) before the ranks read a checkpoint.
"""

from __future__ import annotations

import socket
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from cubemesh.data.source import Source
from cubemesh.data.text.parallel_text import SentencePairs
from cubemesh.data.text.vocabulary import FILE, load_vocabulary
from cubemesh.errors import BusyError, CubemeshError, DataError, UsageError
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Program, SupportsSnapshots, Unsupported
from cubemesh.measure.log import Log
from cubemesh.networks import build_for
from cubemesh.parallel.strategies import strategy
from cubemesh.schema.record import Figure
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import warn
from cubemesh.schema.work import NetworkWork
from cubemesh.training import checkpoint as checkpoints
from cubemesh.training import manifest
from cubemesh.training.checkpoint import Checkpoint
from cubemesh.training.checkpoint_interval import IntervalRule
from cubemesh.training.checkpoint_writer import CheckpointWriter, TrainingWriter
from cubemesh.training.history import History
from cubemesh.training.manifest import Claim
from cubemesh.training.tensorboard import EventFile, event_files

_ERRORS = {error.__name__: error for error in (BusyError, DataError, UsageError)}


@dataclass
class Beginning:
    """Start of a training."""

    history: History = field(default_factory=History)
    checkpoint: Checkpoint | None = None
    """Checkpoint to resume from; None to start anew."""
    training: str = ""
    """Id of the training."""
    claim: Claim | None = None
    """To the folder of checkpoints, on rank 0."""

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

    UsageError where the folder is another training's, or it cannot be written to or is not shared
    by all ranks; BusyError where another run writes to it; DataError where there are checkpoints
    and all are damaged, or one cannot be read.
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
    begin = Beginning()
    begin.claim, begin.training = _claim(folder, spec, group)
    try:
        if checkpointing.resume:
            begin.checkpoint = _newest(folder, begin.training, group, log)
        if begin.checkpoint is not None:
            begin.history = begin.checkpoint.history
        if begin.claim is not None:
            begin.claim.adopt(spec)
    except BaseException:
        if begin.claim is not None:
            begin.claim.close()
        raise
    return begin


def save_vocabulary(spec: RunSpec, group: Group, begin: Beginning, source: Source) -> None:
    """Write the vocabulary of sentence pairs to the folder of checkpoints, for their translations.
    UsageError if it differs from that of the checkpoint to resume from: the text has changed."""
    checkpoints_folder = spec.checkpointing.checkpoints
    if checkpoints_folder is None or not isinstance(source, SentencePairs):
        return
    folder = Path(checkpoints_folder)
    try:
        before = load_vocabulary(folder) if begin.history.done else None
        if before is not None and before != source.vocabulary:
            raise UsageError(
                f"The vocabulary of {spec_data(spec)} differs from '{folder / FILE}', with which "
                "this training began: the text has changed. Restore it, or begin a training in "
                "another folder."
            )
        if before is None and group.rank == 0:
            source.vocabulary.save(folder)
    except OSError as error:
        raise UsageError(f"checkpoints={folder}: {error.strerror}. Name another folder.") from error


def spec_data(spec: RunSpec) -> str:
    """The data of a spec as a message names them."""
    work = spec.work
    assert isinstance(work, NetworkWork), "only networks are fed"
    return work.data if work.data_path is None else f"{work.data_path}"


def _claim(folder: Path, spec: RunSpec, group: Group) -> tuple[Claim | None, str]:
    """Rank 0's claim to the folder, and the id of the training on every rank; the same error on
    every rank."""
    claimed, said = None, ["", ""]
    if group.rank == 0:
        try:
            claimed = manifest.claim(folder, spec)
            said = ["", claimed.manifest.training]
        except CubemeshError as error:
            said = [type(error).__name__, str(error)]
        except OSError as error:
            text = f"checkpoints={folder}: {error.strerror}. Name another folder."
            said = [UsageError.__name__, text]
    group.barrier()
    wrong, text = group.broadcast_object(said)
    if wrong:
        raise _ERRORS[wrong](text)
    return claimed, text


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


def training_writer(spec: RunSpec, group: Group, begin: Beginning) -> TrainingWriter:
    """The writer for the checkpoints and curves that the spec asks for; rank 0 writes curves, and
    the network's graph where its folder has no event file yet."""
    checkpointing = spec.checkpointing
    checkpoint_writer = None
    if checkpointing.checkpoints is not None:
        checkpoint_writer = CheckpointWriter(
            Path(checkpointing.checkpoints),
            rank=group.rank,
            ranks=group.size,
            keep=checkpointing.keep,
            claim=begin.claim,
            fault_every_s=checkpointing.fault_every_s,
        )
        checkpoint_writer.check()
    events = None
    if checkpointing.tensorboard is not None and group.rank == 0:
        folder = Path(checkpointing.tensorboard)
        begins = not event_files(folder)
        try:
            events = EventFile(folder)
            if begins and isinstance(spec.work, NetworkWork):
                events.graph(build_for(spec.work))
        except OSError as error:
            raise UsageError(
                f"tensorboard={checkpointing.tensorboard}: {error.strerror}. Name another folder."
            ) from error
    return TrainingWriter(
        checkpoints=checkpoint_writer,
        every_steps=checkpointing.every_steps,
        rule=_rule(spec, begin),
        training=begin.training,
        events=events,
    )


def _rule(spec: RunSpec, begin: Beginning) -> IntervalRule | None:
    """What plans the checkpoints; None where they have a number of steps or follow epochs. Where
    one averages the weights, as with `local-sgd`, their number would change the training."""
    fault_every_s = spec.checkpointing.fault_every_s
    several = spec.placement.devices > 1
    if fault_every_s is None or (several and not strategy(spec.program.sync).same_weights):
        return None
    return IntervalRule(fault_every_s, due=begin.history.done + 2)


def _newest(folder: Path, training: str, group: Group, log: Log) -> Checkpoint | None:
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
    if found is not None and found.training != training:
        raise UsageError(
            f"The checkpoint after step {found.step} in '{folder}' is of training "
            f"{found.training}, and the folder is of {training}. Move it away, or set another "
            "folder."
        )
    if found is not None and group.rank == 0:
        checkpoints.remove_after(folder, found.step)
    return found
