"""Matched pairs: two methods answer the same samples, right or wrong.

Only the m samples that one of them alone answers correctly tell them apart; if both are equally
good, each is the other's with probability 1/2. McNemar's exact test is the two-sided binomial test
of that (Q. McNemar, Psychometrika 12, 1947).

The interval of the difference is T. Tango's score interval (Statistics in Medicine 17, 1998), which
holds for few differences and for none, but is for large samples; so it is widened to that of the
test: the exact interval of C. J. Clopper and E. S. Pearson (Biometrika 26, 1934) of the second's
share of the m, times m. Together they exclude zero where the test rejects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from cubemesh.statistics.intervals import Interval

_ITERATIONS = 100_000
_TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class MatchedPairs:
    """Counts of samples that both answered."""

    samples: int
    lost: int
    """That the first alone answers correctly."""
    gained: int
    """That the second alone answers correctly."""

    @property
    def difference(self) -> float:
        """Share of right answers of the second less that of the first."""
        return (self.gained - self.lost) / self.samples

    @property
    def p_value(self) -> float:
        """Of McNemar's exact test, two-sided."""
        return _two_sided(min(self.lost, self.gained), self.lost + self.gained)

    def interval(self, level: float) -> Interval:
        """The interval of the difference that excludes zero where p < `level`."""
        score, differ = self._score_interval(level), self.lost + self.gained
        if differ == 0:
            return score
        ends, share = _share_interval(self.gained, differ, level), differ / self.samples
        return Interval(
            low=min(score.low, (2 * ends.low - 1) * share),
            high=max(score.high, (2 * ends.high - 1) * share),
        )

    def _score_interval(self, level: float) -> Interval:
        quantile = NormalDist().inv_cdf(1 - level / 2)

        def end(outside: float) -> float:
            inside = self.difference
            for _ in range(60):
                middle = (inside + outside) / 2
                if abs(self._statistic(middle)) <= quantile:
                    inside = middle
                else:
                    outside = middle
            return inside

        return Interval(low=end(-1.0), high=end(1.0))

    def _statistic(self, difference: float) -> float:
        """How many standard errors the counts are from a true `difference`."""
        n, d = self.samples, difference
        b = (2 * n - self.gained + self.lost) * d - self.gained - self.lost
        root = math.sqrt(max(b * b + 8 * n * self.lost * d * (1 - d), 0.0))
        lost_share = (root - b) / (4 * n)
        variance = n * max(2 * lost_share + d * (1 - d), 0.0)
        away = self.gained - self.lost - n * d
        if variance <= 0:
            return 0.0 if away == 0 else math.copysign(math.inf, away)
        return away / math.sqrt(variance)

    def smallest(self, level: float) -> float:
        """The smallest difference with p < `level`, for as many samples that only one answers
        correctly; for the fewest that could show one, where these are too few."""
        differ = self.lost + self.gained
        if _two_sided(0, differ) >= level:
            return min(1.0, math.floor(math.log2(2 / level) + 1) / self.samples)
        low, high = 0, differ // 2  # the test rejects `low` of them on one side, and not `high`
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _two_sided(middle, differ) < level else (low, middle)
        return (differ - 2 * low) / self.samples


def _two_sided(fewer: int, n: int) -> float:
    return min(1.0, 2 * _at_most(fewer, n, 0.5))


def _at_most(k: int, n: int, p: float) -> float:
    """The probability of at most `k` of `n`."""
    return 1.0 if k >= n else _beta(1 - p, n - k, k + 1)


def _share_interval(hits: int, n: int, level: float) -> Interval:
    def solved(a: float, b: float, wanted: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if _beta(middle, a, b) < wanted else (low, middle)
        return (low + high) / 2

    return Interval(
        low=0.0 if hits == 0 else solved(hits, n - hits + 1, level / 2),
        high=1.0 if hits == n else solved(hits + 1, n - hits, 1 - level / 2),
    )


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction (NIST DLMF
    8.17.22) in Lentz's form."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta(1.0 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, _ITERATIONS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away(1.0 + term * d)
            c = _away(1.0 + term / c)
            found *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return front * found / a


def _away(value: float) -> float:
    """`value`, away from zero."""
    return value if abs(value) > _TINY else _TINY
