"""Checkpoints of a training: a folder for each step with a safetensors file for every rank.

    checkpoints/
        training.json                             the training they are of (manifest.py)
        step-00000120/rank-0-of-2.safetensors     weights, optimizer state, random generator states;
                      rank-1-of-2.safetensors     the training's progress as JSON in the metadata
        step-00000240/…

Every rank writes its own file, because ranks differ in random generators, in batch normalization
statistics and under some strategies in weights. A file is written under a temporary name, synced to
the disk (fsync), then renamed. A checkpoint is complete when it has the files of all ranks; no rank
waits for another. A rank that fails to write its file leaves an empty `.failed` file instead.
Rank 0 removes old checkpoints: those older than the newest `keep` complete ones, and those that can
never be completed. So a complete checkpoint remains however a run ends. Damage by the
disk is detected by a checksum in the metadata, and the previous checkpoint is used. A file that the
system refuses to read for a moment is not damaged: it is read again, and never removed. A file or a
link with the name of a checkpoint is none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cubemesh.durable_files import sync_to_disk
from cubemesh.errors import DataError
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Snapshot, Unsupported
from cubemesh.frameworks.contract.snapshot import GENERATOR
from cubemesh.training.history import History
from cubemesh.untrusted import read_regular_file

Array = NDArray[Any]
T = TypeVar("T")
_STEP = re.compile(r"step-(\d{8,})")
_RANK = re.compile(r"rank-(\d+)-of-(\d+)\.safetensors")
_STATE_PREFIX = "training:"
"""Prefix of the names of arrays that are not weights."""
_PARTIAL = ".part"
_METADATA, _CHECKSUM = "cubemesh", "sha256"
VERSION = 3
PAUSES_S = (0.1, 0.5, 1.0, 2.0)
"""Between the attempts to read a file."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What one rank needs to resume."""

    step: int
    """Steps done."""
    snapshot: Snapshot
    history: History = field(default_factory=History)
    training: str = ""
    """Id of the training, as in its manifest."""


def path_of(folder: Path, step: int, rank: int, ranks: int) -> Path:
    """The file of a rank, of `ranks`, in the checkpoint after `step` steps."""
    return folder / f"step-{step:08d}" / f"rank-{rank}-of-{ranks}.safetensors"


def steps_in(folder: Path) -> dict[int, int]:
    """The complete checkpoints: step → number of ranks, ascending. OSError if the folder cannot be
    listed."""
    found = {step: _complete_ranks(path) for step, path in sorted(step_folders(folder).items())}
    return {step: ranks for step, ranks in found.items() if ranks}


def save(folder: Path, rank: int, ranks: int, checkpoint: Checkpoint) -> int:
    """Write a rank's file; its size in bytes. On return it is on the disk, under its name.

    OSError if that fails; then no part of it is left, and older checkpoints are untouched.
    """
    for _ in range(ranks - 1):  # the step's folder is removed by each other rank that fails
        with contextlib.suppress(FileNotFoundError):
            return _save(folder, rank, ranks, checkpoint)
    return _save(folder, rank, ranks, checkpoint)


def _save(folder: Path, rank: int, ranks: int, checkpoint: Checkpoint) -> int:
    """As `save`; FileNotFoundError where another rank removed the step's folder meanwhile."""
    path = path_of(folder, checkpoint.step, rank, ranks)
    _make_folder(path.parent)
    _failed_mark(path).unlink(missing_ok=True)
    partial = path.with_name(path.name + _PARTIAL)
    snapshot = checkpoint.snapshot
    metadata = {
        "version": VERSION,
        "step": checkpoint.step,
        "training": checkpoint.training,
        "plain": snapshot.plain,
        "history": checkpoint.history.plain(),
    }
    state = {_STATE_PREFIX + name: array for name, array in snapshot.arrays.items()}
    try:
        partial.unlink(missing_ok=True)
        write_arrays(partial, {**snapshot.weights, **state}, {_METADATA: json.dumps(metadata)})
        sync_to_disk(partial)
        size_bytes = partial.stat().st_size
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it may hold another rank's file
            path.parent.rmdir()
        raise
    for parent in (path.parent, folder):
        sync_to_disk(parent)
    return size_bytes


