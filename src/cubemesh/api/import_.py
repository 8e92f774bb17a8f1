"""Import: share bundles, and collective measurements from nccl-tests for comparison with those
measured here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.api.collectives import Sweeps
from cubemesh.store.bundles import bundle_file
from cubemesh.store.bundles.bundle_file import BundleFile
from cubemesh.store.bundles.contents import BundleContents, Merged, contents_of, merge
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


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckedBundle:
    """A share bundle whose checksums and contents are right."""

    file: BundleFile
    contents: BundleContents

    def __repr__(self) -> str:
        return f"CheckedBundle({self.file.path}, {len(self.contents.runs)} runs)"


def verify_bundle(file: str | os.PathLike[str]) -> CheckedBundle:
    """Check the checksums of a share bundle, and that everything in it can be read. DataError, with
    the reason, where it is no bundle, is damaged, or holds what a store does not take."""
    found = bundle_file.read(Path(file))
    return CheckedBundle(file=found, contents=contents_of(found))


def import_bundle(file: str | os.PathLike[str], *, store: AnyStore = None) -> Merged:
    """Store the runs and answers of a share bundle that are not stored yet; nothing that is stored
    is changed. DataError as of `verify_bundle`, before the store is changed."""
    found = bundle_file.read(Path(file))
    with open_store(store) as opened:
        return merge(opened, found)
