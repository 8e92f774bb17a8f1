"""Files that survive a power cut: forced to the disk, then renamed to their name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str) -> None:
    """Write a file so that it holds `text`, or what it held before, at any time; it is on the disk
    on return. OSError leaves nothing behind."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        sync_to_disk(partial)
        partial.replace(path)
        sync_to_disk(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
