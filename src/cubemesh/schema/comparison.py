"""What is the throughput of one program beside another's, and may the difference be called?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

RATIO = "throughput_ratio"
"""Name of the figure that holds the ratio of an alternating run."""


class Called(StrEnum):
    """What may be said of B beside A."""

    FASTER = "faster"
    SLOWER = "slower"
    LEVEL = "no difference found"
    TOO_LITTLE = "too little data"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """B's throughput over A's, more than 1 where B is faster, with its 95 % interval."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    """Independent values behind the interval: runs, or pairs of instances."""
    verdict: Called
    why: str = ""
    """Why there is too little data, and what to do; empty otherwise."""
    method: str = ""

    @property
    def half_width(self) -> float | None:
        """Half of the interval, as a share of the ratio; None where there is no interval."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.value

    def breaches(self, threshold: float) -> bool | None:
        """Whether B is surely below `threshold` times A: the whole interval lies below it. None
        where nothing may be called."""
        if self.verdict is Called.TOO_LITTLE or self.high is None:
            return None
        return self.high < threshold


def judged(
    value: float,
    low: float | None,
    high: float | None,
    *,
    n: int,
    method: str,
    why: str = "",
) -> Ratio:
    """The ratio with its verdict: a difference where the whole interval lies on one side of 1, and
    none of either kind where there is a reason (`why`) not to trust it, or no interval."""
    if why or low is None or high is None:
        verdict = Called.TOO_LITTLE
    elif low > 1:
        verdict = Called.FASTER
    else:
        verdict = Called.SLOWER if high < 1 else Called.LEVEL
    return Ratio(value=value, low=low, high=high, n=n, verdict=verdict, why=why, method=method)
