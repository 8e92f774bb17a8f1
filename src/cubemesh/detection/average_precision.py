"""Mean average precision of detected boxes, as COCO defines it, and its interval over images.

In each image the boxes of a class are taken by descending score, and each finds the labelled box
that it overlaps most, by an intersection over union of at least a threshold, of those not found
yet. Over all images, by descending score, precision is the part of the boxes so far that found one,
and recall the part of the labelled boxes that are found. The average precision of a class is the
mean of the highest precision at a recall of at least 0, 0.01, … 1; mAP is the mean over the classes
with labelled boxes, and over the thresholds 0.5, 0.55, … 0.95; mAP50 is that at 0.5 (T.-Y. Lin et
al., Microsoft COCO, 2014; its evaluation code). A box that finds only a region that does not count
does not count itself; at most 100 boxes of an image are scored.

DIGITS' mAP is another one: the product of precision and recall at one threshold of the coverage.

The 95 % interval is ± 1.96 standard deviations of the mAP of 100 samples of as many images, drawn
from them with replacement (B. Efron, Annals of Statistics 7, 1979): images are independent, the
boxes in one are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.detection.boxes import Floats, overlaps
from cubemesh.detection.labels import (
    ANY_CLASS,
    HIDDEN,
    IGNORED,
    OUTSIDE,
    Grid,
    Labels,
    box_rows,
    corners,
    detections,
)
from cubemesh.statistics import Interval

Ints = NDArray[np.int64]

IOU_THRESHOLDS = tuple(round(0.5 + 0.05 * n, 2) for n in range(10))
RECALLS = np.linspace(0, 1, 101)
RESAMPLES = 100


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why detections may be wrong, of one image or of all (`zero_map.py`)."""

    outside: int = 0
    """Labelled boxes without area inside the image."""
    hidden: int = 0
    """Those without a cell: smaller ones have it."""
    small: int = 0
    """Those with both sides shorter than the distance between cells."""
    highest: float = 0.0
    """Highest coverage of any cell."""
    best_overlap: float = 0.0
    """Highest intersection over union of a detection and a labelled box of its class."""


@dataclass(frozen=True)
class ScoredImage(Diagnosis):
    """The detections of an image, compared with its labels."""

    classes: tuple[int, ...]
    """Of each detection."""
    coverage: tuple[float, ...]
    found: tuple[int, ...]
    """Bit n: whether it found a labelled box at `IOU_THRESHOLDS[n]`."""
    uncounted: tuple[int, ...]
    """Bit n: whether it does not count at `IOU_THRESHOLDS[n]`."""
    boxes: tuple[int, ...]
    """Labelled boxes that count, by class."""


@dataclass(frozen=True, kw_only=True)
class DetectionScores(Diagnosis):
    """What an evaluation found, over all images."""

    mean_ap: float
    """mAP over all thresholds, 0 to 1."""
    mean_ap50: float
    """mAP at an intersection over union of 0.5."""
    class_ap: tuple[float | None, ...]
    """Over all thresholds; None for a class without labelled boxes."""
    class_ap50: tuple[float | None, ...]
    detections: tuple[int, ...]
    """By class."""
    boxes: tuple[int, ...]
    """Labelled boxes that count, by class."""


def score_image(grid: Grid, scores: NDArray[Any], labels: Labels) -> ScoredImage:
    """Compare what `scores` (cells, classes + 4) detect with the labels of the image."""
    found = detections(grid, scores)
    rows = box_rows(grid, labels)
    outside = (rows[:, 1] & OUTSIDE) > 0
    hidden = int(((rows[:, 1] & HIDDEN) > 0).sum())
    rows = rows[~outside]
    ignored = (rows[:, 1] & IGNORED) > 0
    boxes, kinds = corners(grid, rows), rows[:, 0]
    bits = np.zeros((2, len(found.classes)), np.int64)
    best = 0.0
    for kind in np.unique(found.classes):
        own = np.flatnonzero(found.classes == kind)
        theirs = np.flatnonzero((kinds == kind) | (kinds == ANY_CLASS))
        theirs = theirs[np.argsort(ignored[theirs], kind="stable")]
        shared = overlaps(found.boxes[own], boxes[theirs], ignored[theirs])
        bits[:, own] = match(shared, ignored[theirs])
        best = max(best, shared[:, ~ignored[theirs]].max(initial=0.0))
    sides = (boxes[:, 2:] - boxes[:, :2]).max(axis=1, initial=0.0)
    counted = kinds[~ignored & (kinds >= 0)]
    coverage = scores[:, : grid.classes]
    return ScoredImage(
        classes=tuple(found.classes.tolist()),
        coverage=tuple(found.coverage.tolist()),
        found=tuple(bits[0].tolist()),
        uncounted=tuple(bits[1].tolist()),
        boxes=tuple(np.bincount(counted, minlength=grid.classes)[: grid.classes].tolist()),
        outside=int(outside.sum()),
        hidden=hidden,
        small=int((sides[~ignored] < grid.stride).sum()),
        highest=float(coverage.max(initial=0.0, where=np.isfinite(coverage))),
        best_overlap=float(best),
    )


