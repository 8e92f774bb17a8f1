"""Statistics across runs: throughput ratio of two programs over fresh processes.

A run's value is ln(all its samples over all its seconds). It varies more between fresh processes
than between windows, so the interval is computed over runs: Welch's, with Satterthwaite's
degrees of freedom (Welch, Biometrika 34, 1947; Satterthwaite, Biometrics Bulletin 2, 1946),

    ln B - ln A ± t(f) · √(v_A / n_A + v_B / n_B),    v the variance between the runs of a side

or the interval from the windows of all runs (statistics/intervals.py), as if they were independent,
where that is wider. For a side with one run v is unknown, and the variance between the other side's
runs, or between stored ones, is used; without any, no difference is reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cubemesh.measure.merge_ranks import merge_free_running, merge_lockstep
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.schema.comparison import Ratio, classify_ratio
from cubemesh.schema.record import RunRecord, Window
from cubemesh.statistics import (
    CONFIDENCE,
    FEWEST_FOR_INTERVAL,
    Spread,
    mean,
    pooled,
    spread_of,
    student_t,
    windows_half_width,
)

ONE_RUN = (
    "with one run on a side the variation between fresh processes is unknown, and it is larger "
    "than between windows. Measure both with --set repeats=3 or more, or interleave them in one "
    "process: cubemesh run … --against SETTING."
)
FEW_WINDOWS = f"a run has fewer than {FEWEST_FOR_INTERVAL} windows. Set windows=12."

Run = Sequence[Window]
"""The measured windows of one run."""


def run_windows(record: RunRecord) -> list[Window]:
    """The measured windows of a run, each with the samples of all ranks."""
    sync = STRATEGIES.get(record.spec.program.sync)  # an imported record may have a layout
    if record.spec.placement.devices > 1 and sync is not None and not sync.blocking:
        return merge_free_running(record.windows)
    return merge_lockstep(record.measured)


def ratio_of_runs(first: Sequence[Run], second: Sequence[Run], stored: Spread | None) -> Ratio:
    """The second's throughput over the first's; `stored` is used where a side has a single run.
    ValueError where a side has no run, or a run no windows."""
    sides = [[_value(run) for run in runs] for runs in (first, second)]
    if not all(sides):
        raise ValueError("each side needs a run")
    few = any(len(run) < FEWEST_FOR_INTERVAL for run in (*first, *second))
    own_windows = [list(map(_pairs, side)) for side in (first, second)]
    own = [spread_between(runs, "of the side with several runs") for runs in (first, second)]
    difference = mean(sides[1]) - mean(sides[0])
    why, method = "", "Welch's interval over runs"
    if own[0] is not None and own[1] is not None:
        half, freedom = _welch(own[0], own[1], len(sides[0]), len(sides[1]))
    else:
        borrowed = pooled([s for s in (*own, stored) if s is not None])
        runs = 1 / len(sides[0]) + 1 / len(sides[1])
        if borrowed is None:
            half, freedom = _from_windows(own_windows, independent=False), 1.0
            why, method = ONE_RUN, "only the windows of these runs"
        else:
            freedom = float(borrowed.freedom)
            half = student_t(CONFIDENCE, freedom) * math.sqrt(borrowed.variance * runs)
            method = f"Student's interval with the spread {borrowed.source}"
    half = max(half, _from_windows(own_windows, independent=True))
    return classify_ratio(
        math.exp(difference),
        math.exp(difference - half),
        math.exp(difference + half),
        n=sum(map(len, sides)),
        freedom=freedom,
        method=method,
        why=FEW_WINDOWS if few else why,
    )


def spread_between(runs: Sequence[Run], source: str) -> Spread | None:
    """The spread of repeated runs of one spec; None for fewer than two runs."""
    return spread_of([_value(run) for run in runs], source)


def _welch(a: Spread, b: Spread, runs_a: int, runs_b: int) -> tuple[float, float]:
    """Half the width of Welch's interval, and its degrees of freedom."""
    x, y = a.variance / runs_a, b.variance / runs_b
    if x + y == 0:
        return 0.0, 1.0
    freedom = max(1.0, (x + y) ** 2 / (x**2 / a.freedom + y**2 / b.freedom))
    return student_t(CONFIDENCE, freedom) * math.sqrt(x + y), freedom


def _value(run: Run) -> float:
    return math.log(sum(w.samples for w in run) / math.fsum(w.elapsed_s for w in run))


def _from_windows(sides: Sequence[Sequence[NDArray[np.float64]]], *, independent: bool) -> float:
    return math.hypot(*(windows_half_width(side, independent=independent) for side in sides))


def _pairs(run: Run) -> NDArray[np.float64]:
    return np.array([(w.samples, w.elapsed_s) for w in run], dtype=np.float64)
