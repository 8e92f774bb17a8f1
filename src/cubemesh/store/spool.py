"""Spool: files of what was measured and is not in the store yet.

A record is written here before it is stored, and its file is removed when the store has it. A store
that is locked, full, away or gone so loses nothing: `Store.recover` takes the files in later. They
lie in the first of these folders that can be written:

    results-spool/                              next to the store's file
    $XDG_STATE_HOME/cubemesh/spool/STORE/       (~/.local/state where that is not set)
    /tmp/cubemesh-spool-UID-STORE/              the temporary folder

STORE is a digest of the store's path or URL. A folder named like a run has its artifacts. A file is
complete or not there: it is written under another name, forced to the disk and renamed. Where
neither the store nor a folder can be written, the text of the file is printed on stderr.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cubemesh.durable_files import write_durably
from cubemesh.errors import StoreError, UsageError
from cubemesh.schema import ExperimentRun, Machine, RunRecord, Series
from cubemesh.schema.serialization import digest
from cubemesh.store.json_text import from_text, to_text
from cubemesh.store.location import Location, artifact_folder
from cubemesh.untrusted import open_plain_file, quoted
from cubemesh.user_folders import state_folder


@dataclass(frozen=True, kw_only=True)
class Spooled:
    """Contents of one file: a record with its series, a machine or an experiment run."""

    store: str
    """The path or URL of the store it belongs to."""
    record: RunRecord | None = None
    series: tuple[Series, ...] = ()
    machine: Machine | None = None
    experiment_run: ExperimentRun | None = None

    @property
    def file_name(self) -> str:
        """One name for one thing: a later description of it replaces an earlier one."""
        if self.record is not None:
            return f"run-{self.record.run_id}.json"
        if self.machine is not None:
            return f"machine-{self.machine.machine_id}.json"
        if self.experiment_run is not None:
            return f"experiment-run-{self.experiment_run.experiment_run_id}.json"
        raise ValueError("nothing was spooled")


class Spool:
    """The spool of one store."""

    def __init__(self, location: Location) -> None:
        self._store = location.name
        self._beside = location.path and location.path.with_name(f"{location.path.stem}-spool")

    def write(self, spooled: Spooled) -> Path | None:
        """Write a file, on the disk on return; its path, or None where no folder can be written."""
        text = to_text(spooled)
        for folder in self._folders():
            with contextlib.suppress(OSError):
                return _write(self._made(folder), spooled.file_name, text)
        return None

    def print(self, spooled: Spooled) -> None:
        """Print the text of a file on stderr, the last place for what can be written nowhere."""
        place = next(iter(self._folders()), Path("FOLDER")) / spooled.file_name
        print(
            f"cubemesh: neither the store nor its spool can be written. Save the next line as "
            f"{place} and take it in with `cubemesh results --recover --store {self._store}`:\n"
            f"{to_text(spooled)}",
            file=sys.stderr,
            flush=True,
        )

    def remove(self, file_name: str) -> None:
        """Remove a file, and folders that are empty then."""
        for folder in self._folders():
            with contextlib.suppress(OSError):
                if _is_own(folder):
                    (folder / file_name).unlink(missing_ok=True)
                    for artifacts in folder.iterdir():
                        artifacts.rmdir()
                    folder.rmdir()

    def files(self) -> list[Path]:
        """The files that wait, oldest first."""
        found = []
        for folder in self._folders():
            with contextlib.suppress(OSError):
                if _is_own(folder):
                    found += [(path.lstat().st_mtime_ns, path) for path in folder.glob("*.json")]
        return [path for _, path in sorted(found)]

    def artifact_folders(self, run_id: str) -> Iterator[Path]:
        """Folders for the artifacts of a run, made one after the other as they are asked for."""
        for folder in self._folders():
            with contextlib.suppress(OSError):
                yield artifact_folder(self._made(folder), run_id)

    def open_artifact(self, run_id: str, path: str) -> BinaryIO | None:
        """Open an artifact of a run, if this is its path in the spool."""
        name = Path(path).name
        for folder in self._folders():
            with contextlib.suppress(OSError, ValueError, StoreError):
                inside = artifact_folder(folder, run_id)
                if str(inside / name) == path and _is_own(folder):
                    return open_plain_file(inside, name)
        return None

    def _folders(self) -> list[Path]:
        name = digest(self._store)
        found = [] if self._beside is None else [self._beside]
        with contextlib.suppress(UsageError):  # no home folder
            found.append(state_folder() / "spool" / name)
        with contextlib.suppress(OSError):  # no temporary folder that can be written
            found.append(Path(tempfile.gettempdir()) / f"cubemesh-spool-{os.getuid()}-{name}")
        return found

    def _made(self, folder: Path) -> Path:
        """The folder, made if it was missing; OSError if it cannot be, or is another user's."""
        folder.mkdir(mode=0o700, parents=folder != self._beside, exist_ok=True)
        if not _is_own(folder):
            raise PermissionError(errno.EPERM, "it belongs to another user")
        return folder


def format_files(number: int) -> str:
    """`1 file`, `2 files`."""
    return f"{number} file{'' if number == 1 else 's'}"


def read(path: Path) -> Spooled:
    """The contents of a file; StoreError if it is damaged."""
    try:
        with open_plain_file(path.parent, path.name) as file:
            text = file.read().decode("ascii")
        spooled = from_text(Spooled, text, str(path))
        if spooled.file_name != path.name:
            raise ValueError(f"its contents belong into {quoted(spooled.file_name)}")
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    return spooled


def _is_own(folder: Path) -> bool:
    """Whether a folder is this user's: others may have made one in /tmp."""
    found = os.stat(folder, follow_symlinks=False)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    try:
        write_durably(path, text)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    return path
