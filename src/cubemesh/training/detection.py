"""Evaluation of a detector: its loss, its mean average precision, and why that is 0.

Ranks that share the images score whole batches in turn; the scored images of all of them, in the
order of one rank, give the bits of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.detection.average_precision import (
    DetectionScores,
    ScoredImage,
    intervals,
    score_image,
    total,
)
from cubemesh.detection.labels import Grid, counted, loss
from cubemesh.detection.zero_map import why_zero
from cubemesh.frameworks.contract.group import Group
from cubemesh.measure.log import Log
from cubemesh.schema.record import Curve, Figure
from cubemesh.schema.warning import warn
from cubemesh.statistics import Interval

METHOD = (
    "COCO's definition; interval from 100 resamples of the images",
    "at an intersection over union of 0.5; interval from 100 resamples of the images",
)


class DetectionScorer:
    """Scores the batches of one evaluation."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._batches: list[list[ScoredImage]] = []
        self.images: list[ScoredImage] = []
        """Of all ranks, after `gather`."""

    def add(self, scores: NDArray[Any], labels: NDArray[np.int64]) -> tuple[int, float]:
        """Score the images of a batch; their number and the sum of their losses. An image whose
        labels are padding does not count."""
        usable = counted(labels)
        scores, labels = scores[usable], labels[usable]
        self._batches.append(
            [score_image(self.grid, *one) for one in zip(scores, labels, strict=True)]
        )
        return len(scores), float(loss(scores, labels).sum())

    def gather(self, group: Group) -> DetectionScores:
        """The scores over the images of all ranks; every rank calls this."""
        own = [[vars(image) for image in batch] for batch in self._batches]
        by_rank = group.all_gather_object(own)
        in_turn = (batch for turn in zip_longest(*by_rank) for batch in turn if batch is not None)
        self.images = [_image(row) for batch in in_turn for row in batch]
        return total(self.images, self.grid.classes)

    def intervals(self) -> tuple[Interval, Interval] | None:
        """Those of mAP and mAP50; None for fewer than two images, or without any gathered."""
        return intervals(self.images, self.grid.classes)


def _image(row: Mapping[str, Any]) -> ScoredImage:
    """A scored image from its fields, as JSON has them."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
    }
    return ScoredImage(**fields)


def log_figures(
    found: DetectionScores, images: int, scorer: DetectionScorer | None, log: Log
) -> None:
    """Log mAP and mAP50 of the last evaluation, and accuracy as mAP. Of the `scorer` of that
    evaluation come their intervals, and a warning with the cause where they are 0; a training that
    resumes at its end has none."""
    ends = (None if scorer is None else scorer.intervals()) or (None, None)
    figures = [
        Figure(
            value=value,
            unit="",
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            n=images,
            method=method,
        )
        for value, interval, method in zip(
            (found.mean_ap, found.mean_ap50), ends, METHOD, strict=True
        )
    ]
    for name, figure in zip(("accuracy", "map", "map50"), (figures[0], *figures), strict=True):
        log.figure(name, figure)
    why = None if scorer is None else why_zero(found, scorer.grid)
    if why is not None:
        log.warning(warn("zero-map", f"mAP is 0. {why[0]}", why[1]))


def by_class(found: DetectionScores) -> Curve:
    """The average precision of each class that has labelled boxes."""
    known = {float(n): value for n, value in enumerate(found.class_ap) if value is not None}
    return Curve(name="class_ap", x_name="class", x=tuple(known), y=tuple(known.values()))
