"""How often intervals contain the truth, and how often a difference or a drift is reported where
there is none: all by simulation, with nothing timed.

    python benchmarks/interval_coverage.py [--series 4000] [--seed 0]

Series of windows are autoregressions of first order with correlation 0 to 0.8 (the normal noise of
neighbours that resemble each other) and bursts (a window begins one with some probability, and each
window in it ends it with another; the speed is lower inside). `replayed` comparisons take the
windows of the runs on a CPU that are stored in benchmarks/records, in their order from a random
place, as the noise of both programs. docs/statistics.md has the results.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cubemesh.experiments.analysis.caveats import noise_codes
from cubemesh.experiments.analysis.groups import pooled
from cubemesh.experiments.analysis.ratios import ratio, verdicts
from cubemesh.measure.timing.interleaved_ab import ORDERS, ratio_of
from cubemesh.measure.timing.stopping_rule import FIRST_LOOK, GROWTH, SEQUENTIAL_CONFIDENCE
from cubemesh.schema.comparison import Difference
from cubemesh.schema.record import AGAINST, Window
from cubemesh.statistics import CONFIDENCE, Spread, drift, nested_throughput_interval, student_t
from cubemesh.statistics.autocorrelation import Array, lag_one
from cubemesh.statistics.intervals import mean_half_width, median_ends
from cubemesh.store.run_statistics import ratio_of_runs
from cubemesh.store.spread_prior import PRIORS, SpreadKind
from stored_runs import stored_runs

RECORDS = Path(__file__).parent / "records"
WINDOWS = (12, 16, 20, 30, 45, 60)
CORRELATIONS = (0.0, 0.3, 0.6, 0.8)
PLANTED = 0.03
Rng = np.random.Generator


class Bursts(NamedTuple):
    """Speed that alternates between two levels, with normal noise."""

    begin: float
    """Probability that a window outside a burst begins one."""
    end: float
    """Probability that a window inside one ends it."""
    slower: float
    """By which fraction windows inside take longer."""
    noise: float

    def __str__(self) -> str:
        share = self.begin / (self.begin + self.end)
        return f"bursts, {share:.0%} of the time, {1 / self.end:.2g} windows long"


BURSTS = (Bursts(0.25, 0.5, 0.1, 0.03), Bursts(0.15, 0.5, 0.1, 0.05), Bursts(0.1, 0.3, 0.1, 0.03))
Source = float | Bursts


def simulated(rng: Rng, series: int, windows: int, source: Source) -> Array:
    """Series of mean 0, of shape (series, windows)."""
    noise = rng.normal(size=(series, windows))
    if isinstance(source, float):
        x = noise * math.sqrt(1 - source**2)
        x[:, 0] = noise[:, 0]
        for i in range(1, windows):
            x[:, i] += source * x[:, i - 1]
        return x
    share = source.begin / (source.begin + source.end)
    inside = np.empty((series, windows), dtype=bool)
    draws = rng.random((series, windows))
    inside[:, 0] = draws[:, 0] < share
    for i in range(1, windows):
        inside[:, i] = draws[:, i] < np.where(inside[:, i - 1], 1 - source.end, source.begin)
    return np.asarray(source.slower * (inside - share) + source.noise * noise)


def mean_coverage(x: Array) -> float:
    """Fraction of the intervals of the mean that contain 0."""
    return float((np.abs(x.mean(axis=1)) <= mean_half_width(x)).mean())


def independent_coverage(x: Array) -> float:
    """The same of Student's interval, which takes the values for independent."""
    return float((np.abs(x.mean(axis=1)) <= mean_half_width(x, independent=True)).mean())


def known_widening_coverage(rng: Rng, series: int, windows: int, bursts: Bursts) -> float:
    """Fraction of Student's intervals of series with bursts that contain 0 when they are widened by
    the true autocorrelation, which no method knows."""
    share = bursts.begin / (bursts.begin + bursts.end)
    of_bursts = share * (1 - share) * bursts.slower**2
    lags = np.arange(1, windows)
    resembling = ((1 - lags / windows) * (1 - bursts.begin - bursts.end) ** lags).sum()
    variance = (of_bursts * (1 + 2 * resembling) + bursts.noise**2) / windows  # of the mean
    x = simulated(rng, series, windows, bursts)
    within = x.var(axis=1, ddof=1)
    half = student_t(CONFIDENCE, windows - 1) * np.sqrt(variance * within / within.mean())
    return float((np.abs(x.mean(axis=1)) <= half).mean())


