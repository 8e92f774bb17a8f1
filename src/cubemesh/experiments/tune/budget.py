"""Is there time for one more trial? The clock of a tuning.

A trial is expected to take as long as the longest of its framework so far, and one of another
framework as long as the shortest of all; what is not expected to fit is not begun. What does not
end in time is ended by its own time limit: a third of the budget (one framework's compiler must not
eat all of it), or what is left.
"""

from __future__ import annotations

from collections.abc import Callable

from cubemesh.schema import Budget

LEAST_S = 1.0
"""No run is worth beginning in less."""
SHARE = 1 / 3
ALTERNATING = Budget().instances
_STEP_S = 0.5
"""Time limits at the end are rounded down to this."""


class TrialBudget:
    """The time a tuning may take, from the moment it is made."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock, self._seconds = clock, seconds
        self._end = clock() + seconds
        self._took_s: dict[str, float] = {}

    @property
    def left_s(self) -> float:
        """What is left; below 0 when it is over."""
        return self._end - self._clock()

    def affords(self, *frameworks: str) -> bool:
        """Whether a trial of this framework can be expected to end in time; of two that alternate,
        each being built `ALTERNATING` times."""
        shortest = min(self._took_s.values(), default=0.0)
        known = [self._took_s.get(framework, shortest) for framework in frameworks]
        expected_s = max(known) * (ALTERNATING if len(known) > 1 else 1)
        return self.left_s >= max(LEAST_S, expected_s)

    def limit_s(self, *, whole: bool) -> float:
        """The time limit of the next trial: a share of the budget, or of `whole` all of it, where
        so much is left."""
        most = self._seconds if whole else max(LEAST_S, SHARE * self._seconds)
        return min(most, max(LEAST_S, self.left_s // _STEP_S * _STEP_S))

    def took(self, framework: str, seconds: float) -> None:
        """A trial of this framework took so long."""
        self._took_s[framework] = max(seconds, self._took_s.get(framework, 0.0))
