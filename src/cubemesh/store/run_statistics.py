"""Statistics across runs: throughput ratio of two programs over fresh processes.

A run's value is ln(all its samples over all its seconds). It varies more between fresh processes
than between windows, so the interval is computed over runs: Welch's, with Satterthwaite's
degrees of freedom (Welch, Biometrika 34, 1947; Satterthwaite, Biometrics Bulletin 2, 1946),

    ln B - ln A ± t(f) · √(v_A / n_A + v_B / n_B),    v the variance between the runs of a side

where v is at least the variance from the windows alone: the second stage of a nested bootstrap,
whose first stage fails for so few runs (statistics/). For a side with one run v is unknown, and the
variance between the other side's runs, or between stored ones, is used; without any, no difference
is reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cubemesh.measure.merge_ranks import merge_free_running, merge_lockstep
from cubemesh.parallel.strategies import strategy
from cubemesh.schema.comparison import Ratio, classify_ratio
from cubemesh.schema.record import RunRecord, Window
from cubemesh.statistics import FEWEST_FOR_INTERVAL, mean, student_t

ONE_RUN = (
    "with one run on a side the variation between fresh processes is unknown, and it is larger "
    "than between windows. Measure both with --set repeats=3 or more, or interleave them in one "
    "process: cubemesh run … --against SETTING."
)
FEW_WINDOWS = f"a run has fewer than {FEWEST_FOR_INTERVAL} windows. Set windows=12."

Run = Sequence[Window]
"""The measured windows of one run."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far ln(throughput) of fresh processes differs."""

    variance: float
    freedom: float
    source: str
    """Where it comes from, in words."""


def run_windows(record: RunRecord) -> list[Window]:
    """The measured windows of a run, each with the samples of all ranks."""
    if record.spec.placement.devices > 1 and not strategy(record.spec.program.sync).blocking:
        return merge_free_running(record.windows)
    return merge_lockstep(record.measured)


def ratio_of_runs(first: Sequence[Run], second: Sequence[Run], stored: Spread | None) -> Ratio:
    """The second's throughput over the first's; `stored` is used where a side has a single run.
    ValueError where a side has no run, or a run no windows."""
    sides = [[_value(run) for run in runs] for runs in (first, second)]
    if not all(sides):
        raise ValueError("each side needs a run")
    few = any(len(run) < FEWEST_FOR_INTERVAL for run in (*first, *second))
    within = [mean([_within(run) for run in runs]) for runs in (first, second)]
    own = [
        spread_between(runs, "of the side with several runs", least)
        for runs, least in zip((first, second), within, strict=True)
    ]
    difference = mean(sides[1]) - mean(sides[0])
    why, method = "", "Welch's interval over runs"
    if own[0] is not None and own[1] is not None:
        half = _welch(own[0], own[1], len(sides[0]), len(sides[1]))
    else:
        borrowed = pooled([s for s in (*own, stored) if s is not None])
        runs = 1 / len(sides[0]) + 1 / len(sides[1])
        if borrowed is None:
            half = 1.96 * math.sqrt(sum(within))
            why, method = ONE_RUN, "only the windows of these runs"
        else:
            variance = max(borrowed.variance, *within)
            half = student_t(0.95, borrowed.freedom) * math.sqrt(variance * runs)
            method = f"Student's interval with the spread {borrowed.source}"
    return classify_ratio(
        math.exp(difference),
        math.exp(difference - half),
        math.exp(difference + half),
        n=sum(map(len, sides)),
        method=method,
        why=FEW_WINDOWS if few else why,
    )


def spread_between(runs: Sequence[Run], source: str, least: float = 0.0) -> Spread | None:
    """The spread of repeated runs of one spec, with at least the variance `least`; None for fewer
    than two runs."""
    if len(runs) < 2:
        return None
    variance = max(float(np.var([_value(run) for run in runs], ddof=1)), least)
    return Spread(variance=variance, freedom=len(runs) - 1, source=source)


def pooled(spreads: Sequence[Spread]) -> Spread | None:
    """Several spreads as one, each counting by its degrees of freedom; None for none."""
    freedom = sum(s.freedom for s in spreads)
    if not spreads:
        return None
    return Spread(
        variance=sum(s.variance * s.freedom for s in spreads) / freedom,
        freedom=freedom,
        source=" and ".join(dict.fromkeys(s.source for s in spreads)),
    )


def _welch(a: Spread, b: Spread, runs_a: int, runs_b: int) -> float:
    """Half the width of Welch's interval."""
    x, y = a.variance / runs_a, b.variance / runs_b
    if x + y == 0:
        return 0.0
    freedom = (x + y) ** 2 / (x**2 / a.freedom + y**2 / b.freedom)
    return student_t(0.95, max(1.0, freedom)) * math.sqrt(x + y)


def _value(run: Run) -> float:
    return math.log(sum(w.samples for w in run) / math.fsum(w.elapsed_s for w in run))


def _within(run: Run) -> float:
    """The variance of a run's value from its windows only. For autocorrelated windows it is
    multiplied by (1 + r) / (1 - r), r the lag-one correlation (Wilks, Journal of Climate 10,
    1997), if that is more than 1."""
    rates = np.log([w.samples / w.elapsed_s for w in run])
    if rates.size < 2:
        return 0.0
    deviations = rates - rates.mean()
    total = float((deviations**2).sum())
    if total == 0:
        return 0.0
    lagged = math.fsum(a * b for a, b in pairwise(deviations.tolist())) / total
    likeness = min(max(lagged, 0.0), 0.9)
    return total / (rates.size - 1) / rates.size * (1 + likeness) / (1 - likeness)
