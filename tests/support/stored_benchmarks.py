"""Copies of the stores in benchmarks/records: opening a store of an older version upgrades it."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

_FOLDER = TemporaryDirectory(prefix="cubemesh-records-")
RECORDS = Path(_FOLDER.name)
"""A folder with a copy of each store and file, removed at the end of the process."""
shutil.copytree(
    Path(__file__).parents[2] / "benchmarks" / "records",
    RECORDS,
    ignore=shutil.ignore_patterns("*-wal", "*-shm"),
    dirs_exist_ok=True,
)
