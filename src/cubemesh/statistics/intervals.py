"""Confidence intervals of repeated measurements that may resemble their neighbours.

Student's interval, widened for the autocorrelation of the values (autocorrelation.py), for a mean
and for a throughput; for a median the order statistics of independent values, moved away from it
by the same factor. Several runs: the interval over runs, or over windows if that is wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from cubemesh.statistics.autocorrelation import Array, ranks, widening
from cubemesh.statistics.process_spread import Spread, pooled, spread_of
from cubemesh.statistics.typical import Values, array

CONFIDENCE = 0.95
"""Of every interval, unless the number of windows depended on it."""
FEWEST_FOR_INTERVAL = 6
"""Fewer values than this cannot bound their median at 95 %: all n lie on one side of it with
probability 2 · 0.5ⁿ, which falls below 5 % at n = 6."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval, in the unit of its figure."""

    low: float
    high: float


def mean_half_width(
    x: Array, confidence: float = CONFIDENCE, *, independent: bool = False
) -> Array:
    """Half the width of the interval of the mean of each series along the last axis; 0 for a
    single value. It is Student's for values that are known to be `independent`."""
    n = x.shape[-1]
    if n < 2:
        return np.zeros(x.shape[:-1])
    t = student_t(confidence, n - 1) * (1.0 if independent else widening(x))
    return np.asarray(t * x.std(axis=-1, ddof=1) / math.sqrt(n))


