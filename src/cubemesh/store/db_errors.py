"""Database errors as messages with remedies.

SQLite's result codes (sqlite.org/rescode.html) are distinguished by number, not by text.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError

from cubemesh.errors import BusyError, CubemeshError, StoreError
from cubemesh.store.bundles.bundle_file import is_bundle
from cubemesh.store.location import Location

_LEAST_FREE_BYTES = 1 << 20

_MEANINGS = {
    sqlite3.SQLITE_FULL: "is full: no space left on its disk. Nothing that was stored is lost. "
    "Free some space, or name another store with --store.",
    sqlite3.SQLITE_READONLY: "cannot be written. Make its file and folder writable, or name "
    "another store with --store.",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened. Check that its folder exists and can be read "
    "and written, or name another store with --store.",
    sqlite3.SQLITE_PERM: "cannot be opened. Check the permissions of its file and folder, or "
    "name another store with --store.",
    sqlite3.SQLITE_NOTADB: "is not a database. Name a store with --store; a new file is created.",
    sqlite3.SQLITE_CORRUPT: "is damaged. Keep a copy, save what can be read with "
    "`sqlite3 FILE .recover`, and name another store with --store.",
    sqlite3.SQLITE_IOERR: "cannot be read or written: its disk reports an error. Check the disk, "
    "or name another store with --store.",
}


@contextmanager
def explained(location: Location) -> Iterator[None]:
    """Turn what the database raises inside into StoreError or BusyError.

    A violated constraint passes through: that would be a bug of the caller.
    """
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise _meaning(location, error.orig) from error
    except sqlite3.Error as error:  # raised while a connection is set up
        raise _meaning(location, error) from error


def contradiction(location: Location, error: IntegrityError) -> StoreError:
    """The error for a record that the tables of a damaged store have no place for."""
    return StoreError(
        f"The store {location.name} is damaged: its tables contradict each other ({error.orig}). "
        "Keep a copy, and name another store with --store."
    )


def _meaning(location: Location, error: BaseException | None) -> CubemeshError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BusyError(
            f"The store {location.name} is locked by another process. Wait until it has "
            "finished and run the command again, or name another store with --store."
        )
    if primary == sqlite3.SQLITE_IOERR and _no_room(location):
        primary = sqlite3.SQLITE_FULL
    if primary == sqlite3.SQLITE_NOTADB and location.path and is_bundle(location.path):
        return StoreError(
            f"{location.name} is a share bundle or another page, not a store. Add a bundle to a "
            f"store with: cubemesh import {location.name}"
        )
    if primary in _MEANINGS:
        return StoreError(f"The store {location.name} {_MEANINGS[primary]}")
    message = " ".join(str(error).split())
    return StoreError(
        f"The store {location.name} failed: {message}. Check that it can be reached, or name "
        "another with --store."
    )


def _no_room(location: Location) -> bool:
    """SQLite reports a full disk as an I/O error if there was no space for its lock file."""
    if location.path is None:
        return False
    return shutil.disk_usage(location.path.parent).free < _LEAST_FREE_BYTES
