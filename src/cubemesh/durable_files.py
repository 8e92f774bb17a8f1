"""Files that are never seen half written: made next to their place, then renamed.

Those of `write_durably` survive a power cut: they are on the disk before they are renamed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
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
    on return. OSError leaves nothing behind. A link in its place is replaced, not followed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.unlink(missing_ok=True)  # of an earlier process, or a stranger's link
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        sync_to_disk(partial)
        partial.replace(path)
        sync_to_disk(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whose readers see the earlier content or all of the new; a device or a pipe is
    written as it is. OSError leaves the earlier file."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(partial, 0o666 & ~mask)
        os.replace(partial, path.resolve())
    except BaseException:
        os.unlink(partial)
        raise
