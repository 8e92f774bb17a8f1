"""Image source: photographs in files or tar shards, decoded whenever they are read.

An image that cannot be used never stops a training: its place in the minibatch is taken by the next
one that can (by number, and so of the same class mostly), and it is written into the ledger with
the reason. So every minibatch is full, and what it holds depends on the files alone, not on threads
or chance. In evaluation nothing takes its place: it is labelled as padding, which is not counted.
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
from cubemesh.data.page_cache import resident_fraction
from cubemesh.data.source import Epoch, Indices, Shape, Split, empty_batch
from cubemesh.errors import DataError
from cubemesh.units import format_count

NAME = "images"
DECODED = 255
"""The value that becomes 1.0."""
LOOKED_AT = 512

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
        """See `Source.batch`: cut from the middle, as for evaluation."""
        return self.drawn(indices, into, None)

    def epoch(self, number: int, seed: int) -> Epoch:
        """See `HasEpochs`: cropped and mirrored by chance, in an order that suits the files."""
        order = self.encoded.order(np.random.default_rng((seed, number)))
        return Epoch(source=_Drawn(self, Augmentation(seed, number)), order=order)

    def in_page_cache(self) -> float | None:
        """The share of the files that is in memory, looked at in 512 of them; None: not known."""
        looked = np.linspace(0, self.samples - 1, min(self.samples, LOOKED_AT)).astype(np.int64)
        return resident_fraction(map(self.encoded.extent, looked.tolist()))

    def mean_bytes(self) -> float:
        """Bytes of an encoded image, in the mean of the same ones."""
        looked = np.linspace(0, self.samples - 1, min(self.samples, LOOKED_AT)).astype(np.int64)
        return float(np.mean([self.encoded.extent(n).size for n in looked.tolist()]))

    def tally(self, tried: NDArray[np.bool_]) -> ImageCounts:
        """What was set aside and converted of the samples marked in `tried`."""
        return self.ledger.tally(tried, self.encoded.name, self.encoded.ignored)

    def drawn(self, indices: Indices, into: Batch | None, draw: Augmentation | None) -> Batch:
        """As `batch`, cropped as `draw` says. DataError where not one image can be used."""
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
        """What a minibatch holds of image `number`; None where it is set aside."""
        return self.decoded(number, draw)

    def put(self, made: Pixels | EncodedImage | None, into: Batch, row: int) -> None:
        """Write it into a row; None is black."""
        assert not isinstance(made, EncodedImage), "`made` decodes"
        np.divide(0 if made is None else made, DECODED, out=into.images[row], dtype=np.float32)

    def usable(self, number: int, make: Callable[[int], T | None]) -> tuple[int | None, T | None]:
        """What `make` makes of image `number`, or of the one that takes its place, and which that
        is; None where nothing does."""
        for candidate in range(number, number + self.samples):
            candidate %= self.samples
            made = make(candidate)
            if made is not None:
                return candidate, made
            if self.ledger.aside == self.samples:
                break
            if self.split == "validation":
                return None, None
        raise self.unusable()

    def unusable(self) -> DataError:
        """The error of a data set in which nothing can be used."""
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.ledger.reasons().items())
        return DataError(
            f"All {format_count(self.ledger.aside)} images tried are unusable: {reasons}."
        )

    def decoded(self, number: int, draw: Augmentation | None = None) -> Pixels | None:
        """Image `number`, decoded here; None where it is set aside."""
        if self.ledger.reason(number) is not None:
            return None
        try:
            data = self.encoded.read(number)
            image = self.decoder.decode(data, self.encoded.name(number), number, draw)
        except Skipped as reason:
            self.ledger.set_aside(number, str(reason))
            return None
        if image.converted:
            self.ledger.convert(number, image.converted)
        return image.pixels


@dataclass(frozen=True)
class _Drawn:
    """`images` as they look in one epoch of training."""

    images: ImageSource
    draw: Augmentation

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        return self.images.drawn(indices, into, self.draw)
