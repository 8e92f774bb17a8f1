"""Photographs in files of their own or in tar shards, decoded each time they are asked for.

An image that cannot be used never stops a training: its place in the minibatch is taken by the next
one that can (by number, and so of the same class mostly), and it is written into the ledger with
the reason. So every minibatch is full, and what it holds depends on the files alone, not on threads
or chance. In evaluation nothing takes its place: it is labelled as padding, which is not counted.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.arrays import Raw, check_indices
from cubemesh.data.base import (
    Epoch,
    Indices,
    Shape,
    Source,
    Split,
    check_classes,
    empty_batch,
)
from cubemesh.data.decode import PILLOW_PIXELS, Decoder, Draw, SetAside
from cubemesh.data.files import EncodedImages
from cubemesh.data.image_folder import ImageFolder, check_folder
from cubemesh.data.ledger import Ledger, Tally
from cubemesh.data.page_cache import resident_share
from cubemesh.data.staging import LIMIT_BYTES, Staged
from cubemesh.data.tar_shards import TarShards, find_shards
from cubemesh.data.wrapped import Dropping
from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.base import PADDING, Batch
from cubemesh.units import format_count

NAME = "images"
KEPT_BYTES = 1 << 30
"""Most memory that images take which are kept decoded."""
LOOKED_AT = 512
DECODED = 255
"""The value that becomes 1.0."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How images are read."""

    max_pixels: int = PILLOW_PIXELS
    """An image of more pixels is set aside before it is decoded."""
    keep_decoded: bool = False
    """Whether they are decoded once, before anything is timed, and kept in memory."""
    drop_page_cache: bool = False
    """Whether a file's pages are dropped from memory as soon as it was read."""
    stage_folder: Path | None = None
    """A folder on a local disk where what was read is kept; None keeps nothing."""
    stage_limit_bytes: int = LIMIT_BYTES
    """Most that is kept there."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_pixels <= PILLOW_PIXELS:
            raise UsageError(
                f"max_image_pixels={self.max_pixels} does not fit: it must be 1 to "
                f"{format_count(PILLOW_PIXELS)}, beyond which the decoder refuses by itself."
            )


def check_files(path: Path) -> None:
    """DataError where there are neither tar shards nor folders of images at `path`."""
    if not path.is_dir():
        raise DataError(f"data_path={path} is no folder. Name one that holds images or tar shards.")
    if not find_shards(path):
        check_folder(path)


def open_images(
    path: Path, split: Split, shape: Shape, classes: int, reading: Reading | None = None
) -> Source:
    """The images of `split`, for a network of `classes` classes fed `shape`.

    Unsupported where the decoder is missing; DataError and UsageError as `check_files` and where
    the network has fewer classes.
    """
    reading = reading or Reading()
    if shape[0] not in (1, 3):
        raise UsageError(
            f"{NAME} has images of 1 or 3 channels and the network takes {shape[0]}. Choose "
            "data=synthetic, which has any."
        )
    check_files(path)
    shards = find_shards(path)
    encoded: EncodedImages = TarShards(shards, split) if shards else ImageFolder(path, split)
    check_classes(NAME, len(encoded.classes), classes)
    if reading.drop_page_cache:
        encoded = Dropping(encoded)
    if reading.stage_folder is not None:
        encoded = Staged(encoded, reading.stage_folder, reading.stage_limit_bytes)
    images = Images(encoded, shape, split, reading.max_pixels)
    return Kept(images) if reading.keep_decoded else images


class Images:
    """A `Source` of encoded images; `HasEpochs`: in training each epoch crops them anew."""

    def __init__(
        self, encoded: EncodedImages, shape: Shape, split: Split, max_pixels: int = PILLOW_PIXELS
    ) -> None:
        self.name = NAME
        self.encoded = encoded
        self.shape = shape
        self.samples = len(encoded.labels)
        self.classes = len(encoded.classes)
        self.split = split
        self.max_pixels = max_pixels
        self.ledger = Ledger()
        self._decoder = Decoder(*shape, max_pixels)

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        return empty_batch(samples, self.shape)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`: cut from the middle, as for evaluation."""
        return self.drawn(indices, into, None)

    def epoch(self, number: int, seed: int) -> Epoch:
        """See `HasEpochs`: cropped and mirrored by chance, in an order that suits the files."""
        order = self.encoded.order(np.random.default_rng((seed, number)))
        return Epoch(source=_Drawn(self, Draw(seed, number)), order=order)

    def in_page_cache(self) -> float | None:
        """The share of the files that is in memory, looked at in 512 of them; None: not known."""
        looked = np.linspace(0, self.samples - 1, min(self.samples, LOOKED_AT)).astype(np.int64)
        return resident_share(map(self.encoded.extent, looked.tolist()))

    def mean_bytes(self) -> float:
        """Bytes of an encoded image, in the mean of the same ones."""
        looked = np.linspace(0, self.samples - 1, min(self.samples, LOOKED_AT)).astype(np.int64)
        return float(np.mean([self.encoded.extent(n).size for n in looked.tolist()]))

    def tally(self, tried: NDArray[np.bool_]) -> Tally:
        """What was set aside and converted of the samples marked in `tried`."""
        return self.ledger.tally(tried, self.encoded.name, self.encoded.ignored)

    def drawn(self, indices: Indices, into: Batch | None, draw: Draw | None) -> Batch:
        """As `batch`, cropped as `draw` says. DataError where not one image can be used."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        for row, number in enumerate(indices.tolist()):
            used = self._fill(number, into.images[row], draw)
            into.labels[row] = PADDING if used is None else self.encoded.labels[used]
        return into

    def _fill(self, number: int, row: NDArray[np.float32], draw: Draw | None) -> int | None:
        """Fill `row` with image `number` or one that takes its place; returns which, None where
        nothing does."""
        for candidate in range(number, number + self.samples):
            candidate %= self.samples
            pixels = self.decoded(candidate, draw)
            if pixels is not None:
                np.divide(pixels, DECODED, out=row, dtype=np.float32)
                return candidate
            if self.ledger.aside == self.samples:
                break
            if self.split == "validation":
                row[...] = 0
                return None
        raise self.unusable()

    def unusable(self) -> DataError:
        """The error of a data set in which nothing can be used."""
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.ledger.reasons().items())
        return DataError(
            f"None of the {format_count(self.ledger.aside)} images tried can be used: {reasons}."
        )

    def decoded(self, number: int, draw: Draw | None = None) -> NDArray[np.uint8] | None:
        """Image `number` as (channels, height, width); None where it is set aside."""
        if self.ledger.reason(number) is not None:
            return None
        try:
            data = self.encoded.read(number)
            image = self._decoder.decode(data, self.encoded.name(number), number, draw)
        except SetAside as reason:
            self.ledger.set_aside(number, str(reason))
            return None
        if image.converted:
            self.ledger.convert(number, image.converted)
        return image.pixels


@dataclass(frozen=True)
class _Drawn:
    """`images` as they look in one epoch of training."""

    images: Images
    draw: Draw

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        return self.images.drawn(indices, into, self.draw)


class Kept(Raw):
    """Images decoded once, cut as for evaluation, and kept in memory as bytes: as many as fit
    `KEPT_BYTES`, taken evenly from all. Those that cannot be used are left out."""

    def __init__(self, images: Images) -> None:
        fit = KEPT_BYTES // int(np.prod(images.shape))
        tried = np.linspace(0, images.samples - 1, min(images.samples, fit)).astype(np.int64)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            decoded = pool.map(images.decoded, tried.tolist())
            used = [(p, n) for p, n in zip(decoded, tried.tolist(), strict=True) if p is not None]
        if not used:
            raise images.unusable()
        super().__init__(
            images.name,
            [np.stack([pixels for pixels, _ in used])],
            images.encoded.labels[[number for _, number in used]],
            raw_shape=images.shape,
            white=DECODED,
            classes=images.classes,
            shape=images.shape,
        )
        self._images = images
        self._tried = np.zeros(images.samples, np.bool_)
        self._tried[tried] = True

    def tally(self, tried: NDArray[np.bool_]) -> Tally:
        """What was set aside and converted of the images that were decoded, which all were tried
        before the first step."""
        return self._images.tally(self._tried)
