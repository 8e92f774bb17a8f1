"""Generated images with labels: drawn when first read, and in memory as far as that is allowed.

A sample follows from its number, the split and the seed alone. It is in eight bits a value, as a
file would have it; `CACHE_BYTES` limits what stays in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch, Pixels
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.source import CACHE_BYTES, Indices, Shape, Split

SAMPLES = {"train": 512, "validation": 64}
WHITE = 255
NOISE = 0.1
"""Half the range of the noise of a pixel; colours are 0 to 1."""

Image = NDArray[np.float32]


class GeneratedImages(ABC):
    """A `Source` of images that a subclass draws."""

    name: str
    classes: int

    def __init__(
        self, split: Split, shape: Shape, label_shape: tuple[int, ...], label: Any, seed: int
    ) -> None:
        """Labels have `label_shape`, and the type `label` in memory."""
        self.samples = SAMPLES[split]
        self.shape = shape
        self._label_shape = label_shape
        self._seed = (seed, SAMPLES[split])
        self._drawn: dict[int, tuple[Pixels, NDArray[Any]]] = {}
        label_bytes = int(np.prod(label_shape)) * np.dtype(label).itemsize
        self._most = CACHE_BYTES // (shape[0] * shape[1] * shape[2] + label_bytes)

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> tuple[Image, NDArray[Any]]:
        """An image of values 0 to 1, without noise, and its labels."""

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`."""
        images = np.empty((samples, *self.shape), np.float32)
        return Batch(images=images, labels=np.empty((samples, *self._label_shape), np.int64))

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        for row, number in enumerate(indices.tolist()):
            image, labels = self._sample(number)
            np.divide(image, WHITE, out=into.images[row], dtype=np.float32)
            into.labels[row] = labels
        return into

    def _sample(self, number: int) -> tuple[Pixels, NDArray[Any]]:
        """Sample `number` and its labels, from memory if it is there."""
        found = self._drawn.get(number)
        if found is None:
            generator = np.random.default_rng((*self._seed, number))
            image, labels = self.draw(generator)
            image += (generator.random(image.shape, np.float32) * 2 - 1) * NOISE
            found = (image.clip(0, 1) * WHITE).round().astype(np.uint8), labels
            if len(self._drawn) < self._most:
                self._drawn[number] = found
        return found
