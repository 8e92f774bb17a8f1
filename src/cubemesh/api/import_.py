"""Import: share bundles, and for comparison with what was measured here collective measurements
from nccl-tests and training logs of other programs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.api.collectives import Sweeps
from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.core.settings import parse_value, split
from cubemesh.schema.serialization import field_types
from cubemesh.store.bundles import bundle_file
from cubemesh.store.bundles.bundle_file import BundleFile
from cubemesh.store.bundles.contents import BundleContents, Merged, contents_of, merge
from cubemesh.store.imports import import_training
from cubemesh.store.imports.import_sweeps import import_file
from cubemesh.store.imports.import_training import ImportedTraining, LogSettings


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


def import_training_log(
    file: str | os.PathLike[str], *, store: AnyStore = None, **settings: Any
) -> ImportedTraining:
    """Store the samples per second of a training log of another program as a record, unless it is
    stored already.

    `settings` are those of `LogSettings`: what the log does not state, such as `network`,
    `precision`, `devices` and `batch_per_device`, and `skip_steps` for the warm-up. DataError names
    the line that cannot be read, UsageError what is missing.
    """
    kinds = field_types(LogSettings)
    for key in settings:
        if key not in kinds:
            raise unknown_name("setting of training logs", key, kinds, plural="settings")
    try:
        given = LogSettings(**settings)
    except TypeError as error:
        raise UsageError(f"a setting of the training log has a wrong type: {error}.") from None
    with open_store(store) as opened:
        return import_training.import_training(opened, Path(file), given)


def training_log_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """`["network=resnet-50", "devices=8"]` as the settings of `import_training_log`; UsageError for
    an unknown key or a wrong value."""
    kinds = field_types(LogSettings)
    given = {}
    for key, text in split(pairs).items():
        if key not in kinds:
            raise unknown_name("setting of training logs", key, kinds, plural="settings")
        given[key] = parse_value(key, text, kinds[key])
    return given


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
