"""Throughput ratio of two programs (B over A) with its significance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

RATIO = "throughput_ratio"
"""Name of the figure that holds the ratio of an interleaved A/B run."""


class Difference(StrEnum):
    """B compared with A: a significant difference, none, or too few runs to decide."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_SIGNIFICANT = "no significant difference"
    NOT_ENOUGH_DATA = "not enough data"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """B's throughput over A's, above 1 if B is faster, with its 95 % confidence interval."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    """Independent values behind the interval: runs, or pairs of instances."""
    freedom: float = 1.0
    """Degrees of freedom of Student's t in the interval."""
    comparisons: int = 1
    """Comparisons of the table, for which the verdict is corrected."""
    verdict: Difference
    why: str = ""
    """Why there is not enough data, and the remedy; otherwise empty."""
    method: str = ""

    @property
    def half_width(self) -> float | None:
        """Half-width of the interval as a fraction of the ratio; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.value

    @property
    def smallest_detectable(self) -> float | None:
        """The difference, as a fraction of the ratio, below which none would be significant; None
        without an interval."""
        from cubemesh.statistics import CONFIDENCE, student_t  # here: it imports NumPy

        if self.half_width is None:
            return None
        level = 1 - (1 - CONFIDENCE) / self.comparisons
        wider = student_t(level, self.freedom) / student_t(CONFIDENCE, self.freedom)
        return self.half_width * wider

    def p_value(self, than: float = 1.0) -> float | None:
        """How often programs whose true ratio is `than` would be measured this far from it, on
        either side; None without enough data."""
        from cubemesh.statistics import CONFIDENCE, student_p, student_t

        if self.verdict is Difference.NOT_ENOUGH_DATA or self.low is None or self.high is None:
            return None
        half, away = math.log(self.high / self.low) / 2, abs(math.log(self.value / than))
        if half == 0:
            return 0.0 if away else 1.0
        return student_p(away / half * student_t(CONFIDENCE, self.freedom), self.freedom)


def corrected(ratios: Sequence[Ratio]) -> tuple[Ratio, ...]:
    """Ratios of one table, with verdicts that are corrected for their number (Holm)."""
    significant = _significant([r.p_value() for r in ratios])
    count = sum(r.p_value() is not None for r in ratios)
    return tuple(
        replace(
            ratio,
            comparisons=max(1, count),
            verdict=ratio.verdict
            if sure or ratio.verdict is Difference.NOT_ENOUGH_DATA
            else Difference.NOT_SIGNIFICANT,
        )
        for ratio, sure in zip(ratios, significant, strict=True)
    )


def breaches(ratios: Sequence[Ratio], threshold: float) -> tuple[bool | None, ...]:
    """Whether each ratio is significantly below `threshold`, corrected for their number (Holm);
    None without enough data."""
    p_values = [ratio.p_value(threshold) for ratio in ratios]
    return tuple(
        None if p is None else sure and ratio.value < threshold
        for ratio, p, sure in zip(ratios, p_values, _significant(p_values), strict=True)
    )


def _significant(p_values: Sequence[float | None]) -> list[bool]:
    """Holm's procedure over the known p-values; False for the others."""
    from cubemesh.statistics import holm

    found = iter(holm([p for p in p_values if p is not None]))
    return [p is not None and next(found) for p in p_values]


def classify_ratio(
    value: float,
    low: float | None,
    high: float | None,
    *,
    n: int,
    freedom: float,
    method: str,
    why: str = "",
) -> Ratio:
    """The ratio with its verdict: significant if the whole interval lies on one side of 1; not
    enough data if there is no interval, or a reason (`why`) not to trust it."""
    if why or low is None or high is None:
        verdict = Difference.NOT_ENOUGH_DATA
    elif low > 1:
        verdict = Difference.FASTER
    else:
        verdict = Difference.SLOWER if high < 1 else Difference.NOT_SIGNIFICANT
    return Ratio(
        value=value,
        low=low,
        high=high,
        n=n,
        freedom=freedom,
        verdict=verdict,
        why=why,
        method=method,
    )
