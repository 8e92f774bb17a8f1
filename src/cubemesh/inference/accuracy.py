"""Accuracy of a candidate against fp32 on the same held-out samples: keeps, loses, cannot tell.

Both answer the same samples, so the comparison is paired, and only samples that one of them alone
answers correctly tell them apart. With

    a  both right      b  lost: fp32 alone right      c  gained: the candidate alone right

the ratio of right answers is (a + c) / (a + b). Its interval is the score interval of Nam and
Blackwelder (Analysis of the ratio of marginal probabilities in a matched-pair setting, Statistics
in Medicine 21, 2002): the ratios φ that a test with the statistic

    (a + c − φ (a + b)) / √(φ n (p_b + p_c))

does not refuse, where p_b and p_c are the most likely shares under φ. It is the analogue for a
ratio of Tango's interval for a difference, and is right where nothing was lost or gained too.

Without labels there is agreement: how many decisions changed, and the Kullback-Leibler divergence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.statistics import CONFIDENCE, Interval

BOUND = 0.99
"""Ratio of right answers that a candidate keeps, by default; MLPerf's."""
MARGIN = 0.01
"""How far the lower end of the interval may be below the bound."""
MOST_CHANGED = 0.01
"""Share of decisions that may change, where there are no labels."""
_LARGEST_RATIO = 1e9