def match(shared: Floats, ignored: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(2, detections): the bits of the thresholds at which each detection found a labelled box, and
    at which it does not count. `shared` (detections, boxes) is their overlap, detections by
    descending score; `ignored` marks boxes that do not count and may be found repeatedly."""
    levels = np.array(IOU_THRESHOLDS)[:, None]
    powers = 1 << np.arange(len(IOU_THRESHOLDS))
    taken = np.zeros((len(levels), len(ignored)), np.bool_)
    bits = np.zeros((2, len(shared)), np.int64)
    if not len(ignored):
        return bits
    every = np.arange(len(levels))
    for place, row in enumerate(shared):
        able = (row >= levels) & (~taken | ignored)
        # A box that counts comes before any that does not; of equal overlaps the last is taken.
        value = np.where(able, row + 2 * ~ignored, -1)
        chosen = len(ignored) - 1 - value[:, ::-1].argmax(axis=1)
        any_ = able[every, chosen]
        taken[every[any_], chosen[any_]] = True
        bits[0, place] = powers[any_ & ~ignored[chosen]].sum()
        bits[1, place] = powers[any_ & ignored[chosen]].sum()
    return bits


class _Pool:
    """The detections of a class over all images, by descending score."""

    def __init__(self, images: Ints, found: Ints, uncounted: Ints, boxes: Ints) -> None:
        """The number of the image and the bits of each detection, and the labelled boxes of each
        image."""
        self.images, self.boxes = images, boxes
        shifts = np.arange(len(IOU_THRESHOLDS))[:, None]
        self.right = (found >> shifts) & 1
        self.wrong = 1 - self.right - ((uncounted >> shifts) & 1)

    def precision(self, weights: Ints) -> Floats | None:
        """The average precision at each threshold, with `weights` of the images; None without
        labelled boxes."""
        labelled = int(self.boxes @ weights)
        if not labelled:
            return None
        own = weights[self.images]
        right, wrong = (np.cumsum(part * own, axis=1) for part in (self.right, self.wrong))
        recall = right / labelled
        precision = right / np.maximum(right + wrong, 1)
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        best = np.pad(best, ((0, 0), (0, 1)))  # beyond the highest recall it is 0
        places = [np.searchsorted(row, RECALLS, side="left") for row in recall]
        return np.array([row[at].mean() for row, at in zip(best, places, strict=True)])


def _pools(images: Sequence[ScoredImage], classes: int) -> list[_Pool]:
    """One for each class; of equal scores the first image comes first."""

    def joined(rows: Iterator[Sequence[float]], kind: Any = np.int64) -> NDArray[Any]:
        return np.fromiter(chain.from_iterable(rows), kind)

    kinds = joined(image.classes for image in images)
    coverage = joined((image.coverage for image in images), np.float64)
    order = np.lexsort((-coverage, kinds))
    of_image = np.repeat(np.arange(len(images)), [len(image.classes) for image in images])
    found = joined(image.found for image in images)
    uncounted = joined(image.uncounted for image in images)
    boxes = joined(image.boxes for image in images).reshape(len(images), classes)
    ends = np.searchsorted(kinds[order], np.arange(classes + 1))
    return [
        _Pool(of_image[part], found[part], uncounted[part], boxes[:, kind])
        for kind in range(classes)
        for part in [order[ends[kind] : ends[kind + 1]]]
    ]


def total(images: Sequence[ScoredImage], classes: int) -> DetectionScores:
    """The mean average precision over images; 0 where no class has a labelled box."""
    once = np.ones(len(images), np.int64)
    pools = _pools(images, classes)
    found = [pool.precision(once) for pool in pools]
    mean_ap, mean_ap50 = _means(found)
    return DetectionScores(
        mean_ap=mean_ap,
        mean_ap50=mean_ap50,
        class_ap=tuple(None if one is None else float(one.mean()) for one in found),
        class_ap50=tuple(None if one is None else float(one[0]) for one in found),
        detections=tuple(len(pool.images) for pool in pools),
        boxes=tuple(int(pool.boxes.sum()) for pool in pools),
        outside=sum(image.outside for image in images),
        hidden=sum(image.hidden for image in images),
        small=sum(image.small for image in images),
        highest=max((image.highest for image in images), default=0.0),
        best_overlap=max((image.best_overlap for image in images), default=0.0),
    )


def intervals(images: Sequence[ScoredImage], classes: int) -> tuple[Interval, Interval] | None:
    """The 95 % intervals of mAP and mAP50; None for fewer than two images. The same for the same
    images."""
    if len(images) < 2:
        return None
    generator = np.random.default_rng(len(images))
    pools = [pool for pool in _pools(images, classes) if pool.boxes.any()]
    drawn: list[tuple[float, float]] = []
    for _ in range(RESAMPLES):
        picks = generator.integers(len(images), size=len(images))
        weights = np.bincount(picks, minlength=len(images))
        drawn.append(_means([pool.precision(weights) for pool in pools]))
    once = np.ones(len(images), np.int64)
    whole = _means([pool.precision(once) for pool in pools])
    spread = 1.96 * np.std(np.array(drawn), axis=0, ddof=1)
    wide, at_half = (
        Interval(low=max(0.0, value - width), high=min(1.0, value + width))
        for value, width in zip(whole, spread.tolist(), strict=True)
    )
    return wide, at_half


def _means(found: Sequence[Floats | None]) -> tuple[float, float]:
    """mAP and mAP50, of the average precisions of the classes at each threshold."""
    known = [one for one in found if one is not None]
    count = max(1, len(known))
    over_all, at_half = (math.fsum(one.mean() for one in known), math.fsum(one[0] for one in known))
    return over_all / count, at_half / count
