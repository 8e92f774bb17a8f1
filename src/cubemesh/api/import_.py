"""Import of collective measurements from nccl-tests, for comparison with those measured here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.api.collectives import Sweeps
from cubemesh.store.imports.import_sweeps import import_file


@dataclass(frozen=True, kw_only=True, repr=False)
class ImportedSweeps(Sweeps):
    """Sweeps of a file, one record for each operation."""

    new: tuple[str, ...]
    """Ids of the records that were not stored before."""


def import_measurements(
    file: str | os.PathLike[str], *, operation: str | None = None, store: AnyStore = None
) -> ImportedSweeps:
    """Store the sweeps of a log of nccl-tests or of a file of `cubemesh collectives --json`, except
    those that are stored already.

    `operation` names it where the log does not. DataError names the line that cannot be read.
    """
    with open_store(store) as opened:
        found = import_file(opened, Path(file), operation)
    return ImportedSweeps(records=found.records, new=found.new)