def without_burst(windows: int, bursts: Bursts) -> float:
    """Fraction of series that contain no burst."""
    return bursts.end / (bursts.begin + bursts.end) * (1 - bursts.begin) ** (windows - 1)


def median_coverage(x: Array) -> float:
    """Fraction of the intervals of the median that contain 0, the median of symmetric noise."""
    low, high = median_ends(x)
    return float(((low <= 0) & (high >= 0)).mean())


def stopped_coverage(x: Array, target: float, confidence: float = SEQUENTIAL_CONFIDENCE) -> float:
    """Fraction of the intervals that contain 0 when each series is measured until its interval is
    within ± `target`, or to its end."""
    windows, most = min(FIRST_LOOK, x.shape[1]), x.shape[1]
    running, covered = np.ones(len(x), dtype=bool), 0
    while True:
        part = x[:, :windows]
        half = mean_half_width(part, confidence)
        stops = running & ((half <= target) | (windows == most))
        covered += int((np.abs(part.mean(axis=1)) <= half)[stops].sum())
        running &= ~stops
        if not running.any():
            return covered / len(x)
        windows = min(most, math.ceil(GROWTH * windows))


def false_drifts(x: Array) -> float:
    """Fraction of steady series that are reported as drifting. The values are far from 0 by little,
    so that any trend that is significant is large enough as well."""
    return float(np.mean([drift(1 + row).significant for row in 0.2 * x]))


def runs_coverage(rng: Rng, rounds: int, runs: int, between: float, source: Source) -> float:
    """Fraction of the intervals of several runs together that contain the mean of all processes,
    which differ by `between` relative to windows that differ by 0.02."""
    covered = 0
    for _ in range(rounds):
        noise = 0.02 * simulated(rng, runs, 12, source) + between * rng.normal(size=(runs, 1))
        found = nested_throughput_interval([[(1.0, s) for s in row] for row in np.exp(noise)])
        covered += found.low <= 1 <= found.high
    return covered / rounds


class Population(NamedTuple):
    """Workloads whose spreads between processes are drawn around a prior."""

    name: str
    too_small: float = 1.0
    """True s₀ over the prior's."""
    heavy_tails: bool = False
    """Whether processes of a workload differ by Student's t with 3 degrees of freedom."""
    least_quantile: float = 0.0
    """Only workloads with a spread above this quantile."""
    prior: Spread | None = PRIORS[SpreadKind.GPU_BOUND]
    """Of the intervals."""


PRIOR = PRIORS[SpreadKind.GPU_BOUND]
POPULATIONS = (
    Population("prior right"),
    Population("3 × too small", too_small=3.0),
    Population("3 × too large", too_small=1 / 3),
    Population("heavy tails", heavy_tails=True),
    Population("the tenth of workloads that spreads most", least_quantile=0.9),
    Population("no prior", prior=None),
)


def moderated_coverage(rng: Rng, rounds: int, runs: int, population: Population) -> float:
    """Fraction of the intervals of `runs` runs of a workload that contain the mean of all its
    processes; windows differ by 0.002, with correlation 0.3."""
    d0 = PRIOR.freedom
    draws = rng.chisquare(d0, size=20 * rounds)
    least = np.quantile(draws, 1 - population.least_quantile)
    chosen = draws[draws <= least][:rounds]
    spreads = population.too_small * np.sqrt(PRIOR.variance * d0 / chosen)
    covered = 0
    for spread in spreads:
        tails = rng.standard_t(3, size=runs) / math.sqrt(3)
        processes = spread * (tails if population.heavy_tails else rng.normal(size=runs))
        noise = 0.002 * simulated(rng, runs, 12, 0.3) + processes[:, np.newaxis]
        times = [[(1.0, math.exp(s)) for s in row] for row in noise]
        found = nested_throughput_interval(times, prior=population.prior)
        covered += found.low <= 1 <= found.high
    return covered / len(spreads)


