"""Confidence intervals of repeated measurements, by bootstrap or Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cubemesh.statistics.typical import Values, array

CONFIDENCE = 0.95
"""Of every interval."""
FEWEST_FOR_INTERVAL = 6
"""Fewer values than this cannot bound their median at 95 %: all n lie on one side of it with
probability 2 · 0.5ⁿ, which falls below 5 % at n = 6."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval, in the unit of its figure."""

    low: float
    high: float


def bootstrap_interval(
    values: Values, of: Literal["median", "mean"] = "median", resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap: the statistic of `resamples` samples drawn with replacement, and the
    range of the middle 95 % of them (Efron & Tibshirani, An Introduction to the Bootstrap, 1993,
    chapter 13).

    The interval of a mean is expanded for small samples as by `nested_throughput_interval`; a
    median needs no expansion. A single value gives an interval of no width: see
    `FEWEST_FOR_INTERVAL`.
    """
    x = array(values)
    drawn = x[np.random.default_rng(seed).integers(0, x.size, (resamples, x.size))]
    if of == "mean":
        return draws_interval(drawn.mean(axis=1), x.size)
    return _middle(_row_medians(drawn), CONFIDENCE)


def throughput(samples: Values, seconds: Values) -> float:
    """Samples per second of all windows together: sum(samples) / sum(seconds)."""
    return float(array(samples).sum() / array(seconds).sum())


def throughput_interval(
    samples: Values, seconds: Values, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The interval of `throughput`: `nested_throughput_interval` of one run."""
    windows = list(zip(array(samples), array(seconds), strict=True))
    return nested_throughput_interval([windows], resamples, seed)


def nested_throughput_interval(
    runs: Sequence[Sequence[tuple[float, float]]], resamples: int = 2000, seed: int = 0
) -> Interval:
    """The interval of the throughput of several runs together, each a sequence of windows (samples,
    seconds): runs are drawn first, then windows inside each drawn run (Davison & Hinkley, Bootstrap
    Methods and their Application, 1997, section 3.8). A window's samples and seconds stay together,
    and every resample is a ratio of sums.

    So runs that differ more than their windows do widen the interval. Two or three runs cannot
    bound what a next run would give: the interval then covers some 60 or 75 % of the time, not 95.

    A percentile interval of few windows is too narrow, so it is computed at the wider level
    2 · Φ(√(n/(n-1)) · t) that a t interval of n values would have (Hesterberg, What Teachers
    Should Know About the Bootstrap, The American Statistician 69, 2015, section 3.3).
    """
    n = len(runs) if len(runs) > 1 else len(_runs(runs)[0])
    return draws_interval(throughput_draws(runs, resamples, seed), n)


def throughput_draws(
    runs: Sequence[Sequence[tuple[float, float]]], resamples: int = 2000, seed: int = 0
) -> NDArray[np.float64]:
    """The throughput of several runs in each of `resamples` resamples, drawn as by
    `nested_throughput_interval`: shape (resamples,). ValueError where a run has no window."""
    arrays = _runs(runs)
    rng = np.random.default_rng(seed)
    if len(arrays) == 1:
        counts, spans = np.ascontiguousarray(arrays[0].T)
        every = rng.integers(0, counts.size, (resamples, counts.size))
        return np.asarray(counts[every].sum(axis=1) / spans[every].sum(axis=1))
    chosen = rng.integers(0, len(arrays), (len(arrays), resamples))
    samples, seconds = np.zeros((2, len(arrays), resamples))
    for index, windows in enumerate(arrays):
        slots = np.nonzero(chosen == index)
        drawn = windows[rng.integers(0, len(windows), (len(slots[0]), len(windows)))].sum(axis=1)
        samples[slots], seconds[slots] = drawn[:, 0], drawn[:, 1]
    return np.asarray(samples.sum(axis=0) / seconds.sum(axis=0))


def draws_interval(draws: Values, n: int) -> Interval:
    """The middle 95 % of resampled estimates, expanded as by `nested_throughput_interval` for the
    `n` values that were drawn from."""
    return _middle(array(draws), _expanded(n))


def _runs(runs: Sequence[Sequence[tuple[float, float]]]) -> list[NDArray[np.float64]]:
    arrays = [np.array(run, dtype=np.float64).reshape(-1, 2) for run in runs]
    if not arrays or any(len(a) == 0 for a in arrays):
        raise ValueError("a run without windows has no throughput")
    return arrays


def student_t(confidence: float, freedom: float) -> float:
    """The t that a Student-distributed value of `freedom` (1 or more, whole or not) degrees of
    freedom stays within, on both sides, `confidence` of the time.

    With t = √f · tan φ the density becomes cosᶠ⁻¹ φ on (-π/2, π/2) (Abramowitz & Stegun, 26.7.3),
    which is summed by Simpson's rule and inverted: good to 0.01 % up to 1,000 degrees of freedom,
    above which the normal distribution is as near.
    """
    if freedom < 1:
        raise ValueError(f"freedom={freedom} is below 1")
    if freedom > 1000:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    angles = np.linspace(0, math.pi / 2, 4001)
    heights = np.cos((angles[1:] + angles[:-1]) / 2) ** (freedom - 1) * 4
    ends = np.maximum(np.cos(angles), 0.0) ** (freedom - 1)
    below = np.concatenate(([0.0], np.cumsum(heights + ends[1:] + ends[:-1])))
    return math.sqrt(freedom) * math.tan(np.interp(confidence, below / below[-1], angles))


def t_interval(values: Values, *, least_variance: float = 0.0) -> Interval:
    """Student's interval of the mean of values that are drawn independently from a distribution
    near the normal, whose variance is known to be `least_variance` or more. ValueError for
    fewer than two."""
    x = array(values)
    if x.size < 2:
        raise ValueError("one value has no spread, and so no interval")
    variance = max(float(x.var(ddof=1)), least_variance)
    half = student_t(CONFIDENCE, x.size - 1) * math.sqrt(variance / x.size)
    return Interval(low=float(x.mean()) - half, high=float(x.mean()) + half)


def _row_medians(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    half = rows.shape[1] // 2
    rows = np.sort(rows, axis=1)
    if rows.shape[1] % 2:
        return rows[:, half]
    middle: NDArray[np.float64] = (rows[:, half - 1] + rows[:, half]) / 2
    return middle


def _middle(estimates: NDArray[np.float64], confidence: float) -> Interval:
    tail = 50 * (1 - confidence)
    low, high = np.percentile(estimates, (tail, 100 - tail))
    return Interval(low=float(low), high=float(high))


def _expanded(n: int) -> float:
    """The confidence at which a percentile interval of n values is as wide as one of t."""
    if n < 2:
        return CONFIDENCE
    t = student_t(CONFIDENCE, n - 1)
    return 2 * NormalDist().cdf(t * math.sqrt(n / (n - 1))) - 1
