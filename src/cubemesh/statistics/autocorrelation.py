"""Autocorrelation: how much wider an interval must be because neighbouring values resemble.

For a first-order autoregression of lag-one correlation g the variance of the mean of n values is

    σ² / n · [(1 + g)/(1 - g) - 2g (1 - gⁿ) / (n (1 - g)²)]

(Anderson, The Statistical Analysis of Time Series, 1971, section 8.2), and the variance of the
values around their own mean is too small by the same cause. The correlation r of a short series is
itself too small, by about (1 + 4g)/n (Marriott & Pope, Biometrika 41, 1954), and uncertain by
√((1 - g²)/n). So g is r corrected for its bias and raised by a margin for its uncertainty, and the
margin shrinks with n. The constants were chosen by simulation, so that the intervals of 8 to 300
values cover their mean in 93 to 97 % at every g from 0 to 0.8, and those of 6 and 7 in 93 to 98 %
(benchmarks/interval_coverage.py);
that a variance estimated from correlated data needs a larger critical value than Student's, to be
tabulated by simulation, is from Kiefer, Vogelsang & Bunzel, Econometrica 68, 2000.

Functions take the last axis as the order of the values, so that many series are computed at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST = 0.93
"""Highest correlation that is assumed; a random walk has no mean to estimate."""
FEWEST = 6
"""Shorter series have the constants of this length."""


def lag_one(x: Array) -> Array:
    """Correlation of neighbours, Σ eᵢ eᵢ₊₁ / Σ eᵢ² with e the distance from the mean; 0 where all
    values are equal."""
    e = x - x.mean(axis=-1, keepdims=True)
    total = (e * e).sum(axis=-1)
    products = (e[..., 1:] * e[..., :-1]).sum(axis=-1)
    return np.asarray(np.divide(products, total, out=np.zeros_like(total), where=total > 0))


def widening(x: Array) -> Array:
    """By how much the Student interval of the mean of `x` must be wider than that of independent
    values."""
    n = x.shape[-1]
    if n < 2:
        return np.ones(x.shape[:-1])
    m = max(n, FEWEST)
    g = np.clip(26.6 / m**1.5 + (1 + 13.8 / m) * lag_one(x), 0.0, MOST)
    share = ((1 + g) / (1 - g) - 2 * g * (1 - g**n) / (n * (1 - g) ** 2)) / n
    few = 1 + 0.0125 * max(0, 10 - m) ** 2
    return np.asarray(few * (1 - 2.1 / m) * np.sqrt((n - 1) * share / (1 - share)))


def trend_widening(x: Array) -> Array:
    """The same for the trend of `x`, from which the trend was subtracted. The variance of the
    slope of an autoregression is g's quadratic form in the centred positions, over their sum of
    squares."""
    n = x.shape[-1]
    m = max(n, FEWEST)
    g = np.clip(4.8 / m + (1 + 6 / m) * lag_one(x), 0.0, 0.95)
    position = np.arange(n) - (n - 1) / 2
    lags = np.correlate(position, position, "full")[n - 1 :] / (position @ position)
    powers = g[..., np.newaxis] ** np.arange(1, n)
    return np.asarray((1 + 4.8 / m) * np.sqrt(np.maximum(1 + 2 * powers @ lags[1:], 1.0)))


def ranks(x: Array) -> Array:
    """Ranks along the last axis, equal values sharing their mean: one far value does not hide the
    autocorrelation of ranks."""
    return np.asarray((_in_order(x) + _in_order(x[..., ::-1])[..., ::-1]) / 2)


def _in_order(x: Array) -> NDArray[np.intp]:
    return x.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
