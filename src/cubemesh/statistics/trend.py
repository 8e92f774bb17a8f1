"""Drift: whether values rise or fall in the order they were measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cubemesh.statistics.autocorrelation import trend_widening
from cubemesh.statistics.typical import Values, array

_MOST_FOR_PAIRS = 512
_THRESHOLD = 0.02


@dataclass(frozen=True)
class Drift:
    """Whether values rise or fall along their order."""

    relative_change: float
    """From the first value to the last along the trend, as a fraction of the median."""
    p_value: float
    """How often values without a trend would look at least this ordered."""
    significant: bool
    """Whether the trend is both unlikely to be chance and large enough to matter."""


def drift(values: Values, significance: float = 0.05, *, independent: bool = False) -> Drift:
    """Whether `values`, in the order they were measured, rise or fall.

    The test is Mann's and Kendall's: S counts the pairs that rise less those that fall, and
    z = (S - sign S) / √Var S with ties taken off the variance (Kendall, Rank Correlation Methods,
    1975, chapter 4). The size is the Theil-Sen slope, the median over all pairs of rise per step
    (Sen, JASA 63, 1968), times n - 1, over the median. The root of the variance is multiplied by
    `trend_widening` of what remains without the slope, since autocorrelated values wander (Hamed &
    Rao, Journal of Hydrology 204, 1998); `independent` values are known not to. `significant`
    needs p < `significance` and a change of more than 2 % in size: with many windows the smallest
    trend is unlikely to be chance, and does not matter.

    More than 512 values are first joined into medians of neighbours, since pairs grow with n².
    """
    x = _thinned(array(values))
    if x.size < 2:
        return Drift(relative_change=0.0, p_value=1.0, significant=False)
    earlier, later = np.triu_indices(x.size, k=1)
    rises = x[later] - x[earlier]
    slope = float(np.median(rises / (later - earlier)))
    wider = 1.0 if independent else float(trend_widening(x - slope * np.arange(x.size)))
    p_value = _kendall_p(x, float(np.sign(rises).sum()), wider)
    change = slope * (x.size - 1)
    relative = change / abs(float(np.median(x))) if change else 0.0
    significant = p_value < significance and abs(relative) > _THRESHOLD
    return Drift(relative_change=relative, p_value=p_value, significant=significant)


def is_steady(recent: Values) -> bool:
    """Whether the warm-up may end: the `recent` windows no longer drift.

    Fewer than five windows cannot tell, and are not steady. The test is `drift` at a significance
    of 0.2 where 0.05 is usual, and without a widening: warming up a window longer costs little, and
    stopping too early bends every figure that follows.
    """
    return len(recent) >= 5 and not drift(recent, 0.2, independent=True).significant


def _thinned(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most 512 medians of equally many neighbours; a rest too few for a group is left out."""
    neighbours = -(-x.size // _MOST_FOR_PAIRS)
    groups = x[: x.size // neighbours * neighbours].reshape(-1, neighbours)
    medians: NDArray[np.float64] = np.median(groups, axis=1)
    return medians


def _kendall_p(x: NDArray[np.float64], s: float, wider: float) -> float:
    n = x.size
    ties = np.unique(x, return_counts=True)[1]
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if s == 0 or variance == 0:
        return 1.0
    return math.erfc((abs(s) - 1) / (math.sqrt(2 * variance) * wider))
