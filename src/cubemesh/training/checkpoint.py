"""Checkpoints of a training: a folder for each step with a safetensors file for every rank.

    checkpoints/
        step-00000120/rank-0.safetensors      weights, optimizer state, random generator states;
                      rank-1.safetensors      the training's progress as JSON in the metadata
        step-00000240/…

Every rank writes its own file, because ranks differ in random generators, in batch normalization
statistics and under some strategies in weights. A file is written under a temporary name, synced to
the disk (fsync), then renamed. A checkpoint is complete when it has the files of all ranks; no rank
waits for another. A rank that fails to write its file leaves an empty `.failed` file instead.
Rank 0 removes old checkpoints: those older than the newest `keep` complete ones, and those that can
never be completed. So a complete checkpoint remains however a run ends. Damage by the
disk is detected by a checksum in the metadata, and the previous checkpoint is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.errors import DataError
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Snapshot, Unsupported

Array = NDArray[Any]
_STEP = re.compile(r"step-(\d{8,})")
_STATE_PREFIX = "training:"
"""Prefix of the names of arrays that are not weights."""
_PARTIAL = ".part"
_METADATA, _CHECKSUM = "cubemesh", "sha256"
VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What one rank needs to resume."""

    step: int
    """Steps done."""
    snapshot: Snapshot
    progress: dict[str, Any]
    """The rest of the training's state as plain data: its history, and what it trains."""


def path_of(folder: Path, step: int, rank: int) -> Path:
    """The file of a rank in the checkpoint after `step` steps."""
    return folder / f"step-{step:08d}" / f"rank-{rank}.safetensors"


def steps_in(folder: Path, ranks: int) -> list[int]:
    """The steps of the complete checkpoints of `ranks` ranks, ascending."""
    return [
        step
        for step in sorted(_folders(folder))
        if all(path_of(folder, step, rank).is_file() for rank in range(ranks))
    ]


