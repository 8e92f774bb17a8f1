"""Ratios of figures and their significance.

The interval of a ratio combines the intervals of both figures: in logarithms, the distance from the
ratio to its low end is the root of the sum of squares of the distances from one figure to its low
and from the other to its high end (Zou & Donner, Statistics in Medicine 27, 2008). A difference is
*significant* if that whole interval is on one side of 1 and the ratio differs from 1 by at least
3 %. The 3 % are a floor under intervals that come from the windows of one process, since processes
can differ by more. The ratios of one table are judged together (`verdicts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.schema import Figure
from cubemesh.schema.comparison import Difference
from cubemesh.statistics import CONFIDENCE, holm, student_p, student_t
from cubemesh.units import format_interval, format_number

MIN_DIFFERENCE = 0.03
"""Smallest relative difference that can be significant."""


def bounds(figure: Figure) -> tuple[float, float]:
    """The interval; without one the value twice."""
    low = figure.value if figure.low is None else figure.low
    return low, figure.value if figure.high is None else figure.high


def ratio(over: Figure, under: Figure) -> Figure:
    """`over` as a multiple of `under`; both above 0. Without an interval if neither has one."""
    value, sure = over.value / under.value, over.low is not None or under.low is not None
    (over_below, over_above), (under_below, under_above) = _distances(over), _distances(under)
    return Figure(
        value=value,
        unit="×",
        low=value * math.exp(-math.hypot(over_below, under_above)) if sure else None,
        high=value * math.exp(math.hypot(over_above, under_below)) if sure else None,
        n=min(over.n, under.n),
    )


def _distances(figure: Figure) -> tuple[float, float]:
    """From a figure above 0 to both ends of its interval, in logarithms."""
    low, high = bounds(figure)
    return math.log(figure.value / low) if low > 0 else math.inf, math.log(high / figure.value)


def reciprocal(figure: Figure, times: float, unit: str) -> Figure:
    """`times` over `figure`, which is above 0, with its interval."""
    return Figure(
        value=times / figure.value,
        unit=unit,
        low=None if figure.high is None else times / figure.high,
        high=None if figure.low is None else times / figure.low,
        n=figure.n,
    )


@dataclass(frozen=True)
class Verdict:
    """A ratio judged among those of its table."""

    sign: int
    """1 for significantly above 1, -1 below; 0 for no significant difference, and without an
    interval."""
    least: float
    """The smallest relative difference that would have been significant."""

    @property
    def unseen(self) -> str:
        """What "no significant difference" leaves open."""
        return f"differences below {format_number(100 * self.least, 2)} % would not be detected"


def verdicts(found: Sequence[Figure]) -> list[Verdict]:
    """The ratios of one table judged together: significant by Holm's procedure, and 3 % or more
    from 1."""
    sure = [f.low is not None and f.high is not None and f.low < f.high for f in found]
    significant = iter(holm([_p_value(f) for f, known in zip(found, sure, strict=True) if known]))
    judged = []
    for figure, known in zip(found, sure, strict=True):
        freedom, (low, high) = max(1, figure.n - 1), bounds(figure)
        level = 1 - (1 - CONFIDENCE) / max(1, sum(sure))
        wider = student_t(level, freedom) / student_t(CONFIDENCE, freedom)
        least = max(MIN_DIFFERENCE, wider * (high - low) / 2 / figure.value)
        far = abs(figure.value - 1) >= MIN_DIFFERENCE
        sign = (1 if figure.value > 1 else -1) if known and next(significant) and far else 0
        judged.append(Verdict(sign, least))
    return judged


def verdict_text(figure: Figure, verdict: Verdict) -> str:
    """`faster`, `slower`, or no significant difference and what that leaves open."""
    if figure.low is None or figure.high is None:
        return "not judged: no interval"
    if verdict.sign:
        return (Difference.FASTER if verdict.sign > 0 else Difference.SLOWER).value
    return f"{Difference.NOT_SIGNIFICANT.value} ({verdict.unseen})"


def significance(found: Figure) -> int:
    """The sign of the verdict of a single ratio."""
    return verdicts([found])[0].sign


def _p_value(found: Figure) -> float:
    """How often equal figures would have a ratio this far from 1, by the side of the interval
    towards 1."""
    below, above = _distances(found)
    away, side = abs(math.log(found.value)), below if found.value > 1 else above
    freedom = max(1, found.n - 1)
    if side == 0:
        return 0.0 if away else 1.0
    return student_p(away / side * student_t(CONFIDENCE, freedom), freedom)


def format_ratio(found: Figure) -> str:
    """`1.32 ± 0.05×`."""
    return format_interval(found.value, found.low, found.high, "×")


def plus_minus(figure: Figure) -> str:
    """A figure with its interval in a sentence, as 1,234 ± 5, without its unit."""
    return format_interval(figure.value, figure.low, figure.high)