def median_ends(x: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Both ends of the interval of the median of each series along the last axis.

    Of independent values the ends are the quantiles ½ ± t / (2√n), by the binomial distribution of
    the number below the median (David & Nagaraja, Order Statistics, 2003, section 7.1). The
    distance of each to the median is multiplied by the widening of the ranks.
    """
    n = x.shape[-1]
    if n < 2:
        return x[..., 0], x[..., 0]
    away = min(0.5, 0.95 * student_t(confidence, n - 1) / (2 * math.sqrt(n)))
    low, middle, high = np.quantile(x, (0.5 - away, 0.5, 0.5 + away), axis=-1)
    wider = np.maximum(widening(ranks(x)), 1.0)
    return middle - wider * (middle - low), middle + wider * (high - middle)


def mean_interval(values: Values, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the mean of values in the order of their measurement."""
    x = array(values)
    half = float(mean_half_width(x, confidence))
    return Interval(low=float(x.mean()) - half, high=float(x.mean()) + half)


def median_interval(values: Values, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the median of values in the order of their measurement."""
    low, high = median_ends(array(values), confidence)
    return Interval(low=float(low), high=float(high))


def percentile_interval(
    values: Values, percent: float, confidence: float = CONFIDENCE
) -> Interval | None:
    """The interval of a percentile of values in the order of their measurement; None where they are
    too few to bound it.

    The share of values above the percentile has the variance of the means of batches of neighbours
    (batches of n^0.6 values), at least that of independent values (Asmussen & Glynn, Stochastic
    Simulation, 2007, chapter IV). A lag-one correlation would be too small here: being above a
    percentile is no autoregression.
    """
    x = array(values)
    n, share = len(x), percent / 100
    size = max(1, round(n**0.6))
    batches = n // size
    if batches < 2:
        return None
    above = (x > np.quantile(x, share)).astype(np.float64)
    means = above[n - batches * size :].reshape(batches, size).mean(axis=1)
    variance = max(float(means.var(ddof=1)) / batches, share * (1 - share) / n)
    away = student_t(confidence, batches - 1) * math.sqrt(variance)
    low, high = share - away, share + away
    if low * n < 1 or (1 - high) * n < 1:
        return None
    return Interval(low=float(np.quantile(x, low)), high=float(np.quantile(x, high)))


def throughput(samples: Values, seconds: Values) -> float:
    """Samples per second of all windows together: sum(samples) / sum(seconds)."""
    return float(array(samples).sum() / array(seconds).sum())


def throughput_half_width(
    samples: Array, seconds: Array, confidence: float = CONFIDENCE, *, independent: bool = False
) -> Array:
    """Half the width of the interval of ln(throughput): that of the mean of what each window took
    longer than its samples at the throughput of all, relative to the mean window."""
    rate = samples.sum(axis=-1, keepdims=True) / seconds.sum(axis=-1, keepdims=True)
    late = (seconds - samples / rate) / seconds.mean(axis=-1, keepdims=True)
    return mean_half_width(late, confidence, independent=independent)


def throughput_interval(
    samples: Values, seconds: Values, confidence: float = CONFIDENCE
) -> Interval:
    """The interval of `throughput`: `nested_throughput_interval` of one run."""
    windows = list(zip(array(samples), array(seconds), strict=True))
    return nested_throughput_interval([windows], confidence)


def nested_throughput_interval(
    runs: Sequence[Sequence[tuple[float, float]]],
    confidence: float = CONFIDENCE,
    prior: Spread | None = None,
) -> Interval:
    """The interval of the throughput of several runs together, each a sequence of windows (samples,
    seconds) in order. ValueError where a run has no window.

    Runs differ by more than their windows do, so the interval is Student's over the runs'
    ln(throughput), with the spread of earlier measurements (`prior`) pooled with their own
    (process_spread.py). Against runs that agree by chance it is at least as wide as their windows
    would imply if they were independent. One run has the interval of its autocorrelated windows,
    or that of the prior where it is wider. Without a prior two runs have a t of 12.7.
    """
    windows = _runs(runs)
    total = np.concatenate(windows).sum(axis=0)
    rate = float(total[0] / total[1])
    half = windows_half_width(windows, confidence, independent=len(windows) > 1)
    logs = [math.log(w[:, 0].sum() / w[:, 1].sum()) for w in windows]
    own = spread_of(logs, f"of these {len(logs)} runs")
    spread = pooled([s for s in (own, prior) if s is not None])
    if spread is not None:
        t = student_t(confidence, spread.freedom)
        half = max(half, t * math.sqrt(spread.variance / len(windows)))
    return Interval(low=rate * math.exp(-half), high=rate * math.exp(half))


def windows_half_width(
    runs: Sequence[Array], confidence: float = CONFIDENCE, *, independent: bool
) -> float:
    """Half the width of the interval of the runs' mean ln(throughput) from their windows alone,
    taken for `independent` or widened for their autocorrelation; each run has the shape (windows,
    2), samples and seconds."""
    halves = [
        float(throughput_half_width(w[:, 0], w[:, 1], confidence, independent=independent))
        for w in runs
    ]
    return math.hypot(*halves) / len(halves)


def _runs(runs: Sequence[Sequence[tuple[float, float]]]) -> list[NDArray[np.float64]]:
    arrays = [np.array(run, dtype=np.float64).reshape(-1, 2) for run in runs]
    if not arrays or any(len(a) == 0 for a in arrays):
        raise ValueError("a run without windows has no throughput")
    return arrays


@lru_cache(maxsize=256)
def _student(freedom: float) -> tuple[Array, Array]:
    """Angles φ from 0 to π/2 and the probability that |t| is at most √f · tan φ.

    With t = √f · tan φ the density becomes cosᶠ⁻¹ φ on (-π/2, π/2) (Abramowitz & Stegun, 26.7.3),
    which is summed by Simpson's rule.
    """
    angles = np.linspace(0, math.pi / 2, 4001)
    heights = np.cos((angles[1:] + angles[:-1]) / 2) ** (freedom - 1) * 4
    ends = np.maximum(np.cos(angles), 0.0) ** (freedom - 1)
    below = np.concatenate(([0.0], np.cumsum(heights + ends[1:] + ends[:-1])))
    return angles, below / below[-1]


def student_t(confidence: float, freedom: float) -> float:
    """The t that a Student-distributed value of `freedom` (1 or more, whole or not) degrees of
    freedom stays within, on both sides, `confidence` of the time: good to 0.01 % up to 1,000
    degrees of freedom, above which the normal distribution is as near."""
    if freedom < 1:
        raise ValueError(f"freedom={freedom} is below 1")
    if freedom > 1000:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    angles, below = _student(freedom)
    return math.sqrt(freedom) * math.tan(np.interp(confidence, below, angles))


def student_p(t: float, freedom: float) -> float:
    """How often a Student-distributed value is as far from 0 as `t`, on either side."""
    if freedom > 1000:
        return math.erfc(abs(t) / math.sqrt(2))
    angles, below = _student(freedom)
    return 1 - float(np.interp(math.atan(abs(t) / math.sqrt(freedom)), angles, below))


def t_interval(
    values: Values, confidence: float = CONFIDENCE, *, least_variance: float = 0.0
) -> Interval:
    """Student's interval of the mean of values that are drawn independently from a distribution
    near the normal, whose variance is known to be `least_variance` or more. ValueError for
    fewer than two."""
    x = array(values)
    if x.size < 2:
        raise ValueError("one value has no spread, and so no interval")
    variance = max(float(x.var(ddof=1)), least_variance)
    half = student_t(confidence, x.size - 1) * math.sqrt(variance / x.size)
    return Interval(low=float(x.mean()) - half, high=float(x.mean()) + half)
