"""Import of collective measurements from nccl-tests, for comparison with those measured here."""

from __future__ import annotations

import os
from pathlib import Path

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.api.collectives import Sweeps
from cubemesh.store.import_sweeps import import_file


def import_measurements(
    file: str | os.PathLike[str], *, operation: str | None = None, store: AnyStore = None
) -> Sweeps:
    """Store the sweeps of a log of nccl-tests or of a file of `cubemesh collectives --json`.

    `operation` names it where the log does not. DataError names the line that cannot be read,
    StoreError a file that is stored already.
    """
    with open_store(store) as opened:
        return Sweeps(records=tuple(import_file(opened, Path(file), operation)))
