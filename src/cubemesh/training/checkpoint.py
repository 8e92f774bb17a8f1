"""Where a training stands, on the disk: a folder of checkpoints, each with a file for every rank.

    checkpoints/
        step-00000120/rank-0.safetensors      weights, the optimizer's arrays, random generators;
                      rank-1.safetensors      where the training stands, as JSON in the metadata
        step-00000240/…

Ranks differ in more than their place: each has random generators of its own, statistics of batch
normalisation, under some exchanges even weights. So each writes its own file, under another name
first, waits until the disk has it, and only then gives it its name (rename). A checkpoint counts
when it has the files of all ranks; nobody has to wait for anybody. A rank that could not write its
file leaves an empty one that says so. Old ones are removed by rank 0 alone: those older than enough
that count, and those that every rank has ended with and that lack a file. So at every moment,
however a run ends, the newest that counts is whole; one that the disk has damaged since is told by
its checksum, and the one before it is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cubemesh.errors import DataError
from cubemesh.frameworks.api.group import Group
from cubemesh.frameworks.api.program import Snapshot
from cubemesh.training import safetensors

_STEP = re.compile(r"step-(\d{8,})")
_BESIDE = "training:"
"""Before the names of arrays that are no weights."""
_PARTIAL = ".part"
_METADATA = "cubemesh"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What one rank needs to go on."""

    step: int
    """Steps that are done."""
    snapshot: Snapshot
    stands: dict[str, Any]
    """Where the training stands besides, as plain data: what was read and scored so far, and what
    it trains."""


def path_of(folder: Path, step: int, rank: int) -> Path:
    """The file of a rank in the checkpoint after `step` steps."""
    return folder / f"step-{step:08d}" / f"rank-{rank}.safetensors"


def steps_in(folder: Path, ranks: int) -> list[int]:
    """The steps of the checkpoints that have the files of all `ranks`, in rising order."""
    return [
        step
        for step in sorted(_folders(folder))
        if all(path_of(folder, step, rank).is_file() for rank in range(ranks))
    ]


def save(folder: Path, rank: int, checkpoint: Checkpoint) -> int:
    """Write a rank's file; how many bytes it has. It is on the disk, under its name, on return.

    OSError where that fails; then nothing of it is left, and what was there before is untouched.
    """
    path = path_of(folder, checkpoint.step, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    _given_up(folder, checkpoint.step, rank).unlink(missing_ok=True)
    partial = path.with_name(path.name + _PARTIAL)
    held = checkpoint.snapshot
    stands = {"version": VERSION, "step": checkpoint.step, "plain": held.plain}
    metadata = json.dumps({**stands, "stands": checkpoint.stands})
    arrays = {**held.weights, **{_BESIDE + name: array for name, array in held.arrays.items()}}
    try:
        with open(partial, "wb") as file:
            size_bytes = safetensors.write(file, arrays, {_METADATA: metadata})
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another rank's file may be in it
            path.parent.rmdir()
        raise
    for parent in (path.parent, folder):
        _sync(parent)
    return size_bytes


def load(folder: Path, step: int, rank: int) -> Checkpoint:
    """A rank's part of a checkpoint; DataError where it is damaged or not there."""
    path = path_of(folder, step, rank)
    arrays, metadata = safetensors.read(path)
    try:
        told = json.loads(metadata[_METADATA])
        version, plain, stands = told["version"], told["plain"], told["stands"]
    except (KeyError, ValueError) as error:
        raise DataError(f"'{path}' is no checkpoint of cubemesh.") from error
    if version != VERSION or told["step"] != step:
        raise DataError(
            f"'{path}' is a checkpoint of version {version} after step {told['step']}; version "
            f"{VERSION} after step {step} was expected. It was renamed, or comes from another "
            "version of cubemesh."
        )
    own = {n.removeprefix(_BESIDE): a for n, a in arrays.items() if n.startswith(_BESIDE)}
    weights = {name: a for name, a in arrays.items() if not name.startswith(_BESIDE)}
    snapshot = Snapshot(weights=weights, arrays=own, plain=plain)
    return Checkpoint(step=step, snapshot=snapshot, stands=stands)


def newest_whole(folder: Path, group: Group) -> tuple[Checkpoint | None, list[str]]:
    """This rank's part of the newest checkpoint whose files are whole on all ranks of `group`, None
    where there is none; and what is wrong with each newer one. All ranks ask together: each reads
    its own file, and waits for the others however long theirs take to read."""
    damaged: list[str] = []
    steps = group.broadcast_object(steps_in(folder, group.size) if group.rank == 0 else None)
    for step in reversed(steps):
        found, wrong = _whole(folder, step, group.rank)
        group.barrier()
        told = [text for text in group.all_gather_object(wrong) if text]
        if not told:
            return found, damaged
        damaged.append(told[0])
    return None, damaged


def _whole(folder: Path, step: int, rank: int) -> tuple[Checkpoint | None, str]:
    try:
        return load(folder, step, rank), ""
    except DataError as error:
        return None, str(error)


def give_up(folder: Path, step: int, rank: int) -> None:
    """Leave word for `prune` that this rank will write no file of that checkpoint; where not even
    that can be written, it stays incomplete."""
    mark = _given_up(folder, step, rank)
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def prune(folder: Path, ranks: int, keep: int) -> None:
    """Remove all checkpoints but the newest `keep` that have every rank's file, and newer ones that
    may still be written: of one that will never be whole, every rank's file or word is there."""
    counted = steps_in(folder, ranks)
    oldest = counted[-keep] if len(counted) > keep else 0
    for step, path in _folders(folder).items():
        if step < oldest or (step not in counted and _is_lost(folder, step, ranks)):
            shutil.rmtree(path, ignore_errors=True)


def _is_lost(folder: Path, step: int, ranks: int) -> bool:
    """Whether a checkpoint will never be whole: each rank's file or its word that there will be
    none is there, and of one the word. Other ranks write meanwhile: a file that comes after the
    look for files makes this False, for its rank has left no word."""
    has_file = [path_of(folder, step, rank).is_file() for rank in range(ranks)]
    without = [rank for rank in range(ranks) if not has_file[rank]]
    return bool(without) and all(_given_up(folder, step, rank).is_file() for rank in without)


def _given_up(folder: Path, step: int, rank: int) -> Path:
    return path_of(folder, step, rank).with_suffix(".failed")


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints after `step`: those that are damaged or lack a rank, when a training
    goes on from an older one and will come by them again."""
    for later, path in _folders(folder).items():
        if later > step:
            shutil.rmtree(path)


def not_finite(snapshot: Snapshot) -> str | None:
    """The first of its weights that hold what is no finite number; None where all are finite."""
    for name, array in snapshot.weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return name
    return None


def _folders(folder: Path) -> dict[int, Path]:
    try:
        return {
            int(match[1]): path
            for path in folder.iterdir()
            if (match := _STEP.fullmatch(path.name)) is not None
        }
    except FileNotFoundError:
        return {}


def _sync(folder: Path) -> None:
    """Have the disk know the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
