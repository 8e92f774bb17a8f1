"""Boxes: intersection over union, and suppression of boxes that find the same object.

A box is left, top, right and bottom in pixels, its edges anywhere between them; arrays of boxes are
(boxes, 4).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SAME_OBJECT = 0.5
"""Intersection over union above which the box with the lower score is suppressed."""


def areas(boxes: Floats) -> Floats:
    """(boxes,): square pixels; 0 for one whose edges are in the wrong order."""
    found: Floats = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
    return found


def overlaps(one: Floats, other: Floats, ignored: NDArray[np.bool_] | None = None) -> Floats:
    """(one, other): the intersection over the union of each pair; where `ignored` marks a box of
    `other`, over the area of the first box alone, as COCO judges regions that do not count."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    both: Floats = (high - low).clip(0).prod(axis=2)
    either = areas(one)[:, None] + areas(other)[None] - both
    if ignored is not None:
        either = np.where(ignored[None], areas(one)[:, None], either)
    return np.divide(both, either, out=np.zeros_like(both), where=either > 0)


def non_maximum_suppression(
    boxes: Floats, scores: Floats, most_overlap: float = SAME_OBJECT
) -> NDArray[np.int64]:
    """The boxes that remain, by descending score: each suppresses those after it that overlap it by
    more than `most_overlap`. Of equal scores the first comes first."""
    order = np.argsort(-scores, kind="stable")
    shared = overlaps(boxes[order], boxes[order]) > most_overlap
    remains = np.ones(len(order), np.bool_)
    for place in range(len(order)):
        if remains[place]:
            remains[place + 1 :] &= ~shared[place, place + 1 :]
    return order[remains]
