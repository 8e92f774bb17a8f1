"""Digest of the data at a path: whether they are still those of an earlier run.

It covers the names, sizes and times of change of all files. Where they have no more than
`SMALL_BYTES` together, contents take the place of the times, so that a copy has the same digest. Of
more than `MOST_STATED` files every n-th is looked at, with the names of all and the times of the
folders: in a large data set an edited file may go unnoticed, an added or removed one not. Links to
folders are followed, as the readers of image folders do. Of a set at a URL it is that of its
manifest, which has the checksums of all files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from cubemesh.data.images.prepared_set import MANIFEST, MANIFEST_BYTES
from cubemesh.data.remote.folder import is_url
from cubemesh.data.remote.protocols import open_folder
from cubemesh.errors import DataError
from cubemesh.frameworks.contract.program import NotInstalled

SMALL_BYTES = 1 << 20
MOST_STATED = 10_000


def data_digest(path: str) -> str:
    """Sixteen hexadecimal digits; empty if there is nothing to read at `path` on this host."""
    if is_url(path):
        try:
            manifest = open_folder(path).read_file(MANIFEST, MANIFEST_BYTES)
        except (DataError, NotInstalled):
            return ""  # the run has the reason
        return hashlib.sha256(manifest).hexdigest()[:16]
    root = Path(path).expanduser()
    folders, files = _entries(root)
    every = -(-len(files) // MOST_STATED) or 1
    found = hashlib.sha256()
    sizes: list[int] = []
    times: list[int] = []
    for file in files[::every]:
        try:
            status = file.stat()
        except OSError:  # a dangling link
            sizes.append(-1)
            times.append(-1)
            continue
        sizes.append(status.st_size)
        times.append(status.st_mtime_ns)
    if not files:
        return ""
    names = [os.fsencode(file.relative_to(root)) for file in files]
    found.update(b"\0".join(names) + repr(sizes).encode())
    if every == 1 and sum(sizes) <= SMALL_BYTES and all(map(os.path.isfile, files)):
        try:
            for file in files:
                found.update(file.read_bytes())
            return found.hexdigest()[:16]
        except OSError:
            pass  # its time will do
    if every > 1:
        times += [folder.stat().st_mtime_ns for folder in folders]
    found.update(repr(times).encode())
    return found.hexdigest()[:16]


def _entries(root: Path) -> tuple[list[Path], list[Path]]:
    """Folders and files below `root`, by name; a file is its own only entry."""
    if not root.is_dir():
        return [], [root] if root.exists() else []
    folders, files = [], []
    seen: set[tuple[int, int]] = set()
    walked: Iterator[tuple[str, list[str], list[str]]] = os.walk(root, followlinks=True)
    for folder, below, names in walked:
        status = os.stat(folder)  # of the target of a link
        if (identity := (status.st_dev, status.st_ino)) in seen:  # a circle, or linked twice
            below.clear()
            continue
        seen.add(identity)
        folders.append(Path(folder))
        below.sort()  # the same order every time decides under which name a folder counts
        files += [Path(folder, name) for name in names]
    return sorted(folders), sorted(files)
