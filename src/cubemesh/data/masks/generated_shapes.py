"""Generated shapes: images of discs, rectangles and triangles, and their masks, for segmentation
without a data set.

Each image has one to four shapes in colours of their own on another, with noise; later ones cover
earlier ones. Of a network with four classes or more the background is class 0 and the three kinds
of shapes are 1 to 3; of one with fewer each shape is class 1. A sample follows from its number and
the seed alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Batch
from cubemesh.data.images.arrays import check_indices
from cubemesh.data.source import Indices, Shape, Split
from cubemesh.errors import UsageError

NAME = "generated-shapes"
SAMPLES = {"train": 512, "validation": 64}
KINDS = ("disc", "rectangle", "triangle")
MOST_SHAPES = 4
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
            mask = self._draw(number, into.images[row])
            into.labels[row] = mask.ravel()
        return into

    def _draw(self, number: int, image: NDArray[np.float32]) -> NDArray[np.int64]:
        """Draw sample `number` into `image`; its mask."""
        channels, height, width = self.shape
        generator = np.random.default_rng((*self._seed, number))
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        mask = np.zeros((height, width), np.int64)
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
        np.clip(image, 0, 1, out=image)
        return mask
