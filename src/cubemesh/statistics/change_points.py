"""Change points: where the level of a series of throughputs changed, and by how much.

Binary segmentation (Scott & Knott, Biometrics 30, 1974): of all splits into two parts of at least
`FEWEST` values, the one with the largest sum of squares between the parts, of the logarithms. Its
p-value is the share of permutations of the values whose largest is at least as large, so that no
distribution is assumed; the choice among splits is in it. A change that is significant splits the
series, and each part is searched again. Values are taken as independent: of several runs. A change
that is taken back before the end has less of a sum, and may be missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cubemesh.statistics.intervals import CONFIDENCE, student_t

FEWEST = 3
"""Values on each side of a change."""
PERMUTATIONS = 1999
_SEED = 20260101
_AT_A_TIME = 200


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """A change of level."""

    place: int
    """Index of the first value of the new level."""
    ratio: float
    """New level over the old, of geometric means, with its 95 % interval."""
    low: float
    high: float
    p_value: float


def change_points(values: Sequence[float], significance: float = 0.01) -> tuple[ChangePoint, ...]:
    """The changes of a series of positive values in the order of time."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    places = sorted(_split(logs, 0, significance), key=lambda pair: pair[0])
    edges = [0, *(place for place, _ in places), len(logs)]
    return tuple(
        _change(logs[edges[i] : place], logs[place : edges[i + 2]], place, p)
        for i, (place, p) in enumerate(places)
    )


def _split(logs: NDArray[np.float64], start: int, level: float) -> list[tuple[int, float]]:
    if len(logs) < 2 * FEWEST:
        return []
    between = _between(logs[None, :])[0]
    best = int(between.argmax())
    largest = float(between[best])
    if largest <= 1e-18:
        return []
    random = np.random.default_rng(_SEED)
    as_large, done = 0, 0
    while done < PERMUTATIONS:
        count = min(_AT_A_TIME, PERMUTATIONS - done)
        drawn = random.permuted(np.tile(logs, (count, 1)), axis=1)
        as_large += int((_between(drawn).max(axis=1) >= largest * (1 - 1e-12)).sum())
        done += count
        if as_large > level * (PERMUTATIONS + 1):  # it cannot become significant any more
            return []
    p = (1 + as_large) / (1 + PERMUTATIONS)
    if p > level:
        return []
    place = best + FEWEST
    return [
        *_split(logs[:place], start, level),
        (start + place, p),
        *_split(logs[place:], start + place, level),
    ]


def _between(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of squares between both parts, for each split of each series."""
    n = series.shape[1]
    centred = series - series.mean(axis=1, keepdims=True)
    sizes = np.arange(FEWEST, n - FEWEST + 1)
    sums = centred.cumsum(axis=1)[:, FEWEST - 1 : n - FEWEST]
    return np.asarray(sums**2 * n / (sizes * (n - sizes)))


def _change(
    before: NDArray[np.float64], after: NDArray[np.float64], place: int, p: float
) -> ChangePoint:
    freedom = len(before) + len(after) - 2
    squares = ((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()
    error = math.sqrt(float(squares) / freedom * (1 / len(before) + 1 / len(after)))
    difference = float(after.mean() - before.mean())
    half = student_t(CONFIDENCE, freedom) * error
    return ChangePoint(
        place=place,
        ratio=math.exp(difference),
        low=math.exp(difference - half),
        high=math.exp(difference + half),
        p_value=p,
    )