def save(folder: Path, rank: int, checkpoint: Checkpoint) -> int:
    """Write a rank's file; its size in bytes. On return it is on the disk, under its name.

    OSError if that fails; then no part of it is left, and older checkpoints are untouched.
    """
    path = path_of(folder, checkpoint.step, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    _failed_mark(folder, checkpoint.step, rank).unlink(missing_ok=True)
    partial = path.with_name(path.name + _PARTIAL)
    snapshot = checkpoint.snapshot
    metadata = {
        "version": VERSION,
        "step": checkpoint.step,
        "plain": snapshot.plain,
        "progress": checkpoint.progress,
    }
    state = {_STATE_PREFIX + name: array for name, array in snapshot.arrays.items()}
    try:
        write_arrays(partial, {**snapshot.weights, **state}, {_METADATA: json.dumps(metadata)})
        _sync(partial)
        size_bytes = partial.stat().st_size
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it may hold another rank's file
            path.parent.rmdir()
        raise
    for parent in (path.parent, folder):
        _sync(parent)
    return size_bytes


def load(folder: Path, step: int, rank: int) -> Checkpoint:
    """A rank's part of a checkpoint; DataError if it is damaged or missing."""
    path = path_of(folder, step, rank)
    arrays, metadata = read_arrays(path)
    try:
        stored = json.loads(metadata[_METADATA])
        version, stored_step = stored["version"], stored["step"]
    except (KeyError, ValueError) as error:
        raise DataError(f"'{path}' is not a checkpoint of cubemesh.") from error
    if (version, stored_step) != (VERSION, step):
        raise DataError(
            f"'{path}' is a checkpoint of version {version} after step {stored_step}; version "
            f"{VERSION} after step {step} was expected. It was renamed, or written by another "
            "version of cubemesh."
        )
    snapshot = Snapshot(
        weights={n: a for n, a in arrays.items() if not n.startswith(_STATE_PREFIX)},
        arrays={
            n.removeprefix(_STATE_PREFIX): a
            for n, a in arrays.items()
            if n.startswith(_STATE_PREFIX)
        },
        plain=stored["plain"],
    )
    return Checkpoint(step=step, snapshot=snapshot, progress=stored["progress"])


def newest_whole(folder: Path, group: Group) -> tuple[Checkpoint | None, list[str]]:
    """This rank's part of the newest checkpoint that is undamaged on all ranks of `group`, or None;
    and what is wrong with each newer one. A collective call: every rank reads its own file and
    waits for the others."""
    damaged: list[str] = []
    steps = group.broadcast_object(steps_in(folder, group.size) if group.rank == 0 else None)
    for step in reversed(steps):
        found, wrong = None, ""
        try:
            found = load(folder, step, group.rank)
        except DataError as error:
            wrong = str(error)
        group.barrier()
        wrongs = [text for text in group.all_gather_object(wrong) if text]
        if not wrongs:
            return found, damaged
        damaged.append(wrongs[0])
    return None, damaged


def mark_failed(folder: Path, step: int, rank: int) -> None:
    """Record for `prune` that this rank will write no file of that checkpoint."""
    mark = _failed_mark(folder, step, rank)
    with contextlib.suppress(OSError):  # then it stays incomplete
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def prune(folder: Path, ranks: int, keep: int) -> None:
    """Remove all checkpoints except the newest `keep` complete ones, and newer ones that may still
    be completed."""
    complete = steps_in(folder, ranks)
    oldest = complete[-keep] if len(complete) > keep else 0
    for step, path in _folders(folder).items():
        if step < oldest or (step not in complete and _never_completes(folder, step, ranks)):
            shutil.rmtree(path, ignore_errors=True)


def _never_completes(folder: Path, step: int, ranks: int) -> bool:
    """Whether every rank's file or `.failed` mark is there, and one mark or more. Ranks write
    meanwhile: a file that appears after the check for files makes this False, for its rank has
    left no mark."""
    has_file = [path_of(folder, step, rank).is_file() for rank in range(ranks)]
    without = [rank for rank in range(ranks) if not has_file[rank]]
    return bool(without) and all(_failed_mark(folder, step, rank).is_file() for rank in without)


def _failed_mark(folder: Path, step: int, rank: int) -> Path:
    return path_of(folder, step, rank).with_suffix(".failed")


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints after `step` (damaged or incomplete ones), when a training resumes
    from an older one and will write them again."""
    for later, path in _folders(folder).items():
        if later > step:
            shutil.rmtree(path)


def not_finite(snapshot: Snapshot) -> str | None:
    """The name of the first weight array with NaN or infinite values, or None."""
    for name, array in snapshot.weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return name
    return None


def require_safetensors() -> None:
    """Unsupported unless this Python has the package safetensors."""
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise Unsupported(
            "checkpoints need the package safetensors in this Python. pip install safetensors"
        ) from error


def write_arrays(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with a SHA-256 checksum of arrays and metadata in its metadata.

    OSError as reported by the system; ValueError for a type that the format does not have.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    portable = {
        name: np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        for name, array in arrays.items()
    }
    checksum = _checksum_of(portable, metadata)
    try:
        save_file(portable, path, metadata={**metadata, _CHECKSUM: checksum})
    except SafetensorError as error:
        code = re.search(r"(?:os error|code:) (\d+)", str(error))
        if code is None:
            raise ValueError(str(error)) from error
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and metadata of a file by `write_arrays`; DataError if it is damaged."""
    require_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        checksum = metadata.pop(_CHECKSUM)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"'{path}' is truncated or not a safetensors file: {error}.") from error
    if _checksum_of(arrays, metadata) != checksum:
        raise DataError(f"'{path}' is damaged: its content does not match its checksum.")
    return arrays, metadata


def _checksum_of(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> str:
    names = sorted(arrays)
    index = [[name, arrays[name].dtype.str, list(arrays[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([dict(metadata), index], sort_keys=True).encode())
    for name in names:
        if arrays[name].size:
            digest.update(arrays[name].reshape(-1).data.cast("B"))
    return digest.hexdigest()


def _folders(folder: Path) -> dict[int, Path]:
    try:
        return {
            int(match[1]): path
            for path in folder.iterdir()
            if (match := _STEP.fullmatch(path.name)) is not None
        }
    except FileNotFoundError:
        return {}


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