@functools.cache
def stored_series(*, with_noisy: bool = True) -> list[Array]:
    """The logarithms of the window times of the runs on a CPU in benchmarks/records, each series
    around its mean time; optionally without runs that have a warning of noise, which no table
    compares."""
    found = []
    for path in sorted(RECORDS.glob("*cpu*.sqlite")):
        with stored_runs(path) as store:
            for record in store.records(outcome="ok"):
                steps = np.array([w.step_s for w in record.measured if w.rank == 0])
                if len(steps) >= 12 and (with_noisy or not noise_codes([record])):
                    found.append(np.log(steps / steps.mean()))
    return found


def replayed(rng: Rng, series: Sequence[Array], windows: int) -> Array:
    """So many window times of a busy host: one of `series` from a random place, back and forth."""
    one = series[rng.integers(len(series))]
    there_and_back = np.concatenate((one, one[::-1]))
    start = rng.integers(len(there_and_back))
    return np.resize(np.roll(there_and_back, -start), windows)


def windows_of(times: Array, phase: str = "measure", marks: tuple[str, ...] = ()) -> list[Window]:
    """Windows of 32 samples with these ln(seconds)."""
    return [
        Window(phase=phase, start_s=0.0, elapsed_s=math.exp(t), steps=1, samples=32, marks=marks)
        for t in times
    ]


class Compared(NamedTuple):
    """One comparison of B with A."""

    sign: int
    low: float
    high: float


def interleaved(rng: Rng, series: Sequence[Array], slower: float) -> Compared:
    """`run --against`: 6 pairs of instances that differ by 0.4 %, 4 blocks each, in one series."""
    pairs, blocks = 6, 4
    instances = 0.004 * rng.normal(size=(pairs, 2))
    times = replayed(rng, series, 4 * pairs * blocks).reshape(blocks, pairs, 4)
    windows: list[Window] = []
    for block in range(blocks):
        for pair in range(pairs):
            order = ORDERS[int(rng.integers(2))]
            for position, side in enumerate(order):
                own = times[block, pair, position] + instances[pair, side] + side * slower
                marks = (f"instance-{pair}", f"block-{block}-{pair}")
                windows += windows_of(np.array([own]), AGAINST if side else "measure", marks)
    found = ratio_of(windows)
    return _compared(found.verdict, found.low, found.high)


def separate(rng: Rng, series: Sequence[Array], slower: float) -> Compared:
    """`compare` of three processes each, which differ by 1 %, with 12 windows."""
    sides = [
        [windows_of(replayed(rng, series, 12) + 0.01 * rng.normal() + extra) for _ in range(3)]
        for extra in (0.0, slower)
    ]
    found = ratio_of_runs(*sides, None)
    return _compared(found.verdict, found.low, found.high)


def _compared(verdict: Difference, low: float | None, high: float | None) -> Compared:
    signs = {Difference.FASTER: 1, Difference.SLOWER: -1}
    return Compared(signs.get(verdict, 0), low or 0.0, high or math.inf)


def tables(rng: Rng, series: Sequence[Array], slower: float) -> Compared:
    """A ratio in the table of an experiment, of one process each with 12 windows."""
    sides = [replayed(rng, series, 12) + extra for extra in (0.0, slower)]
    first, second = (pooled([[(32.0, math.exp(t)) for t in times]]) for times in sides)
    found = ratio(second, first)
    return Compared(verdicts([found])[0].sign, found.low or 0.0, found.high or math.inf)


Comparison = Callable[[Rng, Sequence[Array], float], Compared]


class Rates(NamedTuple):
    """What became of many comparisons."""

    called: float
    """Fraction with a verdict."""
    contains: float
    """Fraction of the intervals that contain the true ratio."""
    called_contains: float
    """The same of those with a verdict."""


def rates(
    compare: Comparison, rng: Rng, series: Sequence[Array], slower: float, rounds: int
) -> Rates:
    """`rounds` comparisons with a program that is `slower` (ln)."""
    found = [compare(rng, series, slower) for _ in range(rounds)]
    true = math.exp(-slower)
    contain = np.array([c.low <= true <= c.high for c in found])
    excludes = np.array([c.sign != 0 for c in found])
    return Rates(
        float(np.mean([c.sign != 0 for c in found])),
        float(contain.mean()),
        float(contain[excludes].mean()) if excludes.any() else math.nan,
    )


