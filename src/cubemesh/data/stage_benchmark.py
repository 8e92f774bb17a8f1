"""Input stage benchmarks: reading only, or decoding only.

`ReadOnly` only reads the files of a batch; `decode_only` decodes images that are already in memory.
Both use the same threads and slots as a training, so the consumer's rate is that of the stage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.data.images.decode import Skipped
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.skipped_images import ImageCounts
from cubemesh.data.images.timed_reader import InMemoryReader
from cubemesh.data.source import Epoch, Indices


class ReadOnly:
    """A `Source` with empty batches: images are read and discarded."""

    def __init__(self, images: ImageSource) -> None:
        self.name = images.name
        self.samples = images.samples
        self.classes = images.classes
        self._images = images

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        return self._images.empty(samples)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`. Unreadable images are skipped, as in training."""
        for number in indices.tolist():
            try:
                self._images.encoded.read(number)
            except Skipped as reason:
                self._images.ledger.set_aside(number, str(reason))
        return into or self.empty(len(indices))

    def tally(self, tried: NDArray[np.bool_]) -> ImageCounts:
        """See `ImageSource.tally`."""
        return self._images.tally(tried)

    def mean_bytes(self) -> float:
        """See `ImageSource.mean_bytes`."""
        return self._images.mean_bytes()

    def in_page_cache(self) -> float | None:
        """See `ImageSource.in_page_cache`."""
        return self._images.in_page_cache()

    def epoch(self, number: int, seed: int) -> Epoch:
        """See `HasEpochs`: in the order of a training."""
        return Epoch(source=self, order=self._images.epoch(number, seed).order)


def decode_only(images: ImageSource) -> ImageSource:
    """`images` read into memory, as many as `InMemoryReader` holds, so that only decoding is
    measured."""
    in_memory = InMemoryReader(images.encoded)
    return type(images)(in_memory, images.shape, images.split, images.max_pixels)
