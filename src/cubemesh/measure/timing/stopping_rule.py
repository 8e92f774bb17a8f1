"""Stopping rule: measure until the interval is within `Budget.target_ci`, or time is up.

Checking after every window and stopping at the first narrow interval would stop on lucky ones. So
the next check comes with a quarter more windows than the last, which keeps the checks few; its cost
in coverage is in docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cubemesh.measure.validity import wide_interval
from cubemesh.schema.spec import Budget
from cubemesh.schema.warning import Warning

GROWTH = 1.25


class StoppingRule:
    """Decides after every window (or group of them), once the rest of the budget is used.

    `half_width` returns the half-width of the interval relative to its figure, None without one.
    """

    def __init__(self, budget: Budget, half_width: Callable[[], float | None]) -> None:
        self._budget = budget
        self._half_width = half_width
        self._next_look = 0
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
