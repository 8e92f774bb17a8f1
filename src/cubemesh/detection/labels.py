"""Labels of a detector: a grid of cells and the boxes of an image, as integers; and its loss.

    row        column 0    1                        2 to 5
    a cell     class       cells of its object      left, top, right, bottom from the cell's middle
    a box      class       flags                    left, top, right, bottom in the image

Lengths are in 1/256 of the distance between two cells: 1/16 of a pixel where that is 16. A cell or
row without an object has class -1; all of an image that does not count is -1.

An object covers the cells whose middles lie in the central 40 % of its box, or 20 pixels where that
is less, but no more than the box, and at least the cell with the middle of the box; where objects
meet, the smaller box has the cell. 40 % and 20 pixels are those of DetectNet's description in
DIGITS. The loss of an image is

    ½ Σ (coverage - 1 where the cell's object has the class, else 0)²    over cells and classes
    + 2 Σ |corner - its label| / side of the box / cells of its object   over covered cells, corners

and that of a batch the mean over its images. `loss` computes it in NumPy, for evaluations; each
framework has its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import PADDING
from cubemesh.detection.boxes import Floats, areas, non_maximum_suppression
from cubemesh.networks.graph import BOX_COLUMNS, MAX_BOXES, Network

UNITS = 256
"""Of the distance between cells."""
BOX_WEIGHT = 2.0
"""Of the boxes' loss; the coverage's is 1."""
SHRUNK, SHORTEST = 0.4, 20.0
"""Central part of a box's sides that covers cells, and its minimum in pixels."""
IGNORED, OUTSIDE, HIDDEN = 1, 2, 4
"""Flags of a box: a region that does not count; without area inside the image; without a cell."""
ANY_CLASS = -2
"""Class of a region in which objects of no class count."""
THRESHOLD = 0.05
"""Coverage from which a cell predicts a box."""
CANDIDATES, MOST_DETECTIONS = 400, 100
"""Boxes with the highest coverage that are compared, and those of them that are scored."""

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """The cells of a detector for square images of `size` pixels."""

    size: int
    side: int
    classes: int

    @property
    def stride(self) -> float:
        """Pixels between cells."""
        return self.size / self.side

    @property
    def cells(self) -> int:
        """All of them."""
        return self.side * self.side

    @property
    def label_shape(self) -> tuple[int, int]:
        """Of the labels of an image."""
        return self.cells + MAX_BOXES, BOX_COLUMNS

    def middles(self) -> Floats:
        """(cells, 2): x and y of each in pixels."""
        along = (np.arange(self.side) + 0.5) * self.stride
        x, y = np.meshgrid(along, along)
        return np.stack([x.ravel(), y.ravel()], axis=1)


def grid_of(network: Network) -> Grid:
    """The grid of a network that detects objects."""
    cells, columns = network.shapes[network.output]
    return Grid(network.inputs[0].shape[1], math.isqrt(cells), columns - 4)


@dataclass(frozen=True)
class LabelledBoxes:
    """The boxes of an image, in pixels of the network's image."""

    boxes: Floats
    classes: NDArray[np.int64]
    """`ANY_CLASS` where it is of all."""
    ignored: NDArray[np.bool_]


@dataclass(frozen=True)
class Detections:
    """Predicted boxes of an image, by descending coverage."""

    boxes: Floats
    classes: NDArray[np.int64]
    coverage: Floats


def no_labels(grid: Grid) -> Labels:
    """Of an image that does not count."""
    return np.full(grid.label_shape, PADDING, np.int64)


def counted(labels: Labels) -> NDArray[np.bool_]:
    """(batch,): whether each image counts, of their labels (batch, rows, columns)."""
    found: NDArray[np.bool_] = (labels[:, :, 1] != PADDING).any(axis=1)
    return found


