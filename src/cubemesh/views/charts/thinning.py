"""Curves thinned to what can be seen: of each column of pixels the lowest and the highest point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class SeenPoints:
    """The points of a curve that are drawn."""

    index: Indices
    """Which ones, in order."""
    begins: tuple[int, ...]
    """Positions in `index` at which a stretch begins: the first, and each one after a gap."""
    thinned: bool
    """Whether some were left out."""


def most_points(columns: int) -> int:
    """How many points of a curve over so many columns are drawn at most."""
    return 2 * columns + 2


def seen_points(x: Floats, y: Floats) -> SeenPoints:
    """The points of a curve to draw, `x` in pixels and rising.

    Up to `most_points` they are all points. Of more, they are the first, the last, and the lowest
    and the highest in each column, which is a pixel wide. A point that is not finite is left out;
    it is a gap where the points on its two sides are not in neighbouring columns.
    """
    finite = np.isfinite(x) & np.isfinite(y)
    known = np.flatnonzero(finite)
    if not known.size:
        return SeenPoints(known, (), False)
    column = np.floor(x[known]).astype(np.int64)
    kept = np.arange(known.size)
    thinned = known.size > most_points(int(column[-1] - column[0]) + 1)
    if thinned:
        kept = _extremes(column, y[known])
    found = known[kept]
    begins = [0]
    if known.size < finite.size:
        missing = np.cumsum(~finite)[found]
        parted = (np.diff(missing) > 0) & (np.diff(column[kept]) > 1)
        begins += (np.flatnonzero(parted) + 1).tolist()
    return SeenPoints(found, tuple(begins), thinned)


def _extremes(column: Indices, y: Floats) -> Indices:
    """Positions of the lowest and the highest of each column, of the first and of the last."""
    new = np.ones(column.size, dtype=bool)
    np.not_equal(column[1:], column[:-1], out=new[1:])
    starts = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    keep = np.zeros(column.size, dtype=bool)
    keep[[0, -1]] = True
    for extreme in (np.minimum, np.maximum):
        at = np.flatnonzero(y == extreme.reduceat(y, starts)[group])
        of = group[at]
        keep[at[0]] = True
        keep[at[1:][of[1:] != of[:-1]]] = True
    return np.flatnonzero(keep)
