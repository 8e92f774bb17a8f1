"""Artifacts: files that ranks wrote into their run's folder, copied next to the store.

A rank, or another host, names them; so a name is opened only as a plain file of that folder
(`open_plain_file`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cubemesh.errors import StoreError
from cubemesh.schema.warning import Warning, warn
from cubemesh.untrusted import clean, open_plain_file, quoted

if TYPE_CHECKING:
    from cubemesh.store import Store

MOST_FILES = 256
"""Most files of a run."""


def store_artifacts(
    store: Store, run_id: str, folder: Path, events: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, str], list[Warning]]:
    """Copy the files that a run's events name into the store: name → path, and the warning about
    those that were refused."""
    stored: dict[str, str] = {}
    refused: list[str] = []
    for event in events:
        if event["event"] != "artifact":
            continue
        name, file = event["name"], event["file"]
        try:
            if len(stored) + len(refused) >= MOST_FILES:
                raise ValueError(f"a run has {MOST_FILES} files at most")
            with open_plain_file(folder, file) as source:
                stored[name] = store.attach(run_id, file, source)
        except (ValueError, StoreError) as error:
            refused.append(f"rank {event.get('of_rank', 0)}'s {quoted(file)}: {error}")
    return stored, _warnings(refused)


def _warnings(refused: list[str]) -> list[Warning]:
    if not refused:
        return []
    more = f", and {len(refused) - 3} more" if len(refused) > 3 else ""
    return [
        warn(
            "event-refused",
            clean(f"Files of the run were not stored: {'; '.join(refused[:3])}{more}.", 1000),
            "Only plain files of the run's folder are stored, and traces of other hosts up to "
            "256 MiB.",
        )
    ]
