"""Ratios of figures and their significance.

The interval of a ratio is the widest that the two intervals allow: the low end of one over the high
end of the other. A difference is *significant* if that whole interval is on one side of 1 and the
ratio differs from 1 by at least 3 %. The 3 % are a floor under intervals that come from the windows
of one process, since processes can differ by more.
"""

from __future__ import annotations

from cubemesh.schema import Figure
from cubemesh.units import format_interval

MIN_DIFFERENCE = 0.03
"""Smallest relative difference that can be significant."""


def bounds(figure: Figure) -> tuple[float, float]:
    """The interval; without one the value twice."""
    low = figure.value if figure.low is None else figure.low
    return low, figure.value if figure.high is None else figure.high


def ratio(over: Figure, under: Figure) -> Figure:
    """`over` as a multiple of `under`; both above 0. Without an interval if neither has one."""
    (over_low, over_high), (under_low, under_high) = bounds(over), bounds(under)
    sure = over.low is not None or under.low is not None
    return Figure(
        value=over.value / under.value,
        unit="×",
        low=over_low / under_high if sure else None,
        high=over_high / under_low if sure else None,
        n=min(over.n, under.n),
    )


def reciprocal(figure: Figure, times: float, unit: str) -> Figure:
    """`times` over `figure`, which is above 0, with its interval."""
    return Figure(
        value=times / figure.value,
        unit=unit,
        low=None if figure.high is None else times / figure.high,
        high=None if figure.low is None else times / figure.low,
        n=figure.n,
    )


def significance(found: Figure) -> int:
    """1 for a ratio significantly above 1, -1 below; 0 for no significant difference, and without
    an interval."""
    low, high = bounds(found)
    if low == high:
        return 0
    if low > 1 and found.value >= 1 + MIN_DIFFERENCE:
        return 1
    return -1 if high < 1 and found.value <= 1 - MIN_DIFFERENCE else 0


def format_ratio(found: Figure) -> str:
    """`1.32 ± 0.05×`."""
    return format_interval(found.value, found.low, found.high, "×")


def plus_minus(figure: Figure) -> str:
    """A figure with its interval in a sentence, as 1,234 ± 5, without its unit."""
    return format_interval(figure.value, figure.low, figure.high)
