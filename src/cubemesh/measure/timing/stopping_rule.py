"""Stopping rule: measure until the interval is within `Budget.target_ci`, or time is up.

Stopping at the first narrow interval prefers intervals that are too narrow by chance: its "95 %"
covers 89 to 96 %. So there are few looks, the first at 20 windows and each at half as many more
than the last, and every interval of such a run is one of 97.5 %, as in a group sequential test with
a constant boundary (Pocock, Biometrika 64, 1977). The coverage is in docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cubemesh.measure.validity import wide_interval
from cubemesh.schema.spec import Budget
from cubemesh.schema.warning import Warning
from cubemesh.statistics import CONFIDENCE

FIRST_LOOK = 20
"""Windows at the first look: with fewer the autocorrelation is too uncertain to stop on."""
GROWTH = 1.5
SEQUENTIAL_CONFIDENCE = 0.975
"""Of the intervals of a run that stops when its interval is narrow."""


def confidence_of(budget: Budget) -> float:
    """The confidence at which the intervals of a run with this budget cover about 95 %."""
    return CONFIDENCE if budget.target_ci is None else SEQUENTIAL_CONFIDENCE


class StoppingRule:
    """Decides after every window (or group of them), once the rest of the budget is used.

    `half_width` returns the half-width of the interval relative to its figure, None without one.
    """

    def __init__(self, budget: Budget, half_width: Callable[[], float | None]) -> None:
        self._budget = budget
        self._half_width = half_width
        self._next_look = FIRST_LOOK
        self._elapsed_s = 0.0
        self._reached: float | None = None

    def wants_more(self, windows: int, elapsed_s: float) -> bool:
        """Whether to continue after `windows` that took `elapsed_s`."""
        wanted, is_over = self._budget.target_ci, elapsed_s >= self._budget.max_seconds
        if wanted is None:
            return False
        if windows < self._next_look and not is_over:
            return True
        self._elapsed_s, self._reached = elapsed_s, self._half_width()
        self._next_look = math.ceil(GROWTH * windows)
        return not is_over and (self._reached is None or self._reached > wanted)

    def warning(self) -> Warning | None:
        """The warning `wide-interval` where the target was missed, else None."""
        wanted = self._budget.target_ci
        if wanted is None or (self._reached is not None and self._reached <= wanted):
            return None
        return wide_interval(wanted, self._reached, self._elapsed_s)
