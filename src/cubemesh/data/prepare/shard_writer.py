"""Shard writer: one tar file with its index, complete or not there.

Both are written under a temporary name, forced to the disk and renamed; the tar file last. Equal
images give equal bytes: members have no date, owner or original name.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import numpy as np

from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.prepared_set import ENDINGS, ENTRY, FORMATS, Shard, member_key
from cubemesh.data.prepare.originals import Originals
from cubemesh.data.prepare.shard_plan import PlannedShard
from cubemesh.durable_files import sync_to_disk

PART = ".part"
"""Ends the name of a file that is not complete."""


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """A shard that is complete."""

    shard: Shard
    counts: dict[int, int]
    """Class → images."""
    skipped: tuple[tuple[str, str], ...] = ()
    """(name, reason) of each image that could not be used."""


def write_shard(
    root: Path,
    planned: PlannedShard,
    originals: Originals,
    convert: Callable[[bytes], tuple[bytes, str]],
) -> WrittenShard:
    """Write a shard of the set in `root`; OSError leaves nothing complete behind."""
    place = root / planned.file
    entries: list[tuple[int, int, int, int, int]] = []
    skipped: list[tuple[str, str]] = []
    counts: dict[int, int] = {}
    part = place.with_name(f".{place.name}{PART}")
    with open(part, "wb") as file:
        tar = _Tar(file)
        for number in planned.images.tolist():
            try:
                data, format_ = convert(originals.read(number))
            except Skipped as reason:
                skipped.append((originals.name(number), str(reason)))
                continue
            label = int(originals.labels[number])
            key = member_key(len(entries))
            offset = tar.add(f"{key}{ENDINGS[format_]}", data)
            tar.add(f"{key}.cls", str(label).encode())
            entries.append((offset, len(data), crc32(data), label, FORMATS.index(format_)))
            counts[label] = counts.get(label, 0) + 1
        tar.end()
        file.flush()
        os.fsync(file.fileno())
    index = io.BytesIO()
    np.save(index, np.array(entries, ENTRY), allow_pickle=False)
    shard = Shard(
        file=planned.file,
        samples=len(entries),
        bytes=tar.size,
        sha256=tar.digest.hexdigest(),
        index_sha256=hashlib.sha256(index.getvalue()).hexdigest(),
    )
    index_part = place.with_name(f".{place.stem}.npy{PART}")
    index_part.write_bytes(index.getvalue())
    sync_to_disk(index_part)
    index_part.replace(root / shard.index)
    part.replace(place)
    sync_to_disk(place.parent)
    return WrittenShard(shard=shard, counts=counts, skipped=tuple(skipped))


class _Tar:
    """A tar file (POSIX ustar) that is written from front to end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.digest = hashlib.sha256()

    def add(self, name: str, data: bytes) -> int:
        """Write a member; the offset of its data."""
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._write(member.tobuf(tarfile.USTAR_FORMAT))
        offset = self.size
        self._write(data)
        self._write(bytes(-len(data) % tarfile.BLOCKSIZE))
        return offset

    def end(self) -> None:
        """Write the two empty blocks that end an archive."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)
