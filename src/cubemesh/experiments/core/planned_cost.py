"""Cost of a session before its first run: number of planned runs and a range of their time.

The first runs of every plan are counted; a plan that depends on results may request more. The time
of a run is at least that of its measurement, and at most that with the whole warm-up and the start
of the worker. The time of a training over epochs is not estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.runs.devices import simulated
from cubemesh.schema import RunSpec, Train
from cubemesh.units import format_seconds

START_S = 10.0
"""Longest usual time to start a worker and build a network."""


@dataclass(frozen=True, kw_only=True)
class PlannedCost:
    """Runs that are planned so far."""

    runs: int
    stored: int
    """Of these, runs that are stored and will be reused."""
    exact: bool
    """Whether no plan requests more runs after its first ones."""
    low_s: float = 0.0
    high_s: float = 0.0
    trainings: int = 0
    """Runs over epochs that are not stored; not part of the time."""

    @property
    def text(self) -> str:
        """`At least 12 runs, 4 of them stored: 16 s to 4 min.`"""
        if self.stored == self.runs == 1:
            return "The run is stored: shows its result. --no-cache runs it again."
        if self.stored == self.runs:
            return f"{self.runs} runs are stored: shows their results. --no-cache runs them again."
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        runs = runs if self.exact else f"At least {runs}"
        stored = f", {self.stored} of them stored" if self.stored else ""
        parts = []
        if self.runs - self.stored > self.trainings:
            low, high = (format_seconds(max(1, round(s)), 2) for s in (self.low_s, self.high_s))
            parts.append(low if low == high else f"{low} to {high}")
        if self.trainings:
            count = "1 training" if self.trainings == 1 else f"{self.trainings} trainings"
            parts.append(f"{count} over epochs, whose time is not known")
        return f"{runs}{stored}: {', and '.join(parts)}."


def planned_cost(first: Sequence[tuple[RunSpec, int]], *, exact: bool) -> PlannedCost:
    """The cost of specs, each with the number of its repeats that are stored."""
    low_s = high_s = 0.0
    trainings = 0
    for spec, stored in first:
        new = spec.budget.repeats - stored
        if isinstance(spec.work, Train):
            trainings += new
            continue
        low, high = run_time_s(spec)
        low_s, high_s = low_s + new * low, high_s + new * high
    return PlannedCost(
        runs=sum(spec.budget.repeats for spec, _ in first),
        stored=sum(stored for _, stored in first),
        exact=exact,
        low_s=low_s,
        high_s=high_s,
        trainings=trainings,
    )


def run_time_s(spec: RunSpec) -> tuple[float, float]:
    """Least and usual most seconds of one run."""
    budget = spec.budget
    if simulated(spec):
        return 0.0, 1.0
    longest = budget.seconds if budget.target_ci is None else budget.max_seconds
    high = longest + budget.warmup_seconds + START_S
    return min(budget.seconds, budget.time_limit_s), min(high, budget.time_limit_s)