def report(rng: Rng, series: int) -> Iterator[str]:
    """The lines of the output."""
    yield "Coverage of 95 % intervals, in %: mean (as independent values); median"
    yield "| windows | " + " | ".join([f"AR(1) {c}" for c in CORRELATIONS] + [*map(str, BURSTS)])
    for windows in WINDOWS:
        cells = []
        for source in (*CORRELATIONS, *BURSTS):
            x = simulated(rng, series, windows, source)
            cell = f"{100 * mean_coverage(x):.0f} ({100 * independent_coverage(x):.0f})"
            if isinstance(source, float):
                cell += f"; {100 * median_coverage(x):.0f}"
            cells.append(cell)
        yield f"| {windows} | " + " | ".join(cells)
    yield f"{BURSTS[-1]}: series without one; coverage if the autocorrelation were known"
    for windows in WINDOWS:
        none = without_burst(windows, BURSTS[-1])
        known = known_widening_coverage(rng, series, windows, BURSTS[-1])
        yield f"| {windows} | {100 * none:.0f} | {100 * known:.0f}"
    yield "Measured until narrow, at most 150 windows; targets reached at about 25, 45 and 90"
    for source in (*CORRELATIONS, BURSTS[0]):
        x = simulated(rng, series, 150, source)
        targets = [float(np.median(mean_half_width(x[:, :n], 0.975))) for n in (25, 45, 90)]
        yield f"| {source} | " + " | ".join(f"{100 * stopped_coverage(x, t):.0f}" for t in targets)
    yield "Runs together, 12 windows each of correlation 0.3: processes differ by 0, 2, 10 %"
    for runs in (2, 3, 5):
        cells = [runs_coverage(rng, series // 4, runs, b, 0.3) for b in (0.0, 0.02, 0.1)]
        yield f"| {runs} | " + " | ".join(f"{100 * c:.0f}" for c in cells)
    yield "Runs of a workload, intervals with the prior for GPUs: " + ", ".join(
        p.name for p in POPULATIONS
    )
    for runs in (1, 2, 3, 5):
        cells = [moderated_coverage(rng, series // 2, runs, p) for p in POPULATIONS]
        yield f"| {runs} | " + " | ".join(f"{100 * c:.0f}" for c in cells)
    yield "Steady series reported as drifting, in %"
    for windows in WINDOWS:
        cells = [
            false_drifts(simulated(rng, series // 4, windows, s))
            for s in (*CORRELATIONS, BURSTS[0])
        ]
        yield f"| {windows} | " + " | ".join(f"{100 * c:.1f}" for c in cells)
    stored = stored_series()
    ones = sorted(float(lag_one(one)) for one in stored)
    spreads = sorted(float(one.std()) for one in stored)
    middle, far = len(stored) // 2, 9 * len(stored) // 10
    yield (
        f"{len(stored)} series of a CPU: correlation of neighbours {ones[middle]:.2f} (median), "
        f"{ones[far]:.2f} (90 %); spread {100 * spreads[middle]:.1f} %, {100 * spreads[far]:.1f} %"
    )
    yield "Replayed: called A/A; called planted 3 %, contains it, contains it if called, in %"
    busy = [one for one in stored if one.std() >= spreads[middle]]
    calm = [one for one in stored if one.std() < spreads[middle]]
    for name, compare, own in (
        ("interleaved", interleaved, stored),
        ("interleaved, noisier half", interleaved, busy),
        ("three processes each", separate, stored),
        ("three processes each, calmer half", separate, calm),
        ("one process each", tables, stored),
        ("one process each, without noisy runs", tables, stored_series(with_noisy=False)),
    ):
        same = rates(compare, rng, own, 0.0, series // 4)
        planted = rates(compare, rng, own, PLANTED, series // 4)
        yield f"| {name} | {100 * same.called:.1f} | " + " | ".join(
            f"{100 * value:.1f}" for value in planted
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=4000, help="series of each kind")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for line in report(np.random.default_rng(args.seed), args.series):
        print(line, flush=True)


if __name__ == "__main__":
    main()
