"""Input stage benchmarks: reading only, or decoding only.

`ReadOnly` only reads the files of a batch; `decode_only` decodes images that are already in memory.
Both use the same threads and slots as a training, so the consumer's rate is that of the stage.
"""

from __future__ import annotations

from cubemesh.batches import Batch
from cubemesh.data.images.decode import Augmentation, Skipped
from cubemesh.data.images.image_source import ImageSource
from cubemesh.data.images.wrapped_readers import InMemoryReader
from cubemesh.data.source import Indices


class ReadOnly(ImageSource):
    """The images of a source, read in the order of a training and discarded."""

    def __init__(self, images: ImageSource) -> None:
        super().__init__(images.encoded, images.shape, images.split, images.max_pixels)

    def drawn(self, indices: Indices, into: Batch | None, draw: Augmentation | None) -> Batch:
        """Arrays with any values. Unreadable images are skipped, as in training."""
        for number in indices.tolist():
            try:
                self.encoded.read(number)
            except Skipped as reason:
                self.ledger.skip(number, str(reason))
        return into or self.empty(len(indices))


def decode_only(images: ImageSource) -> ImageSource:
    """`images` read into memory, as many as `InMemoryReader` holds, so that only decoding is
    measured."""
    in_memory = InMemoryReader(images.encoded)
    return type(images)(in_memory, images.shape, images.split, images.max_pixels)
