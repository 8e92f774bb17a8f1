"""Location of the store: a file in the user's data folder by default, or a URL.

The default follows the XDG Base Directory Specification 0.8: `$XDG_DATA_HOME`, or
`~/.local/share` where that is unset or not absolute.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from cubemesh.errors import StoreError, UsageError
from cubemesh.untrusted import quoted
from cubemesh.user_folders import data_folder

LOG_SUFFIXES = ("-wal", "-shm")
"""Endings of the files that belong to an SQLite file in WAL mode."""
_RUN_ID = re.compile("[0-9a-f]{1,64}")
Identity: TypeAlias = tuple[int, int] | None
"""Device and inode of a file; None if there is none."""


@dataclass(frozen=True)
class Location:
    """A database, and its file where it is one."""

    url: URL
    path: Path | None

    @property
    def name(self) -> str:
        """How messages call it; never with a password."""
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)


def default_path() -> Path:
    """The store that is used where none is named."""
    return data_folder() / "results.sqlite"


def locate(given: str | None) -> Location:
    """The location of a path, an SQLAlchemy URL, or None for the default.

    UsageError for an invalid URL and StoreError for a path that is not of a regular file.
    """
    if given is None:
        return _file(default_path())
    if not given.strip():
        raise UsageError("The store's name is empty: give --store a path or an SQLAlchemy URL.")
    if "://" not in given:
        return _file(_home(Path(given)))
    try:
        url = make_url(given)
    except ArgumentError:
        raise UsageError(
            f"'{given}' is not a store: give a path, or an SQLAlchemy URL such as "
            "postgresql+psycopg://user@host/database."
        ) from None
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        return _file(Path(str(url.database)))
    return Location(url=url, path=None)


def files_folder(location: Location) -> Path:
    """The folder of files that belong to runs: next to the store's file, or for a remote
    database next to the default store."""
    path = location.path or default_path()
    return path.with_name(f"{path.stem}-files")


def is_run_id(text: str) -> bool:
    """Whether a text may be the id of a run: hexadecimal digits."""
    return _RUN_ID.fullmatch(text) is not None


def artifact_folder(folder: Path, run_id: str) -> Path:
    """The folder of a run's files in a folder of files. StoreError for an invalid id: a record
    may be a stranger's."""
    if not is_run_id(run_id):
        raise StoreError(f"{quoted(run_id)} is not the id of a run, which has hexadecimal digits.")
    return folder / run_id


def copy_artifact(source: BinaryIO, folder: Path, name: str) -> str:
    """Copy a file of a run into its folder; where it then is. StoreError where that fails."""
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "it is a link")
        with path.open("xb") as copy:
            try:
                shutil.copyfileobj(source, copy)
            except OSError:
                path.unlink()
                raise
        return str(path)
    except OSError as error:
        raise StoreError(
            f"{name} cannot be stored in {folder}: {error.strerror}. Make room there, or name "
            "another store with --store."
        ) from error


def file_identities(path: Path | None) -> tuple[Identity, Identity]:
    """Which files a store's file and its log are, by device and inode; None for one that is not
    there. An open file keeps its inode when its name is removed."""
    if path is None:
        return None, None
    found: list[Identity] = []
    for file in (path, path.with_name(path.name + LOG_SUFFIXES[0])):
        try:
            status = os.stat(file)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return found[0], found[1]


def make_folder(path: Path) -> None:
    """Create the folder of a store's file; StoreError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StoreError(
            f"The store {path} cannot be made: {_first_file(path)} is a file where a folder would "
            "have to be. Name another store with --store."
        ) from None
    except OSError as error:
        raise StoreError(
            f"The store {path} cannot be made: {error.strerror} ({error.filename}). Name a store "
            "in a folder that can be written, with --store."
        ) from error


def _file(path: Path) -> Location:
    if os.path.isdir(path):  # unlike Path.is_dir, False where looking is not permitted
        raise StoreError(
            f"The store {path} is a folder. Name a file, such as {path / 'results.sqlite'}."
        )
    if os.path.exists(path) and not os.path.isfile(path):  # a FIFO would be waited for
        raise StoreError(f"The store {path} is not a regular file. Name another with --store.")
    path = path.absolute()
    return Location(url=URL.create("sqlite", database=str(path)), path=path)


def _home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise UsageError(
            f"'{path}' starts in a home folder that does not exist. Name a store with --store."
        ) from None


def _first_file(path: Path) -> Path:
    return next(p for p in reversed(path.parents) if p.exists() and not p.is_dir())
