"""Stores in benchmarks/records, opened as copies: opening one of an older version upgrades it, and
these files stay as they were measured."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cubemesh.store import Store


@contextmanager
def stored_runs(path: Path) -> Iterator[Store]:
    """A copy of the store at `path`, to read."""
    with Store.open(str(_copy(path, path.stat().st_mtime_ns)), read_only=True) as store:
        yield store


@functools.cache
def _folder() -> TemporaryDirectory[str]:
    """Holds the copies until the process ends."""
    return TemporaryDirectory(prefix="cubemesh-records-")


@functools.cache
def _copy(path: Path, changed_ns: int) -> Path:
    """The copy of a store, which is upgraded once."""
    folder = Path(_folder().name, str(_copy.cache_info().misses))
    folder.mkdir()
    return Path(shutil.copy(path, folder))
