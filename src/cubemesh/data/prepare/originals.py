"""Originals of a set: the images that `cubemesh prepare` reads, wherever they are stored.

| source | classes | split |
|---|---|---|
| `train/CLASS/IMAGE` and `val/CLASS/IMAGE` | folders | its own |
| `CLASS/IMAGE` | folders | none: a share of each class is drawn |
| tar shards, also of an earlier `prepare` | as read for training | its own, or none |
| ImageNet's tar of tars, with the archive for validation | inner archives | its own |
| `made-images` | ten, of chance | none |
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images import generated_jpegs
from cubemesh.data.images.files import EncodedImages
from cubemesh.data.images.image_folder import ImageFolder, check_folder, split_folder
from cubemesh.data.images.open_images import open_encoded
from cubemesh.data.images.prepared_set import local_manifest, open_prepared
from cubemesh.data.images.tar_shards import TarShards, find_shards
from cubemesh.data.prepare import imagenet_archives
from cubemesh.data.prepare.shard_plan import OVERHEAD_BYTES
from cubemesh.errors import DataError, UsageError

SAMPLED = 512
"""Images whose sizes are looked at."""
_SOME = 4
"""Pictures from which the number of all is computed."""


class Originals(Protocol):
    """Numbered images as bytes, with class and, where the source has one, split."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    """(images,)"""
    is_validation: NDArray[np.bool_] | None
    """(images,): of the source's own split; None: it has none."""

    def read(self, number: int) -> bytes:
        """The file; Skipped with the reason where it cannot be read."""

    def name(self, number: int) -> str:
        """Its name, printable."""

    def identity(self) -> str:
        """Sixteen hexadecimal digits that change when files are added, removed or replaced."""

    def mean_bytes(self) -> float:
        """Mean size of an image, of some hundred."""


def open_originals(source: str, size_bytes: int | None, labels: Path | None) -> Originals:
    """The images of a folder or archive, or `made-images` of a size.

    `labels` is the file with the classes of ImageNet's validation images. DataError or UsageError
    with what is wrong.
    """
    if source == generated_jpegs.NAME:
        if size_bytes is None:
            raise UsageError(f"{source} needs a size, such as --size 10GB.")
        return MadeImages(size_bytes)
    if size_bytes is not None:
        raise UsageError(
            f"--size is that of {generated_jpegs.NAME}; images of {source} have their own. Leave "
            f"it out, or give {generated_jpegs.NAME} as the source."
        )
    path = Path(source).expanduser()
    if (archives := imagenet_archives.find_archives(path)) is not None:
        train, validation = archives
        return imagenet_archives.ImageNetArchives(train, validation, labels)
    if labels is not None:
        raise UsageError(
            f"--validation-labels is for ImageNet's archives, and {source} is not one. Leave it "
            "out."
        )
    return Joined(open_readers(path))


def open_readers(path: Path) -> Sequence[EncodedImages]:
    """The images for training and validation, or all of data without a split."""
    if os.path.isfile(path):
        return [TarShards({"train": (path,), "validation": ()}, None)]
    if not os.path.isdir(path):
        raise DataError(f"{path} does not exist. Name a folder of images, or a tar file.")
    if (manifest := local_manifest(path)) is not None:
        if manifest.of("validation"):
            return [open_encoded(path, "train"), open_encoded(path, "validation")]
        return [open_prepared(path, manifest, None)]
    if shards := find_shards(path):
        if shards["validation"]:
            return [TarShards(shards, "train"), TarShards(shards, "validation")]
        return [TarShards(shards, None)]
    check_folder(path)
    if split_folder(path, "train") is not None:
        return [ImageFolder(path, "train"), ImageFolder(path, "validation")]
    return [ImageFolder(path, None)]


class Joined:
    """See `Originals`: the images of one reader, or of one for training and one for validation."""

    def __init__(self, readers: Sequence[EncodedImages]) -> None:
        self._readers = readers
        self._first = len(readers[0].labels)
        self.classes = readers[0].classes
        self.labels = np.concatenate([reader.labels for reader in readers])
        self.is_validation = None
        if len(readers) > 1:
            self.is_validation = np.arange(len(self.labels)) >= self._first

    def read(self, number: int) -> bytes:
        """See `Originals.read`."""
        reader, own = self._own(number)
        return reader.read(own)

    def name(self, number: int) -> str:
        """See `Originals.name`."""
        reader, own = self._own(number)
        return reader.name(own)

    def identity(self) -> str:
        """See `Originals.identity`."""
        words = " ".join(reader.identity() for reader in self._readers)
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    def mean_bytes(self) -> float:
        """See `Originals.mean_bytes`."""
        return float(np.mean([self._size(n) for n in evenly(len(self.labels), SAMPLED)]))

    def _size(self, number: int) -> int:
        reader, own = self._own(number)
        return reader.extent(own).size

    def _own(self, number: int) -> tuple[EncodedImages, int]:
        if number < self._first:
            return self._readers[0], number
        return self._readers[1], number - self._first


class MadeImages:
    """See `Originals`: `made-images` again and again, until they have a size; at least two of each
    class."""

    def __init__(self, size_bytes: int) -> None:
        self._pictures = generated_jpegs.pictures(_SOME)
        count = max(
            2 * generated_jpegs.CLASSES, round(size_bytes / (self.mean_bytes() + OVERHEAD_BYTES))
        )
        self._pictures = generated_jpegs.pictures(count)
        self.classes = tuple(f"class-{n}" for n in range(generated_jpegs.CLASSES))
        self.labels: NDArray[np.int64] = np.arange(count) % len(self.classes)
        self.is_validation: NDArray[np.bool_] | None = None

    def read(self, number: int) -> bytes:
        """See `Originals.read`."""
        return self._pictures[number % len(self._pictures)]

    def name(self, number: int) -> str:
        """See `Originals.name`."""
        return f"{generated_jpegs.NAME}/{number}.jpg"

    def identity(self) -> str:
        """See `Originals.identity`."""
        return f"{generated_jpegs.NAME}-{generated_jpegs.VERSION}-{len(self.labels)}"

    def mean_bytes(self) -> float:
        """See `Originals.mean_bytes`."""
        return float(np.mean([len(picture) for picture in self._pictures]))


def evenly(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, evenly spaced."""
    numbers = np.linspace(0, count - 1, min(count, most)).astype(np.int64)
    found: list[int] = numbers.tolist()
    return found
