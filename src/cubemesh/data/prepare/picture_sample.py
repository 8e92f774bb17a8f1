"""Sample of an image set: some pictures of each class, as small JPEGs, and the sizes of pictures.

The pictures of a class are evenly spaced in its order, three quarters of them from the training
split. So the same set gives the same sample.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.images.decode import (
    FORMATS,
    JPEGS,
    PILLOW_PIXELS,
    Decoder,
    Skipped,
    load_decoder,
    reasons,
)
from cubemesh.data.images.files import EncodedImages
from cubemesh.data.images.open_images import open_encoded
from cubemesh.data.prepare.image_set import ImageSet, list_image_set
from cubemesh.data.prepare.originals import Joined, evenly, open_readers
from cubemesh.data.remote.folder import is_url
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Unsupported

PER_CLASS = 8
"""Pictures of a class."""
MOST_PICTURES = 1200
"""Of all classes: with more classes than 150 there are fewer of each, and above 1,200 some have
none."""
MOST_BYTES = 8 << 20
"""Of the small JPEGs."""
SIDE = 128
"""Longer side of a small JPEG in pixels."""
_QUALITY = 75


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of the sample."""

    name: str
    split: str
    jpeg: bytes
    """The whole picture, its longer side at most `SIDE` pixels."""
    shape: tuple[int, int]
    """Width and height of `jpeg`."""
    width: int
    """Of the original, in pixels."""
    height: int
    format: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SetSample:
    """An image set with a sample of its pictures."""

    listed: ImageSet
    pictures: Mapping[int, tuple[Picture, ...]]
    """Label → pictures, of the classes that have any in the sample."""
    unusable: Mapping[str, int]
    """Reason → pictures that were chosen and cannot be used."""
    bytes: int
    """Of all pictures: of the shards of a prepared set, else estimated from some hundred."""
    shortened: bool
    """Whether the sample ended at `MOST_BYTES`."""


def sample_image_set(place: str | os.PathLike[str], *, per_class: int = PER_CLASS) -> SetSample:
    """The classes and counts of a set as of `list_image_set`, and a sample of its pictures.

    UsageError without Pillow or for a number below 1, DataError for a set that cannot be read.
    """
    if per_class < 1:
        raise UsageError(f"per_class={per_class}: give 1 picture of each class or more.")
    listed = list_image_set(place)
    text = os.fspath(place)
    try:
        small = _SmallPictures()
        readers = _readers(text, listed)
    except Unsupported as error:
        raise UsageError(str(error)) from error
    names = ("train", "validation") if "train" in listed.counts else ("images",)
    pictures: dict[int, tuple[Picture, ...]] = {}
    unusable: Counter[str] = Counter()
    left = MOST_BYTES
    for label, chosen in _chosen(readers, len(listed.classes), per_class):
        found = []
        for number, index in chosen:
            try:
                picture = small.read(readers[number], index, names[number])
            except Skipped as reason:
                unusable[str(reason)] += 1
                continue
            left -= len(picture.jpeg)
            if left < 0:
                break
            found.append(picture)
        if found:
            pictures[label] = tuple(found)
        if left < 0:
            break
    return SetSample(
        listed=listed,
        pictures=pictures,
        unusable=unusable,
        bytes=_bytes(listed, readers),
        shortened=left < 0,
    )


def _readers(text: str, listed: ImageSet) -> Sequence[EncodedImages]:
    if not is_url(text):
        return open_readers(Path(text).expanduser())
    train = open_encoded(text, "train")
    if listed.manifest is None or not listed.manifest.of("validation"):
        return [train]
    return [train, open_encoded(text, "validation")]


def _bytes(listed: ImageSet, readers: Sequence[EncodedImages]) -> int:
    if listed.manifest is not None:
        return listed.manifest.bytes
    joined = Joined(readers)
    return round(joined.mean_bytes() * len(joined.labels))


def _chosen(
    readers: Sequence[EncodedImages], classes: int, per_class: int
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(label, [(place in `readers`, number of the image)]) of the classes that are sampled."""
    orders = [_by_class(reader.labels, classes) for reader in readers]
    many = max(1, min(per_class, MOST_PICTURES // max(1, classes)))
    for label in evenly(classes, MOST_PICTURES):
        own = [order[start[label] : start[label + 1]] for order, start in orders]
        share = [many] if len(own) == 1 else [many - many // 4, many // 4]
        if len(own) > 1 and not len(own[0]):
            share = [0, many]
        yield (
            label,
            [
                (place, int(numbers[one]))
                for place, (numbers, most) in enumerate(zip(own, share, strict=True))
                for one in evenly(len(numbers), most)
            ],
        )


def _by_class(
    labels: NDArray[np.int64], classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of images in the order of their classes, and where each class begins."""
    order = np.argsort(labels, kind="stable")
    return order, np.searchsorted(labels[order], np.arange(classes + 1))


class _SmallPictures:
    """Reads pictures; NotInstalled without Pillow."""

    def __init__(self) -> None:
        self._image = load_decoder()
        self._decoder = Decoder(3, 1, 1, PILLOW_PIXELS)

    def read(self, reader: EncodedImages, number: int, split: str) -> Picture:
        """A picture; Skipped with the reason if it cannot be used."""
        data = reader.read(number)
        if not data:
            raise Skipped("empty file")
        with reasons(), self._image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > PILLOW_PIXELS:
                raise Skipped("too many pixels")
            format_ = "JPEG" if image.format in JPEGS else str(image.format)
            if format_ == "JPEG":  # decoded at 1/2, 1/4 or 1/8, still of twice the size
                image.draft(None, (2 * SIDE, 2 * SIDE))
            shape, jpeg = self._small(self._decoder.plain(image), width, height)
        return Picture(
            name=reader.name(number),
            split=split,
            jpeg=jpeg,
            shape=shape,
            width=width,
            height=height,
            format=format_,
            bytes=len(data),
        )

    def _small(self, image: Any, width: int, height: int) -> tuple[tuple[int, int], bytes]:
        scale = min(1.0, SIDE / max(width, height))
        shape = (max(1, round(width * scale)), max(1, round(height * scale)))
        file = io.BytesIO()
        image.resize(shape, self._image.Resampling.BILINEAR).save(file, "JPEG", quality=_QUALITY)
        return shape, file.getvalue()