Verdict = Literal["keeps", "loses", "cannot tell"]
KEEPS: Verdict = "keeps"
LOSES: Verdict = "loses"
CANNOT_TELL: Verdict = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class PairedAccuracy:
    """Right answers of fp32 and of a candidate on the same samples."""

    samples: int
    reference_right: int
    """Of fp32."""
    right: int
    """Of the candidate."""
    lost: int
    """Samples that fp32 alone answers correctly."""
    gained: int
    """Samples that the candidate alone answers correctly."""
    bound: float
    interval: Interval
    """95 % interval of the ratio."""
    verdict: Verdict
    """It keeps the accuracy: the ratio is at least the bound, and the lower end at least bound −
    `MARGIN`. It loses it: the upper end is below the bound. Otherwise these samples cannot tell."""
    samples_needed: int | None
    """About how many samples would tell, if they were like these; None where these tell."""

    @property
    def ratio(self) -> float:
        """Right answers of the candidate over those of fp32."""
        return self.right / self.reference_right

    def __str__(self) -> str:
        found = (
            f"{self.ratio:.2%} of the right answers of fp32, {self.interval.low:.2%} to "
            f"{self.interval.high:.2%}; {self.lost:,} lost and {self.gained:,} gained of "
            f"{self.samples:,}: "
        )
        if self.verdict != CANNOT_TELL:
            return f"{found}{self.verdict} {self.bound:.2%}"
        more = "" if self.samples_needed is None else f"; about {self.samples_needed:,} would"
        return f"{found}these {self.samples:,} samples cannot tell{more}"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Scores of a candidate against those of fp32, without labels."""

    decisions: int
    """Positions with scores: samples, or samples × sequence length."""
    changed: int
    """Decisions that differ."""
    divergence: float
    """Mean Kullback-Leibler divergence of the candidate's probabilities from those of fp32, in
    nats."""
    largest_error: float
    """Of a score, relative to the largest score of fp32."""

    @property
    def agrees(self) -> bool:
        """Whether at most `MOST_CHANGED` of the decisions differ."""
        return self.changed <= MOST_CHANGED * self.decisions and math.isfinite(self.divergence)


def paired_accuracy(reference: Array, candidate: Array, bound: float = BOUND) -> PairedAccuracy:
    """The verdict on `candidate`, given which samples fp32 and it answer correctly: two arrays of
    truth values. UsageError where fp32 answers none correctly."""
    first, second = np.asarray(reference, bool).ravel(), np.asarray(candidate, bool).ravel()
    if first.shape != second.shape:
        raise ValueError(f"{first.size} and {second.size} answers are not pairs")
    both = int(np.sum(first & second))
    return verdict_of(
        both=both,
        lost=int(first.sum()) - both,
        gained=int(second.sum()) - both,
        samples=first.size,
        bound=bound,
    )


def verdict_of(
    *, both: int, lost: int, gained: int, samples: int, bound: float = BOUND
) -> PairedAccuracy:
    """The verdict, given the counts of pairs."""
    if not 0 < bound <= 1:
        raise UsageError(f"An accuracy bound is above 0 and at most 1, not {bound:g}.")
    if both + lost == 0:
        raise UsageError(
            f"fp32 answers 0 of {samples:,} samples correctly, so there is no accuracy to keep. "
            "Train the network first, or check that the labels belong to it."
        )
    interval = ratio_interval(both, lost, gained)
    ratio = (both + gained) / (both + lost)
    verdict = CANNOT_TELL
    if ratio >= bound and interval.low >= bound - MARGIN:
        verdict = KEEPS
    elif interval.high < bound:
        verdict = LOSES
    needed = None
    if verdict == CANNOT_TELL:
        # The statistic grows with the root of the number of samples.
        decisive = bound - MARGIN if ratio >= bound else bound
        statistic = abs(_statistic(both, lost, gained, decisive)) if decisive > 0 else 0.0
        if statistic > 0:
            needed = math.ceil(samples * (_quantile() / statistic) ** 2)
    return PairedAccuracy(
        samples=samples,
        reference_right=both + lost,
        right=both + gained,
        lost=lost,
        gained=gained,
        bound=bound,
        interval=interval,
        verdict=verdict,
        samples_needed=needed,
    )


def ratio_interval(both: int, lost: int, gained: int, confidence: float = CONFIDENCE) -> Interval:
    """The interval of the ratio of right answers; 0 to infinity where there is none."""
    quantile = _quantile(confidence)
    if both + lost == 0:
        return Interval(low=0.0, high=math.inf)
    estimate = (both + gained) / (both + lost)

    def end(inside: float, outside: float) -> float:
        for _ in range(80):
            middle = math.sqrt(inside * outside)
            if abs(_statistic(both, lost, gained, middle)) <= quantile:
                inside = middle
            else:
                outside = middle
        return inside

    start = estimate or 1 / _LARGEST_RATIO
    low = end(start, start / _LARGEST_RATIO) if estimate else 0.0
    return Interval(low=low, high=end(start, start * _LARGEST_RATIO))


def _statistic(both: float, lost: float, gained: float, ratio: float) -> float:
    """How many standard errors the counts are from a true `ratio`; it falls with the ratio."""
    away = both + gained - ratio * (both + lost)
    # The most likely share of gained samples solves a quadratic equation; shares are of all pairs
    # that at least one of the two answers correctly.
    total = both + lost + gained
    a = ratio * (1 + ratio)
    b = (both * (1 - ratio**2) - lost * ratio**2 - gained * (2 * ratio**2 - 1)) / total
    c = gained * ratio * (ratio - 1) / total
    gained_share = (-b + math.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a)
    lost_share = (1 - ratio) * (1 - gained_share) + gained_share
    variance = ratio * total * max(gained_share + lost_share, 0.0)
    if variance <= 0:
        return 0.0 if away == 0 else math.copysign(math.inf, away)
    return away / math.sqrt(variance)


def _quantile(confidence: float = CONFIDENCE) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


def agreement(reference: Array, candidate: Array) -> Agreement:
    """How `candidate` differs from `reference`: scores of the same samples, classes along the last
    axis. A candidate with scores that are not finite has an infinite divergence."""
    if reference.shape != candidate.shape or not reference.size:
        raise ValueError(f"scores of {reference.shape} and {candidate.shape} are not pairs")
    first, second = np.asarray(reference, np.float64), np.asarray(candidate, np.float64)
    finite = bool(np.isfinite(second).all())
    log_p, log_q = log_softmax(first), log_softmax(second)
    divergence = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1).mean() if finite else math.inf
    largest = float(np.abs(first).max())
    error = float(np.abs(first - second).max()) if finite else math.inf
    return Agreement(
        decisions=first[..., 0].size,
        changed=int(np.sum(first.argmax(axis=-1) != second.argmax(axis=-1))),
        divergence=max(float(divergence), 0.0),
        largest_error=error / largest if largest else error,
    )


def log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of the probabilities along the last axis."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found
