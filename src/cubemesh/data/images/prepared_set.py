"""Prepared image set: tar shards with a manifest and an index, as `cubemesh prepare` writes them.

    SET/manifest.json         classes, counts, and of each shard: samples, bytes, SHA-256
    SET/train/000000.tar      images and classes, in WebDataset's layout
    SET/train/000000.npy      the shard's index: place, checksum and class of each image
    SET/val/000000.tar …

With the index a set opens without reading the headers of its shards, and an image can be requested
by its place from a server. Everything in the files is checked before it is used: names cannot leave
the set, an index must have the manifest's SHA-256, and its places must be inside the shard.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import SUFFIXES
from cubemesh.data.images.files import read_regular, regular_size
from cubemesh.data.images.tar_shards import MAX_CLASSES, ShardImages
from cubemesh.data.source import Split, in_split
from cubemesh.errors import DataError
from cubemesh.untrusted import clean, parse_json

MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"
"""Folder in a set that is being prepared."""
FORMAT, VERSION = "cubemesh image set", 1
MANIFEST_BYTES = 64 << 20
"""Most bytes of a manifest."""
FOLDERS: dict[Split, str] = {"train": "train", "validation": "val"}
"""Split → folder of its shards."""
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))
"""Formats of images, by the number in an index."""
ENDINGS = {name: next(s for s, f in SUFFIXES.items() if f == name) for name in FORMATS}
"""Format → the end of its files' names."""
ENTRY = np.dtype(
    [("offset", "<i8"), ("size", "<i8"), ("crc32", "<u4"), ("label", "<i4"), ("format", "u1")]
)
"""An image in an index."""
_FILE = re.compile(r"(train|val)/\d{6,9}\.tar")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard, as its manifest describes it."""

    file: str
    """Path in the set."""
    samples: int
    bytes: int
    sha256: str
    index_sha256: str

    @property
    def split(self) -> Split:
        """By its folder."""
        return "train" if self.file.startswith(FOLDERS["train"]) else "validation"

    @property
    def index(self) -> str:
        """Path of its index in the set."""
        return self.file.removesuffix(".tar") + ".npy"

    @property
    def index_bytes(self) -> int:
        """Most bytes of its index: a header, and its images."""
        return 4096 + self.samples * ENTRY.itemsize


@dataclass(frozen=True, kw_only=True)
class SetManifest:
    """The manifest of a set."""

    classes: tuple[str, ...]
    """Names, by label."""
    counts: Mapping[str, tuple[int, ...]]
    """Split → images of each class."""
    shards: tuple[Shard, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason → images that could not be read when it was prepared."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """From what, and with which settings."""

    def of(self, split: Split) -> tuple[Shard, ...]:
        """The shards of a split."""
        return tuple(shard for shard in self.shards if shard.split == split)

    def samples(self, split: Split) -> int:
        """Images of a split."""
        return sum(shard.samples for shard in self.of(split))

    @property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)


def read_manifest(text: bytes, where: str) -> SetManifest:
    """The manifest in `text`; DataError, with what is wrong, where it is none."""
    try:
        return _manifest_of(parse_json(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = clean(str(error) or type(error).__name__, 200)
        raise DataError(
            f"{where}/{MANIFEST} is not the manifest of a prepared image set: {reason}. Make the "
            "set with `cubemesh prepare`."
        ) from error


def _manifest_of(found: Any) -> SetManifest:
    if found["format"] != FORMAT:
        raise ValueError(f"its format is not '{FORMAT}'")
    if found["version"] != VERSION:
        raise ValueError(f"its version is {found['version']}, and {VERSION} is read here")
    classes = tuple(_text(name) for name in found["classes"])
    if not 0 < len(classes) <= MAX_CLASSES:
        raise ValueError(f"it has {len(classes)} classes")
    shards = tuple(_shard_of(one) for one in found["shards"])
    if len({shard.file for shard in shards}) < len(shards):
        raise ValueError("it names a shard twice")
    counts: dict[str, tuple[int, ...]] = {
        split: tuple(_count(n) for n in found["counts"].get(split, ())) or (0,) * len(classes)
        for split in FOLDERS
    }
    if any(len(each) != len(classes) for each in counts.values()):
        raise ValueError("its counts are not of its classes")
    skipped = {_text(reason): _count(n) for reason, n in found.get("skipped", {}).items()}
    return SetManifest(
        classes=classes,
        counts=counts,
        shards=shards,
        skipped=skipped,
        made=dict(found.get("made", {})),
    )


def _shard_of(found: Any) -> Shard:
    shard = Shard(
        file=_text(found["file"]),
        samples=_count(found["samples"]),
        bytes=_count(found["bytes"]),
        sha256=_text(found["sha256"]),
        index_sha256=_text(found["index_sha256"]),
    )
    if not _FILE.fullmatch(shard.file):
        raise ValueError(f"'{shard.file}' is not the name of a shard, such as train/000000.tar")
    if not _DIGEST.fullmatch(shard.sha256) or not _DIGEST.fullmatch(shard.index_sha256):
        raise ValueError(f"the SHA-256 of {shard.file} is not one")
    return shard


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a name is not text")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise ValueError("a count is not a whole number")
    return value


def read_index(data: bytes, shard: Shard, classes: int) -> NDArray[Any]:
    """The index of a shard, (samples,) of `ENTRY`; DataError where it is not the manifest's."""
    if sha256(data).hexdigest() != shard.index_sha256:
        raise DataError(
            f"{shard.index} does not have the SHA-256 of the manifest: it is damaged, or of "
            "another set. Copy the set again, or prepare it again."
        )
    try:
        found: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{shard.index} is not an index: {error}.") from error
    inside = (
        found.dtype == ENTRY
        and found.shape == (shard.samples,)
        and bool((found["offset"] >= 0).all())
        and bool((found["size"] >= 0).all())
        and bool((found["offset"] <= shard.bytes - found["size"]).all())
        and bool(((found["label"] >= 0) & (found["label"] < classes)).all())
        and bool((found["format"] < len(FORMATS)).all())
    )
    if not inside:
        raise DataError(f"{shard.index} has places or classes that its shard does not have.")
    return found


