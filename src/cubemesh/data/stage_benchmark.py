"""How fast is each stage between the disk and the step, on its own?

`ReadOnly` only reads what a minibatch is made from; `decode_only` decodes images whose bytes lie in
memory already. Both go through the same threads and slots as a training does, so that the taker's
rate is the stage's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.data.images.decode import SetAside
from cubemesh.data.images.image_source import Images
from cubemesh.data.images.skipped_images import Tally
from cubemesh.data.images.timed_reader import InMemory
from cubemesh.data.source import Epoch, Indices


class ReadOnly:
    """A `Source` whose minibatches hold nothing: their images are read, and that is all."""

    def __init__(self, images: Images) -> None:
        self.name = images.name
        self.samples = images.samples
        self.classes = images.classes
        self._images = images

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        return self._images.empty(samples)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`. What cannot be read is set aside, as in training."""
        for number in indices.tolist():
            try:
                self._images.encoded.read(number)
            except SetAside as reason:
                self._images.ledger.set_aside(number, str(reason))
        return into or self.empty(len(indices))

    def tally(self, tried: NDArray[np.bool_]) -> Tally:
        """See `Images.tally`."""
        return self._images.tally(tried)

    def mean_bytes(self) -> float:
        """See `Images.mean_bytes`."""
        return self._images.mean_bytes()

    def in_page_cache(self) -> float | None:
        """See `Images.in_page_cache`."""
        return self._images.in_page_cache()

    def epoch(self, number: int, seed: int) -> Epoch:
        """See `HasEpochs`: in the order of a training."""
        return Epoch(source=self, order=self._images.epoch(number, seed).order)


def decode_only(images: Images) -> Images:
    """`images` read into memory, as many as `InMemory` takes: decoding is what is left."""
    in_memory = InMemory(images.encoded)
    return type(images)(in_memory, images.shape, images.split, images.max_pixels)
