"""Artifacts: files that ranks wrote into their run's folder, copied next to the store.

A rank, or another host, names them; so a name is opened only as a plain file of that folder, never
as a path, link, device or FIFO, and up to a size.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from cubemesh.errors import StoreError
from cubemesh.schema.warning import Warning, warn
from cubemesh.store import Store
from cubemesh.untrusted import clean, quoted

MOST_BYTES = 2 << 30
"""Most bytes of a file."""
MOST_FILES = 256
"""Most files of a run."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


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
            with open_artifact(folder, file) as source:
                stored[name] = store.attach(run_id, file, source)
        except (ValueError, StoreError) as error:
            refused.append(f"rank {event.get('of_rank', 0)}'s {quoted(file)}: {error}")
    return stored, _warnings(refused)


def open_artifact(folder: Path, name: str) -> BinaryIO:
    """Open a file of a run's folder. ValueError with the reason where it is refused."""
    if not _NAME.fullmatch(name):
        raise ValueError("not the name of a file in the run's folder")
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(name, flags, dir_fd=inside)
    except OSError as error:
        raise ValueError(error.strerror) from None
    finally:
        os.close(inside)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        reason = "not a file of its own (a link, FIFO, folder or device)"
    elif found.st_size > MOST_BYTES:
        reason = f"larger than {MOST_BYTES >> 30} GiB"
    else:
        return os.fdopen(file, "rb")
    os.close(file)
    raise ValueError(reason)


def _warnings(refused: list[str]) -> list[Warning]:
    if not refused:
        return []
    more = f", and {len(refused) - 3} more" if len(refused) > 3 else ""
    return [
        warn(
            "event-refused",
            clean(f"Files of the run were not stored: {'; '.join(refused[:3])}{more}.", 1000),
            "Only plain files that a rank on this host wrote into its run's folder are stored.",
        )
    ]