def encode(grid: Grid, found: LabelledBoxes) -> Labels:
    """(cells + `MAX_BOXES`, 6): the labels of an image with these boxes, of which there are at most
    `MAX_BOXES`. Boxes are cut at the edges of the image."""
    labels = np.zeros(grid.label_shape, np.int64)
    labels[:, 0] = PADDING
    boxes = found.boxes.clip(0, grid.size)
    empty = areas(boxes) <= 0
    usable = np.flatnonzero(~empty & ~found.ignored)
    owners = np.full((grid.side, grid.side), -1, np.int64)
    # The smallest last, so that it has the cells that it shares with others.
    for box in usable[np.argsort(-areas(boxes[usable]), kind="stable")]:
        columns, rows = (_covered(grid, boxes[box, axis::2]) for axis in (0, 1))
        owners[rows, columns] = box
    cells = np.flatnonzero(owners.ravel() >= 0)
    owner = owners.ravel()[cells]
    count = np.bincount(owner, minlength=len(boxes))
    middles = np.tile(grid.middles()[cells], 2)
    labels[cells, 0], labels[cells, 1] = found.classes[owner], count[owner]
    labels[cells, 2:] = np.rint((boxes[owner] - middles) / grid.stride * UNITS)
    hidden = np.zeros(len(boxes), np.bool_)
    hidden[usable] = count[usable] == 0
    rows_of = slice(grid.cells, grid.cells + len(boxes))
    labels[rows_of, 0] = found.classes
    labels[rows_of, 1] = IGNORED * found.ignored + OUTSIDE * empty + HIDDEN * hidden
    labels[rows_of, 2:] = np.rint(boxes / grid.stride * UNITS)
    return labels


def _covered(grid: Grid, ends: Floats) -> slice:
    """The cells along an axis that a box from one end to the other covers."""
    low, high = ends
    length = min(high - low, max(SHRUNK * (high - low), SHORTEST))
    middle = (low + high) / 2
    first = math.ceil((middle - length / 2) / grid.stride - 0.5)
    last = math.floor((middle + length / 2) / grid.stride - 0.5)
    if last < first:
        first = last = min(int(middle / grid.stride), grid.side - 1)
    return slice(max(first, 0), min(last, grid.side - 1) + 1)


def box_rows(grid: Grid, labels: Labels) -> Labels:
    """The rows of the boxes in the labels of an image."""
    rows: Labels = labels[grid.cells :]
    found: Labels = rows[rows[:, 0] != PADDING]
    return found


def corners(grid: Grid, rows: Labels) -> Floats:
    """(rows, 4): their boxes in pixels."""
    return np.asarray(rows[:, 2:] * (grid.stride / UNITS), np.float64)


def detections(grid: Grid, scores: NDArray[Any], most: int = MOST_DETECTIONS) -> Detections:
    """The boxes that `scores` (cells, classes + 4) of an image predict: of cells and classes with a
    coverage above `THRESHOLD`, after suppression within each class, cut at the edges."""
    values = scores.astype(np.float64)
    coverage = values[:, : grid.classes]
    cells, classes = np.nonzero(coverage > THRESHOLD)
    found = coverage[cells, classes]
    highest = np.argsort(-found, kind="stable")[:CANDIDATES]
    cells, classes, found = cells[highest], classes[highest], found[highest]
    offsets = values[cells, grid.classes :] * grid.stride
    boxes = (np.tile(grid.middles()[cells], 2) + offsets).clip(0, grid.size)
    usable = areas(boxes) > 0  # also not that of a corner that is not a number
    boxes, classes, found = boxes[usable], classes[usable], found[usable]
    remain = [np.empty(0, np.int64)]
    for kind in np.unique(classes):
        own = np.flatnonzero(classes == kind)
        remain.append(own[non_maximum_suppression(boxes[own], found[own])])
    order = np.sort(np.concatenate(remain))[:most]  # by coverage already
    return Detections(boxes=boxes[order], classes=classes[order], coverage=found[order])


def as_detected(grid: Grid, labels: Labels) -> NDArray[np.float32]:
    """(cells, classes + 4): the scores of a network that detects what its labels say."""
    own = labels[: grid.cells]
    scores = np.zeros((grid.cells, grid.classes + 4), np.float32)
    cells = np.flatnonzero(own[:, 0] >= 0)
    scores[cells, own[cells, 0]] = 1
    scores[:, grid.classes :] = own[:, 2:] / UNITS
    return scores


def loss(scores: NDArray[Any], labels: Labels) -> Floats:
    """(batch,): the loss of each image, of `scores` (batch, cells, classes + 4)."""
    cells, classes = scores.shape[1], scores.shape[2] - 4
    values, own = scores.astype(np.float64), labels[:, :cells]
    kinds, offsets = own[..., 0], own[..., 2:] / UNITS
    target = kinds[..., None] == np.arange(classes)
    with np.errstate(over="ignore", invalid="ignore"):
        coverage = ((values[..., :classes] - target) ** 2).sum(axis=(1, 2)) / 2
        sides = (offsets[..., 2:] - offsets[..., :2]).clip(1 / UNITS)
        distances = abs(values[..., classes:] - offsets) / np.tile(sides, 2)
        weights = np.where(kinds >= 0, 1 / own[..., 1].clip(1), 0)
        found: Floats = coverage + BOX_WEIGHT * (distances.sum(axis=2) * weights).sum(axis=1)
    return found
