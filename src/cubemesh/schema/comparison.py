"""Throughput ratio of two programs (B over A) with its significance."""

from __future__ import annotations

from dataclasses import dataclass
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

    def breaches(self, threshold: float) -> bool | None:
        """Whether the whole interval lies below `threshold`; None without enough data."""
        if self.verdict is Difference.NOT_ENOUGH_DATA or self.high is None:
            return None
        return self.high < threshold


def classify_ratio(
    value: float,
    low: float | None,
    high: float | None,
    *,
    n: int,
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
    return Ratio(value=value, low=low, high=high, n=n, verdict=verdict, why=why, method=method)
