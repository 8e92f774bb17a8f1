"""Image source: photographs in files or tar shards, decoded whenever they are read.

An image that cannot be used never stops a training: it is skipped, with a reason, and the next
usable one (by number, so mostly of the same class) replaces it. So every batch is full, and depends
on the files alone, not on threads. In evaluation a skipped image is not replaced: its label is
padding, which is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import PADDING, Batch, EncodedImage, Pixels
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.images.decode import PILLOW_PIXELS, Augmentation, Decoder, Skipped
from cubemesh.data.images.files import EncodedImages
from cubemesh.data.images.skipped_images import ImageCounts, SkippedImages
from cubemesh.data.mounts import mount_of
from cubemesh.data.page_cache import NO_FILE, Extent, resident_fraction
from cubemesh.data.source import Epoch, Indices, Shape, Split, empty_batch
from cubemesh.errors import DataError
from cubemesh.units import format_count

NAME = "images"
DECODED = 255
"""The value that becomes 1.0."""
EXAMINED = 512
"""Files of which the size and the pages in memory are examined."""

T = TypeVar("T")


class ImageSource:
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
        self.ledger = SkippedImages()
        self.decoder = Decoder(*shape, max_pixels)

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        return empty_batch(samples, self.shape)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`: with the crops of evaluation."""
        return self.drawn(indices, into, None)

    def epoch(self, number: int, seed: int) -> Epoch:
        """See `HasEpochs`: randomly cropped and mirrored, in an order that suits the files."""
        order = self.encoded.order(np.random.default_rng((seed, number)))
        return Epoch(source=_Drawn(self, Augmentation(seed, number)), order=order)

    def in_page_cache(self) -> float | None:
        """Fraction of the files that is in the page cache, from 512 of them; None: unknown."""
        return resident_fraction(self._examined())

    def mean_bytes(self) -> float:
        """Mean size of an encoded image, from the same 512."""
        return float(np.mean([extent.size for extent in self._examined()]))

    @property
    def is_remote(self) -> bool:
        """Whether the files are behind a URL."""
        return self.encoded.extent(0).path == NO_FILE

    def storage(self) -> str:
        """File system of the files, with its device or server; empty if unknown."""
        mount = None if self.is_remote else mount_of(self.encoded.extent(0).path)
        return "" if mount is None else str(mount)

    def _examined(self) -> list[Extent]:
        numbers = np.linspace(0, self.samples - 1, min(self.samples, EXAMINED)).astype(np.int64)
        return [self.encoded.extent(number) for number in numbers.tolist()]

    def tally(self, tried: NDArray[np.bool_]) -> ImageCounts:
        """The skipped and converted images among those marked in `tried`."""
        return self.ledger.tally(tried, self.encoded.name, self.encoded.ignored)

    def drawn(self, indices: Indices, into: Batch | None, draw: Augmentation | None) -> Batch:
        """As `batch`, cropped by `draw`. DataError if no image can be used."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))

        def make(number: int) -> Pixels | EncodedImage | None:
            return self.made(number, draw)

        for row, number in enumerate(indices.tolist()):
            found: tuple[int | None, Pixels | EncodedImage | None] = self.usable(number, make)
            used, made = found
            self.put(made, into, row)
            into.labels[row] = PADDING if used is None else self.encoded.labels[used]
        return into

    def made(self, number: int, draw: Augmentation | None) -> Pixels | EncodedImage | None:
        """Image `number` as a batch has it; None if it is skipped."""
        return self.decoded(number, draw)

    def put(self, made: Pixels | EncodedImage | None, into: Batch, row: int) -> None:
        """Write it into a row; None is black."""
        assert not isinstance(made, EncodedImage), "`made` decodes"
        np.divide(0 if made is None else made, DECODED, out=into.images[row], dtype=np.float32)

    def usable(self, number: int, make: Callable[[int], T | None]) -> tuple[int | None, T | None]:
        """The number of the image that is used for `number`, itself or its replacement, and what
        `make` returns for it; None for padding."""
        for candidate in range(number, number + self.samples):
            candidate %= self.samples
            made = make(candidate)
            if made is not None:
                return candidate, made
            if self.ledger.count == self.samples:
                break
            if self.split == "validation":
                return None, None
        raise self.unusable()

    def unusable(self) -> DataError:
        """The error of a data set without a usable image."""
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.ledger.reasons().items())
        return DataError(
            f"All {format_count(self.ledger.count)} images tried are unusable: {reasons}."
        )

    def decoded(self, number: int, draw: Augmentation | None = None) -> Pixels | None:
        """Image `number`, decoded on the host; None if it is skipped."""
        return self.made_from(number, draw, lambda data, pixels: pixels)

    def made_from(
        self, number: int, draw: Augmentation | None, make: Callable[[bytes, Pixels], T]
    ) -> T | None:
        """What `make` returns for the file and the pixels of image `number`; None if it is skipped,
        which `make` may raise too."""
        if self.ledger.reason(number) is not None:
            return None
        try:
            data = self.encoded.read(number)
            image = self.decoder.decode(data, self.encoded.name(number), number, draw)
            made = make(data, image.pixels)
        except Skipped as reason:
            self.ledger.skip(number, str(reason))
            return None
        if image.converted:
            self.ledger.convert(number, image.converted)
        return made


@dataclass(frozen=True)
class _Drawn:
    """`images` with the crops of one epoch of training."""

    images: ImageSource
    draw: Augmentation

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        return self.images.drawn(indices, into, self.draw)
