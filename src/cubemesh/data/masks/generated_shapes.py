"""Generated shapes: images of discs, rectangles and triangles, and their masks, for segmentation
without a data set.

Each image has one to four shapes in colours of their own on another, with noise; later ones cover
earlier ones. Of a network with four classes or more the background is class 0 and the three kinds
of shapes are 1 to 3; of one with fewer each shape is class 1. A sample follows from its number and
the seed alone. It is drawn when first read, in eight bits a value, and stays in memory as far as
`CACHE_BYTES` reaches.
"""

from __future__ import annotations

import numpy as np

from cubemesh.batches import Batch, Pixels
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.source import CACHE_BYTES, Indices, Shape, Split
from cubemesh.errors import UsageError

NAME = "generated-shapes"
SAMPLES = {"train": 512, "validation": 64}
KINDS = ("disc", "rectangle", "triangle")
MOST_SHAPES = 4
WHITE = 255
NOISE = 0.1
"""Half the range of the noise of a pixel; colours are 0 to 1."""


class GeneratedShapes:
    """A `Source` of generated images and masks."""

    def __init__(self, split: Split, shape: Shape, classes: int, seed: int) -> None:
        """UsageError for a network of one class."""
        if classes < 2:
            raise UsageError(f"data={NAME} has a background and shapes. Set classes=2 or more.")
        self.name = NAME
        self.samples = SAMPLES[split]
        self.by_kind = classes > len(KINDS)
        self.classes = 1 + len(KINDS) if self.by_kind else 2
        self.shape = shape
        self._seed = (seed, SAMPLES[split])
        self._drawn: dict[int, tuple[Pixels, Pixels]] = {}
        self._most = CACHE_BYTES // ((shape[0] + 1) * shape[1] * shape[2])

    def empty(self, samples: int) -> Batch:
        """See `Source.empty`: a label for each pixel."""
        _, height, width = self.shape
        images = np.empty((samples, *self.shape), np.float32)
        return Batch(images=images, labels=np.empty((samples, height * width), np.int64))

    def batch(self, indices: Indices, into: Batch | None = None) -> Batch:
        """See `Source.batch`."""
        check_indices(indices, self.samples)
        into = into or self.empty(len(indices))
        for row, number in enumerate(indices.tolist()):
            image, mask = self._sample(number)
            np.divide(image, WHITE, out=into.images[row], dtype=np.float32)
            into.labels[row] = mask.ravel()
        return into

    def _sample(self, number: int) -> tuple[Pixels, Pixels]:
        """Sample `number` and its mask, from memory if it is there."""
        found = self._drawn.get(number)
        if found is None:
            found = self._draw(number)
            if len(self._drawn) < self._most:
                self._drawn[number] = found
        return found

    def _draw(self, number: int) -> tuple[Pixels, Pixels]:
        channels, height, width = self.shape
        generator = np.random.default_rng((*self._seed, number))
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        mask = np.zeros((height, width), np.uint8)
        image = np.empty(self.shape, np.float32)
        image[:] = generator.random(channels, np.float32)[:, None, None]
        for _ in range(generator.integers(1, MOST_SHAPES + 1)):
            kind = int(generator.integers(len(KINDS)))
            at = generator.random(2) * (height, width)
            radius = (0.08 + 0.22 * generator.random()) * min(height, width)
            down, across = y - at[0], x - at[1]
            inside = (
                down**2 + across**2 < radius**2,
                (abs(down) < radius) & (abs(across) < 0.7 * radius),
                (down < radius) & (down > -radius) & (abs(across) < (down + radius) / 2),
            )[kind]
            image[:, inside] = generator.random(channels, np.float32)[:, None]
            mask[inside] = 1 + kind if self.by_kind else 1
        image += (generator.random(image.shape, np.float32) * 2 - 1) * NOISE
        return (image.clip(0, 1) * WHITE).round().astype(np.uint8), mask
