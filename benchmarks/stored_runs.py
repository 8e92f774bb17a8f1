"""Stores in benchmarks/records, opened as copies: opening one of an older version upgrades it, and
these files stay as they were measured."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cubemesh.store import Store


@contextmanager
def stored_runs(path: Path) -> Iterator[Store]:
    """A copy of the store at `path`, to read."""
    with TemporaryDirectory(prefix="cubemesh-records-") as folder:
        copy = shutil.copy(path, folder)
        with Store.open(str(copy), must_exist=True, read_only=True) as store:
            yield store