def load(folder: Path, step: int, rank: int, ranks: int) -> Checkpoint:
    """A rank's part of a checkpoint; DataError if it is damaged or missing, OSError if it cannot be
    read."""
    path = path_of(folder, step, rank, ranks)
    arrays, metadata = read_arrays(path)
    try:
        stored = json.loads(metadata[_METADATA])
        version, stored_step = stored["version"], stored["step"]
        if (version, stored_step) != (VERSION, step):
            raise DataError(
                f"'{path}' is a checkpoint of version {version} after step {stored_step}; version "
                f"{VERSION} after step {step} was expected. It was renamed, or written by another "
                "version of cubemesh."
            )
        history = History.from_plain(stored["history"], done=step)
        plain, training = dict(stored["plain"]), str(stored["training"])
    except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise DataError(f"'{path}' is not a checkpoint of cubemesh: {error!r:.200}.") from error
    snapshot = Snapshot(
        weights={n: a for n, a in arrays.items() if not n.startswith(_STATE_PREFIX)},
        arrays={
            n.removeprefix(_STATE_PREFIX): a
            for n, a in arrays.items()
            if n.startswith(_STATE_PREFIX)
        },
        plain=plain,
    )
    return Checkpoint(step=step, snapshot=snapshot, history=history, training=training)


def load_resharded(folder: Path, step: int, ranks: int, compare: bool) -> Checkpoint:
    """The state of a checkpoint of `ranks` ranks for a rank of another number; with `compare`, only
    if all its ranks have the same. Random generators are not compared. Errors as of `load`."""
    first = load(folder, step, 0, ranks)
    for rank in range(1, ranks) if compare else ():
        differs = _difference(first.snapshot, load(folder, step, rank, ranks).snapshot)
        if differs:
            raise Unsupported(
                f"the ranks of the checkpoint after step {step} in '{folder}' differ in {differs}, "
                f"so it cannot be resharded. Resume on {ranks} devices."
            )
    return first


def _difference(one: Snapshot, other: Snapshot) -> str:
    """The first array, or the state, in which two ranks differ; empty if they are the same."""
    if one.plain != other.plain:
        return "the state of the loss scale or the strategy"
    for arrays, others in ((one.weights, other.weights), (one.arrays, other.arrays)):
        for name in sorted({*arrays, *others}):
            own, its = arrays.get(name), others.get(name)
            same = own is not None and its is not None and own.tobytes() == its.tobytes()
            if not same and not name.startswith(GENERATOR):
                return f"'{name}'"
    return ""


def newest_whole(folder: Path, group: Group) -> tuple[Checkpoint | None, list[str]]:
    """This rank's part of the newest checkpoint that is undamaged on all ranks of `group`, or None;
    and what is wrong with each newer one. Of a checkpoint of another number of ranks every rank
    gets the same part. A collective call: every rank reads its own file and waits for the others.

    On every rank, DataError if a file cannot be read although it may be intact, and Unsupported if
    the checkpoint cannot be resharded.
    """
    damaged: list[str] = []
    listed: list[list[int]] | str | None = None
    if group.rank == 0:
        try:
            listed = [[step, ranks] for step, ranks in steps_in(folder).items()]
        except OSError as error:
            listed = _unreadable(folder, error)
    listed = group.broadcast_object(listed)
    if isinstance(listed, str):
        raise DataError(listed)
    for step, ranks in reversed(listed or []):
        found, wrong = None, ["", ""]
        try:
            if ranks == group.size:
                found = load(folder, step, group.rank, ranks)
            else:
                found = load_resharded(folder, step, ranks, compare=group.rank == 0)
        except DataError as error:
            wrong = ["damaged", str(error)]
        except Unsupported as error:
            wrong = ["not resharded", str(error)]
        except OSError as error:
            wrong = ["unreadable", _unreadable(path_of(folder, step, group.rank, ranks), error)]
        group.barrier()
        wrongs = [one for one in group.all_gather_object(wrong) if one[0]]
        for kind, text in wrongs:
            if kind == "unreadable":
                raise DataError(text)
            if kind == "not resharded":
                raise Unsupported(text)
        if not wrongs:
            return found, damaged
        damaged.append(wrongs[0][1])
    return None, damaged


