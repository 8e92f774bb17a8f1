"""Generated shapes: images of discs, rectangles and triangles, and their masks, for segmentation
without a data set.

Each image has one to four shapes in colours of their own on another, with noise; later ones cover
earlier ones. Of a network with four classes or more the background is class 0 and the three kinds
of shapes are 1 to 3; of one with fewer each shape is class 1.
"""

from __future__ import annotations

import numpy as np

from cubemesh.batches import Pixels
from cubemesh.data.generated_images import GeneratedImages, Image
from cubemesh.data.source import Shape, Split
from cubemesh.errors import UsageError

NAME = "generated-shapes"
KINDS = ("disc", "rectangle", "triangle")
MOST_SHAPES = 4


class GeneratedShapes(GeneratedImages):
    """A `Source` of generated images and masks."""

    def __init__(self, split: Split, shape: Shape, classes: int, seed: int) -> None:
        """UsageError for a network of one class."""
        if classes < 2:
            raise UsageError(f"data={NAME} has a background and shapes. Set classes=2 or more.")
        super().__init__(split, shape, (shape[1] * shape[2],), np.uint8, seed)
        self.name = NAME
        self.by_kind = classes > len(KINDS)
        self.classes = 1 + len(KINDS) if self.by_kind else 2

    def draw(self, generator: np.random.Generator) -> tuple[Image, Pixels]:
        """See `GeneratedImages.draw`: a label for each pixel."""
        channels, height, width = self.shape
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
        return image, mask.ravel()
