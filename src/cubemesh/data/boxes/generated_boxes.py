"""Generated boxes: images of rectangles, ellipses and triangles with their boxes, for detection
without a data set; and random images with random boxes, for speed only.

Each image has one to four shapes in colours of their own on another, with noise. Their sides are 22
to 50 % of the image's, and no box overlaps an earlier one by more than a tenth of the smaller. Of a
network with three classes or more rectangles are class 0, ellipses 1 and triangles 2; of one with
fewer each shape is class 0.
"""

from __future__ import annotations

import numpy as np

from cubemesh.data.generated_images import GeneratedImages, Image
from cubemesh.data.source import CACHE_BYTES, Shape, Split, image_bytes
from cubemesh.data.text.sequences import SAMPLES, Sequences
from cubemesh.detection.boxes import Floats
from cubemesh.detection.labels import Grid, LabelledBoxes, Labels, encode

NAME = "generated-boxes"
KINDS = ("rectangle", "ellipse", "triangle")
MOST_SHAPES, TRIES = 4, 10
SIDES = (0.22, 0.5)
"""Of a shape, as parts of the image's."""
MOST_COVERED = 0.1
"""Part of a box that an earlier one may cover."""


class GeneratedBoxes(GeneratedImages):
    """A `Source` of generated images and boxes."""

    def __init__(self, split: Split, shape: Shape, grid: Grid, seed: int) -> None:
        super().__init__(split, shape, grid.label_shape, np.int64, seed)
        self.name = NAME
        self.classes = len(KINDS) if grid.classes >= len(KINDS) else 1
        self._grid = grid

    def draw(self, generator: np.random.Generator) -> tuple[Image, Labels]:
        """See `GeneratedImages.draw`."""
        channels, height, width = self.shape
        image = np.empty(self.shape, np.float32)
        image[:] = generator.random(channels, np.float32)[:, None, None]
        y, x = np.mgrid[0:height, 0:width].astype(np.float32) + 0.5
        boxes: list[Floats] = []
        kinds: list[int] = []
        for _ in range(generator.integers(1, MOST_SHAPES + 1)):
            box = _place(generator, boxes, self._grid.size)
            if box is None:
                continue
            kind = int(generator.integers(len(KINDS)))
            (left, top), (right, bottom) = box[:2], box[2:]
            across = (x - (left + right) / 2) / (right - left)  # -0.5 to 0.5 inside
            down = (y - (top + bottom) / 2) / (bottom - top)
            inside = (abs(across) < 0.5) & (abs(down) < 0.5)
            if kind == 1:
                inside &= across**2 + down**2 < 0.25
            elif kind == 2:
                inside &= abs(across) < (down + 0.5) / 2
            image[:, inside] = generator.random(channels, np.float32)[:, None]
            boxes.append(box)
            kinds.append(kind if self.classes > 1 else 0)
        found = LabelledBoxes(
            np.array(boxes), np.array(kinds, np.int64), np.zeros(len(kinds), np.bool_)
        )
        return image, encode(self._grid, found)


def _place(generator: np.random.Generator, others: list[Floats], size: int) -> Floats | None:
    """A box of whole pixels inside the image that hardly overlaps the others; None where several
    tries found none."""
    for _ in range(TRIES):
        box = _drawn(generator, size)
        if all(_covered(box, other) <= MOST_COVERED for other in others):
            return box
    return None


def _drawn(generator: np.random.Generator, size: int) -> Floats:
    """A box of whole pixels inside the image."""
    sides = np.rint(generator.uniform(*SIDES, 2) * size).clip(1)
    at = np.floor(generator.random(2) * (size - sides + 1))
    return np.concatenate([at, at + sides])


def _covered(one: Floats, other: Floats) -> float:
    """Their intersection over the smaller of both."""
    both = (np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])).clip(0).prod()
    smaller = min((box[2:] - box[:2]).prod() for box in (one, other))
    return float(both / smaller)


def open_synthetic(
    split: Split, shape: Shape, grid: Grid, seed: int, samples_needed: int
) -> Sequences:
    """Random pixels with one to four random boxes: 1,024 images (64 for validation), fewer if they
    exceed `CACHE_BYTES`, and at least `samples_needed`."""
    label_bytes = 8 * grid.label_shape[0] * grid.label_shape[1]
    fit = CACHE_BYTES // (image_bytes(shape) + label_bytes)
    samples = max(1, min(SAMPLES[split], fit), samples_needed)
    generator = np.random.default_rng((seed, SAMPLES[split]))
    images = generator.random((samples, *shape), np.float32)
    labels = np.empty((samples, *grid.label_shape), np.int64)
    for number in range(samples):
        count = int(generator.integers(1, MOST_SHAPES + 1))
        boxes = np.array([_drawn(generator, grid.size) for _ in range(count)])
        kinds = generator.integers(grid.classes, size=count)
        labels[number] = encode(grid, LabelledBoxes(boxes, kinds, np.zeros(count, np.bool_)))
    return Sequences("synthetic", (images,), labels, grid.classes)