class PreparedShards(ShardImages):
    """The images of one split of a prepared set, found by the indexes of its shards."""

    def __init__(
        self,
        manifest: SetManifest,
        split: Split | None,
        root: Path,
        index_of: Callable[[Shard], bytes],
    ) -> None:
        """`index_of` reads the index of a shard. DataError if the split has no image, or as of
        `read_index`. Without a split: all images of a set that has none."""
        shards = (() if split is None else manifest.of(split)) or manifest.of("train")
        count = len(manifest.classes)
        found = [read_index(index_of(shard), shard, count) for shard in shards]
        images = np.concatenate(found) if found else np.empty(0, ENTRY)
        number = np.repeat(np.arange(len(found)), [len(index) for index in found])
        row = np.concatenate([np.arange(len(index)) for index in found] or [np.arange(0)])
        if not manifest.of("validation") and split is not None:
            chosen = [n for n in range(len(images)) if in_split(split, n + 1)]
            images, number, row = images[chosen], number[chosen], row[chosen]
        if not len(images):
            raise DataError(f"The prepared set has no images for {split}.")
        super().__init__(
            [root / shard.file for shard in shards],
            manifest.classes,
            images["label"].astype(np.int64),
            (),
            (
                number.astype(np.int64),
                images["offset"].astype(np.int64),
                images["size"].astype(np.int64),
            ),
        )
        self.split = split
        self._shards = shards
        self._row = row
        self._crc32 = images["crc32"]
        self._format = images["format"]

    def name(self, number: int) -> str:
        """Shard and member."""
        shard = self._shards[self._shard[number]].file
        ending = ENDINGS[FORMATS[self._format[number]]]
        return f"{shard}/{member_key(int(self._row[number]))}{ending}"

    def identity(self) -> str:
        """By the contents of the shards."""
        return identity_of_shards(self._shards, self.split or "")


def member_key(row: int) -> str:
    """Name of the image in a row of a shard, without its ending."""
    return f"{row:06}"


def identity_of_shards(shards: Sequence[Shard], split: str = "") -> str:
    """Sixteen hexadecimal digits of what the shards contain, and of the split."""
    text = "\n".join([split, *(f"{s.file} {s.sha256} {s.index_sha256}" for s in shards)])
    return sha256(text.encode()).hexdigest()[:16]


def local_manifest(root: Path) -> SetManifest | None:
    """The manifest of the set in a folder; None if it is no prepared set. DataError where its
    preparation is not finished, or the manifest is damaged."""
    try:
        text = read_regular(root / MANIFEST, MANIFEST_BYTES)
    except OSError:
        text = b""
    if (root / UNFINISHED).is_dir():
        raise DataError(
            f"{root} is not prepared completely. Run the same `cubemesh prepare` again: it makes "
            "the shards that are missing."
        )
    return read_manifest(text, str(root)) if FORMAT.encode() in text[:200] else None


def check_prepared(root: Path, manifest: SetManifest) -> None:
    """DataError for the first shard or index that is missing or not of its size; nothing is
    read."""
    for shard in manifest.shards:
        try:
            size = regular_size(root / shard.file)
            regular_size(root / shard.index)
        except OSError as error:
            raise DataError(
                f"{root / shard.file} of the manifest cannot be read: {error.strerror}. Copy the "
                "set again, or run the same `cubemesh prepare` again."
            ) from error
        if size != shard.bytes:
            raise DataError(
                f"{root / shard.file} has {size} bytes, and {shard.bytes} in the manifest. Delete "
                "it and run the same `cubemesh prepare` again, or copy the set again."
            )


def open_prepared(root: Path, manifest: SetManifest, split: Split | None) -> PreparedShards:
    """The images of a split of a set on this machine; DataError as of `read_index`."""

    def index_of(shard: Shard) -> bytes:
        try:
            return read_regular(root / shard.index, shard.index_bytes)
        except OSError as error:
            raise DataError(f"{root / shard.index} cannot be read: {error.strerror}.") from error

    return PreparedShards(manifest, split, root, index_of)
