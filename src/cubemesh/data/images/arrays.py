"""Image sources held in memory: float images ready for the network, or raw bytes scaled on the way.

`FloatImages` holds float32 images in the network's shape, contiguous in memory, so a batch is one
gather. `RawImages` holds bytes in the data set's own shape, in memory or in mapped files, and
converts, resizes and repeats channels for each batch. `prepared` chooses: float if the whole set
fits `CACHE_BYTES`, raw otherwise. Both give the same values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.data.images.resize import resize
from cubemesh.data.source import CACHE_BYTES, Indices, Shape, Source, empty_batch, image_bytes
from cubemesh.errors import UsageError

_CHUNK = 1024


class FloatImages:
    """Images held in the network's shape.

    `images` is (samples, channels, height, width) in float32, C-contiguous; `labels` (samples,).
    """

    def __init__(
        self, name: str, images: NDArray[np.float32], labels: NDArray[np.int64], classes: int
    ) -> None:
        self.name = name
        self.samples = len(labels)
        self.classes = classes
        self.shape: Shape = (images.shape[1], images.shape[2], images.shape[3])
        self._images = images
        self._labels = labels

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        return empty_batch(samples, self.shape)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        # The indices are known to be good; any other mode makes NumPy go through a second buffer.
        np.take(self._images, indices, axis=0, out=into.images, mode="clip")
        np.take(self._labels, indices, out=into.labels, mode="clip")
        return into


class RawImages:
    """Images held as bytes, scaled on access.

    `parts` are arrays (n, …) of uint8, all of the same length n, whose rows hold one image of
    `raw_shape` each; `white` is the value that becomes 1.0.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[NDArray[np.uint8]],
        labels: NDArray[np.int64],
        *,
        raw_shape: Shape,
        white: int,
        classes: int,
        shape: Shape,
    ) -> None:
        if shape[0] != raw_shape[0] and raw_shape[0] != 1:
            raise UsageError(
                f"{name} has images of {raw_shape[0]} channels and the network takes {shape[0]}. "
                f"Choose a network for {raw_shape[0]} channels, or data='synthetic', which has any."
            )
        self.name = name
        self.samples = len(labels)
        self.classes = classes
        self.shape = shape
        self._parts = parts
        self._labels = labels
        self._raw_shape = raw_shape
        self._white = white

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        return empty_batch(samples, self.shape)

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        np.take(self._labels, indices, out=into.labels, mode="clip")
        raw = self._gather(indices).reshape(len(indices), *self._raw_shape)
        # Repeating a grey channel needs no copy: assignment broadcasts one channel to all.
        if raw.shape[2:] == self.shape[1:]:
            np.divide(raw, self._white, out=into.images, dtype=np.float32)
        else:
            pixels = np.divide(raw, self._white, dtype=np.float32)
            into.images[...] = resize(pixels, self.shape[1], self.shape[2])
        return into

    def _gather(self, indices: Indices) -> NDArray[np.uint8]:
        first = self._parts[0]
        if len(self._parts) == 1:
            return first[indices]
        gathered = np.empty((len(indices), *first.shape[1:]), np.uint8)
        part, row = np.divmod(indices, len(first))
        for number in np.unique(part):
            here = part == number
            gathered[here] = self._parts[number][row[here]]
        return gathered


def prepared(raw: RawImages) -> Source:
    """`raw`, or its images converted now if they fit `CACHE_BYTES`."""
    if raw.samples * image_bytes(raw.shape) > CACHE_BYTES:
        return raw
    whole = empty_batch(raw.samples, raw.shape)
    for start in range(0, raw.samples, _CHUNK):  # limits temporary memory
        numbers = np.arange(start, min(start + _CHUNK, raw.samples))
        here = slice(start, start + len(numbers))
        raw.batch(numbers, Batch(images=whole.images[here], labels=whole.labels[here]))
    return FloatImages(raw.name, whole.images, whole.labels, raw.classes)


def check_indices(indices: Indices, samples: int) -> None:
    """IndexError where one of `indices` is not a number from 0 to `samples` - 1."""
    if len(indices) and not 0 <= indices.min() <= indices.max() < samples:
        raise IndexError(f"samples {indices.min()} to {indices.max()} of a source with {samples}")
