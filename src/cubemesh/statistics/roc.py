"""Area under the ROC curve (AUC): the probability that a positive sample scores higher than a
negative one, ties counting half (Hanley and McNeil 1982).

From ranks (Mann and Whitney 1947), with the variance of DeLong, DeLong and Clarke-Pearson (1988) as
Sun and Xu (2014) compute it: each positive sample wins against a fraction of the negative ones, and
the other way round; the variance is that of these fractions, each by its number of samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from cubemesh.statistics.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class RocArea:
    """An area and its standard error."""

    area: float
    error: float

    def interval(self) -> Interval | None:
        """The 95 % interval, of the logit of the area, so that it stays within 0 and 1; None of an
        area of 0 or 1, or without an error."""
        if not 0 < self.area < 1 or not self.error:
            return None
        z = NormalDist().inv_cdf(0.975)
        middle = math.log(self.area / (1 - self.area))
        half = z * self.error / (self.area * (1 - self.area))
        low, high = (1 / (1 + math.exp(-end)) for end in (middle - half, middle + half))
        return Interval(low=low, high=high)


def roc_area(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> RocArea | None:
    """The area of `scores` (samples,), of which those marked are of the positive class; None where
    one class is missing or a score is not a number. The same bits for samples in any order."""
    above, below = np.sort(scores[positive]), np.sort(scores[~positive])
    if not above.size or not below.size or np.isnan(scores).any():
        return None
    ranks = _mid_ranks(np.concatenate([above, below]))
    wins = (ranks[: above.size] - _mid_ranks(above)) / below.size
    losses = (ranks[above.size :] - _mid_ranks(below)) / above.size
    variance = sum(float(x.var(ddof=1)) / x.size for x in (wins, losses) if x.size > 1)
    return RocArea(area=float(wins.mean()), error=math.sqrt(variance))


def _mid_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, equal values sharing their mean."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: NDArray[np.float64] = (last - (counts - 1) / 2)[which]
    return found
