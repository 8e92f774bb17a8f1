"""Ranges: which part of an activation's distribution its 8 bits cover, by four methods.

A wide range rounds coarsely, a narrow one clips. Min-max clips nothing; the percentile clips a
fixed share; entropy and MSE search the ends of the range among the bins of the histogram, one end
at a time, for the least cost. No method is best for every network, so each is judged by accuracy
on samples that were not used for calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array
from cubemesh.inference.quantization.calibrate import BINS, Histogram

PERCENT = 99.99
"""Of the method `percentile`: the share of elements below the upper end, and above the lower."""
LEVELS = 256
FEWEST_BINS = 128
"""Of the ranges that a search considers."""
_CANDIDATES = 128
"""Positions of an end that a search tries."""
_ROUNDS = 2
_MOST_PADDING = 8 * BINS
"""Bins between 0 and the elements; further away, nothing is gained by clipping."""
_LEAST_SCALE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Range:
    """What 8 bits cover; it contains 0."""

    low: float
    high: float


@dataclass(frozen=True)
class Uint8Scale:
    """Uniform quantization to unsigned bytes: x ≈ scale · (q − zero_point). 0 is exact."""

    scale: float
    """A float32."""
    zero_point: int

    def quantize(self, x: Array) -> NDArray[np.uint8]:
        """As QuantizeLinear: rounded half to even, saturated."""
        with np.errstate(over="ignore"):  # saturated below
            steps = np.rint(np.asarray(x, np.float32) / np.float32(self.scale)) + self.zero_point
        return np.asarray(np.clip(steps, 0, LEVELS - 1), np.uint8)

    def dequantize(self, q: Array) -> NDArray[np.float32]:
        """As DequantizeLinear."""
        return (q.astype(np.int32) - self.zero_point).astype(np.float32) * np.float32(self.scale)


def uint8_scale(covered: Range) -> Uint8Scale:
    """The quantization that covers a range, to within half a step at either end: the zero point is
    a whole number. A range of nothing but 0 has the scale 1."""
    low, high = min(covered.low, 0.0), max(covered.high, 0.0)
    if low == high:
        return Uint8Scale(scale=1.0, zero_point=0)
    exact = max(high / (LEVELS - 1) - low / (LEVELS - 1), _LEAST_SCALE)
    scale = float(np.float32(exact))
    return Uint8Scale(scale=scale, zero_point=int(np.clip(np.rint(-low / scale), 0, LEVELS - 1)))


def min_max(histogram: Histogram) -> Range:
    """From the least to the greatest element."""
    return Range(min(histogram.low, 0.0), max(histogram.high, 0.0))


def percentile(histogram: Histogram, percent: float = PERCENT) -> Range:
    """The percentiles `percent` and 100 − `percent`, interpolated within bins."""
    below = np.concatenate(([0], np.cumsum(histogram.counts)))
    edges = (histogram.first + np.arange(below.size)) * histogram.width
    # Percentiles within empty bins are undefined: only the ends of bins with elements count.
    bins = np.flatnonzero(histogram.counts)
    shares = np.stack([below[bins], below[bins + 1]], axis=1).ravel() / below[-1]
    places = np.stack([edges[bins], edges[bins + 1]], axis=1).ravel()
    low, high = np.interp((1 - percent / 100, percent / 100), shares, places)
    return Range(
        min(max(float(low), histogram.low), 0.0), max(min(float(high), histogram.high), 0.0)
    )


def entropy(histogram: Histogram) -> Range:
    """The range whose 256 levels represent the distribution with the least loss of information.

    The cost is the Kullback-Leibler divergence of the clipped distribution from the same bins
    averaged over each level (Migacz, 8-bit Inference with TensorRT, 2017), for ranges of 128 bins
    and more. Elements that are exactly 0, as most are after a ReLU, cost nothing at any range, so
    their bin counts as much as the larger of its neighbours.
    """
    return _search(histogram, _divergence)


def mse(histogram: Histogram) -> Range:
    """The range with the least expected squared error of rounding and clipping."""
    return _search(histogram, _squared_error)


METHODS: dict[str, Callable[[Histogram], Range]] = {
    "min-max": min_max,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mse,
}
"""Method → the range of an activation."""


@dataclass(frozen=True, eq=False)
class _Bins:
    """A histogram whose bins include 0: `counts[n]` is that of the bin that begins at
    (first + n) · width."""

    first: int
    counts: NDArray[np.float64]
    width: float

    @property
    def end(self) -> int:
        return self.first + len(self.counts)


_Cost = Callable[[_Bins, int, int], float]
"""Of the range from one bin to the one before another."""


def _search(histogram: Histogram, cost: _Cost) -> Range:
    """The ends with the least cost, each tried at `_CANDIDATES` positions in turn."""
    full = min_max(histogram)
    bins = _around_zero(histogram)
    low, high = bins.first, bins.end
    for _ in range(_ROUNDS):
        highs = [h for h in _positions(bins.end) if h - low >= FEWEST_BINS]
        high = min(highs, key=lambda h: cost(bins, low, h), default=high)
        lows = [n for n in _positions(bins.first) if high - n >= FEWEST_BINS]
        low = min(lows, key=lambda n: cost(bins, n, high), default=low)
    return Range(
        full.low if low == bins.first else low * bins.width,
        full.high if high == bins.end else high * bins.width,
    )


def _around_zero(histogram: Histogram) -> _Bins:
    used = np.flatnonzero(histogram.counts)
    first, end = histogram.first + int(used[0]), histogram.first + int(used[-1]) + 1
    counts = histogram.counts[used[0] : used[-1] + 1].astype(np.float64)
    before, after = max(first, 0), max(-end, 0)
    if max(before, after) > _MOST_PADDING:
        return _Bins(0, np.zeros(0), histogram.width)
    counts = np.pad(counts, (before, after))
    first = min(first, 0)
    if first <= 0 < first + len(counts):
        around = [*counts[max(-first - 1, 0) : -first], *counts[-first + 1 : -first + 2]]
        counts[-first] = min(counts[-first], max(around, default=0.0)) or counts[-first]
    return _Bins(first, counts, histogram.width)


def _positions(end: int) -> list[int]:
    """Whole numbers from `end`, which comes first and wins ties, towards 0."""
    numbers = np.rint(end * np.arange(_CANDIDATES, -1, -1) / _CANDIDATES).astype(int)
    return list(dict.fromkeys(numbers.tolist()))


def _clipped(bins: _Bins, low: int, high: int) -> tuple[NDArray[np.float64], float, float]:
    """The counts within a range, and how many elements are below and above it."""
    inside = bins.counts[low - bins.first : high - bins.first]
    below = float(bins.counts[: low - bins.first].sum())
    return inside, below, float(bins.counts[high - bins.first :].sum())


def _divergence(bins: _Bins, low: int, high: int) -> float:
    inside, below, above = _clipped(bins, low, high)
    total = inside.sum()
    if not total:
        return float("inf")
    level = np.arange(len(inside)) * LEVELS // max(len(inside), LEVELS)
    occupied = inside > 0
    sums = np.bincount(level, inside, LEVELS)
    share = sums / np.maximum(np.bincount(level, occupied, LEVELS), 1)
    q = np.where(occupied, share[level], 0) / total
    clipped = inside.copy()
    clipped[0] += below
    clipped[-1] += above
    everything = total + below + above
    p = clipped / everything
    held = p > 0
    # An empty bin that clipped elements fall into counts as half an element.
    return float(np.sum(p[held] * np.log(p[held] / np.maximum(q[held], 0.5 / everything))))


def _squared_error(bins: _Bins, low: int, high: int) -> float:
    chosen = uint8_scale(Range(low * bins.width, high * bins.width))
    centers = (bins.first + np.arange(len(bins.counts)) + 0.5) * bins.width
    steps = np.clip(
        np.rint(centers / chosen.scale), -chosen.zero_point, LEVELS - 1 - chosen.zero_point
    )
    return float(bins.counts @ (steps * chosen.scale - centers) ** 2)