def _unreadable(path: Path, error: OSError) -> str:
    return (
        f"'{error.filename or path}' cannot be read: {error.strerror or error}, in "
        f"{1 + len(PAUSES_S)} attempts. It may be intact, so nothing was removed. Resume when it "
        "can be read, or move that step away to use the one before."
    )


def mark_failed(folder: Path, step: int, rank: int, ranks: int) -> None:
    """Record for `prune` that this rank will write no file of that checkpoint."""
    mark = _failed_mark(path_of(folder, step, rank, ranks))
    with contextlib.suppress(OSError):  # then it stays incomplete
        _make_folder(mark.parent)
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))


def prune(folder: Path, ranks: int, keep: int) -> None:
    """Remove all checkpoints except the newest `keep` complete ones, and newer ones that may still
    be completed."""
    complete = list(steps_in(folder))
    oldest = complete[-keep] if len(complete) > keep else 0
    for step, path in step_folders(folder).items():
        if step < oldest or (step not in complete and _never_completes(folder, step, ranks)):
            shutil.rmtree(path, ignore_errors=True)


def _never_completes(folder: Path, step: int, ranks: int) -> bool:
    """Whether every rank's file or `.failed` mark is there, and one mark or more. Ranks write
    meanwhile: a file that appears after the check for files makes this False, for its rank has
    left no mark."""
    paths = [path_of(folder, step, rank, ranks) for rank in range(ranks)]
    without = [path for path in paths if not path.is_file()]
    return bool(without) and all(_failed_mark(path).is_file() for path in without)


def _failed_mark(path: Path) -> Path:
    return path.with_suffix(".failed")


def _make_folder(path: Path) -> None:
    """Create the folder of a checkpoint; OSError where something else has its name."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints after `step` (damaged or incomplete ones), when a training resumes
    from an older one and will write them again."""
    for later, path in step_folders(folder).items():
        if later > step:
            shutil.rmtree(path, ignore_errors=True)


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
    """The arrays and metadata of a file by `write_arrays`; DataError if it is damaged or missing,
    OSError if it cannot be read. It is not mapped into memory: there a failing disk would end the
    process."""
    require_safetensors()
    from safetensors import SafetensorError
    from safetensors.numpy import load as arrays_of

    try:
        content = read_patiently(lambda: read_regular_file(path))
    except FileNotFoundError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(f"'{path}' cannot be read: {error}.") from error
    try:
        arrays = arrays_of(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = dict(header.get("__metadata__") or {})
        checksum = metadata.pop(_CHECKSUM)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
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


def step_folders(folder: Path) -> dict[int, Path]:
    """Step → folder of its checkpoint, complete or not. OSError if they cannot be listed."""
    return {
        int(match[1]): folder / name
        for name, is_folder in _entries(folder)
        if is_folder and (match := _STEP.fullmatch(name))
    }


def _complete_ranks(folder: Path) -> int:
    """The number of ranks whose files a checkpoint has all of; 0 if it is incomplete. Only names
    count, so that a file that cannot be read for a moment is there."""
    found: dict[int, set[int]] = {}
    for name, _ in _entries(folder):
        if match := _RANK.fullmatch(name):
            found.setdefault(int(match[2]), set()).add(int(match[1]))
    return max((ranks for ranks, own in found.items() if own >= {*range(ranks)}), default=0)


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """Each name in a folder, and whether it is a folder, not a link."""

    def listed() -> list[tuple[str, bool]]:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]

    try:
        return read_patiently(listed)
    except FileNotFoundError:
        return []


def read_patiently(read: Callable[[], T]) -> T:
    """What `read` returns, tried again after a pause while the system refuses (ESTALE, EIO, EACCES
    and the like); the last OSError where that goes on, and at once where there is no such file."""
    for pause_s in PAUSES_S:
        try:
            return read()
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(pause_s)
    return read()
