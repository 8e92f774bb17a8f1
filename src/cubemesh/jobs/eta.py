"""Estimated time to the end of a job, with an interval, from what was measured of it so far.

A run reports its completed fraction f at times t. The costs of its parts, Δt/Δf, are a series of
equal work: with mean c over n parts, the rest 1 - f takes c (1 - f). Its interval is that of a
prediction, as both the mean of the past and that of the m parts to come vary:

    c (1 - f) ± t · s · w · √(1/n + 1/m) · (1 - f)

where w widens it for autocorrelation (statistics/autocorrelation.py). Runs to come take as long as
those measured, with Student's interval of a prediction. What has not happened yet, such as a rare
stall, is in no interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cubemesh.statistics.autocorrelation import widening
from cubemesh.statistics.intervals import student_t

CONFIDENCE = 0.90
FEWEST = 4
"""Parts of a run before an estimate has an interval."""
MOST_PARTS = 48
"""Parts that an estimate uses; more are joined, as neighbours resemble each other."""


@dataclass(frozen=True, kw_only=True)
class Eta:
    """Seconds to the end, with an interval; the same on both sides where it is not known yet."""

    seconds: float
    low_s: float
    high_s: float
    exact: bool = True
    """False where there may be more runs than are counted."""


def eta_of_run(points: Sequence[tuple[float, float]], confidence: float = CONFIDENCE) -> Eta | None:
    """Of one run with (seconds, completed fraction) so far; None before it can be estimated."""
    parts = _parts(points)
    if len(parts) < FEWEST:
        return None
    rest = max(0.0, 1.0 - points[-1][1])
    work = np.array([part[1] for part in parts])
    costs = np.array([part[0] for part in parts]) / work
    mean = float(np.average(costs, weights=work))
    n, to_come = len(costs), max(1.0, rest / float(work.mean()))
    spread = math.sqrt(float(np.average((costs - mean) ** 2, weights=work)) * n / (n - 1))
    wide = float(widening(costs)) * math.sqrt(1 / n + 1 / to_come)
    half = student_t(confidence, n - 1) * spread * wide * rest
    seconds = mean * rest
    return Eta(seconds=seconds, low_s=max(0.0, seconds - half), high_s=seconds + half)


def eta_of_job(
    current: Eta | None,
    finished_s: Sequence[float],
    runs_to_come: int,
    *,
    exact: bool = True,
    confidence: float = CONFIDENCE,
) -> Eta | None:
    """Of a job: the current run and `runs_to_come` after it, which take as long as those that were
    measured (`finished_s`). None where that is not known."""
    if runs_to_come <= 0:
        return current and Eta(
            seconds=current.seconds, low_s=current.low_s, high_s=current.high_s, exact=exact
        )
    if len(finished_s) < 2:
        return None
    walls = np.array(finished_s)
    n, m = len(walls), runs_to_come
    others = float(walls.mean()) * m
    half = student_t(confidence, n - 1) * float(walls.std(ddof=1)) * m * math.sqrt(1 / n + 1 / m)
    now = current or Eta(seconds=0.0, low_s=0.0, high_s=0.0)
    own = now.high_s - now.seconds
    both = math.hypot(half, own)
    seconds = now.seconds + others
    return Eta(seconds=seconds, low_s=max(0.0, seconds - both), high_s=seconds + both, exact=exact)


def _parts(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(seconds, fraction) between reports that progressed, joined to at most `MOST_PARTS`."""
    grown = list(points[:1])
    for point in points[1:]:
        if point[1] > grown[-1][1]:
            grown.append(point)
    join = max(1, math.ceil((len(grown) - 1) / MOST_PARTS))
    first = (len(grown) - 1) % join  # the oldest are left out, so that all parts are equal
    chosen = grown[first::join]
    return [
        (after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(chosen)
    ]
