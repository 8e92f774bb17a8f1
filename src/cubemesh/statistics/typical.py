"""Typical value, spread and outliers of repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = Sequence[float] | NDArray[np.float64]

_OUTLIER_SCORE = 3.5
_MAD_TO_SIGMA = 1.4826
_MEAN_DEVIATION_TO_SIGMA = 1.253314


def array(values: Values) -> NDArray[np.float64]:
    """The values as an array. ValueError unless they are one-dimensional, finite and not none."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"a one-dimensional, non-empty sequence is needed, not shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("every value must be a finite number")
    return x


def mean(values: Values) -> float:
    """The arithmetic mean."""
    return float(array(values).mean())


def median(values: Values) -> float:
    """The middle value, or the mean of the two middle ones."""
    return float(np.median(array(values)))


def mad(values: Values) -> float:
    """Median absolute deviation: median(|x - median(x)|)."""
    x = array(values)
    return float(np.median(np.abs(x - np.median(x))))


def percentile(values: Values, percent: float) -> float:
    """The value that `percent` (0 to 100) of the values do not exceed, interpolated linearly
    between order statistics (definition 7 of Hyndman & Fan, Sample Quantiles in Statistical
    Packages, The American Statistician 50, 1996)."""
    return float(np.percentile(array(values), percent))


def trimmed_mean(values: Values, cut: float = 0.2) -> float:
    """The mean without the `cut` (a fraction below a half) largest and as many smallest values, of
    which there are ⌊cut · n⌋ each (Tukey & McLaughlin, Sankhyā A 25, 1963)."""
    x = np.sort(array(values))
    gone = int(cut * x.size)
    return float(x[gone : x.size - gone].mean())


def outliers(values: Values) -> list[int]:
    """Positions of the values whose modified z-score exceeds 3.5.

    The score is |x - median| / (1.4826 · MAD) (Iglewicz & Hoaglin, How to Detect and Handle
    Outliers, 1993). Where more than half of the values are equal the MAD is 0, and the mean
    absolute deviation times 1.253314 takes its place; where all are equal there is no outlier.
    """
    x = array(values)
    deviations = np.abs(x - np.median(x))
    spread = _MAD_TO_SIGMA * float(np.median(deviations))
    if spread == 0:
        spread = _MEAN_DEVIATION_TO_SIGMA * float(deviations.mean())
    if spread == 0:
        return []
    return [int(i) for i in np.nonzero(deviations / spread > _OUTLIER_SCORE)[0]]
