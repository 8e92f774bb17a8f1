"""Choice among runs: the best, those that are tied with it, the cheapest of the tied, and the
Pareto front.

Trainings on one data set are chosen by accuracy, other runs of one network by throughput. A run is
tied with the best where the interval of their difference includes zero. Where the answers of both
to the same samples are stored, accuracies are compared by McNemar's exact test
(statistics/matched_pairs.py). Otherwise the interval of d = a - b is Newcombe's from Wilson's
intervals (Statistics in Medicine 17, 1998, method 10),

    d - √((a - a_low)² + (b_high - b)²)   to   d + √((a_high - a)² + (b - b_low)²)

for samples of their own; both scored the same ones, so it is rather too wide. Of throughputs it is
that of `cubemesh compare`. As the best was chosen after looking, every interval is corrected for
all pairs of the runs (Bonferroni): among equal runs all are tied in 95 % of the cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from cubemesh import networks
from cubemesh.errors import CubemeshError
from cubemesh.schema import NetworkWork, RunRecord, Train
from cubemesh.schema.comparison import Ratio
from cubemesh.statistics.matched_pairs import MatchedPairs
from cubemesh.training.scored_samples import right_samples

Ratios = Callable[[RunRecord, Sequence[RunRecord]], Sequence[Ratio | None]]
"""Each run's throughput over that of the first; None where it is not comparable."""
_LEVEL = 0.05
BEST, TIED, UNDECIDED, WORSE = "best", "tied", "not enough data", "worse"
MCNEMAR = "McNemar's exact test, on the same samples"
NEWCOMBE = "Newcombe's interval, as if on different samples"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a run compares with the best."""

    verdict: str
    """`best`, `tied`, `worse`, or `not enough data` to say which."""
    difference: float | None
    """Of accuracies, the run's less the best's; of throughputs their ratio."""
    low: float | None
    high: float | None
    test: str = ""
    """Of accuracies: `MCNEMAR` or `NEWCOMBE`."""
    only_best: int | None = None
    """Samples that the best alone answers correctly; None where that is not known."""
    only_own: int | None = None
    """Samples that the run alone answers correctly."""
    smallest: float | None = None
    """The smallest difference of the accuracies that would have been significant."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which run to take."""

    criterion: str
    """`accuracy` or `throughput`."""
    best: str
    """The run with the highest value."""
    chosen: str
    """The cheapest of the best and those tied with it."""
    cost: str
    """What the cheapest costs least of: `energy`, `time` or `memory`; empty where none is known of
    all that are tied."""
    standings: Mapping[str, Standing]

    @property
    def tied(self) -> tuple[str, ...]:
        """The best, and the runs that are tied with it."""
        return tuple(r for r, one in self.standings.items() if one.verdict in (BEST, TIED))


@dataclass(frozen=True, kw_only=True)
class ParetoFront:
    """The runs that no other matches in all of `axes` and exceeds in one, by their values."""

    axes: tuple[str, ...]
    """Of accuracy, throughput, time, energy and size those that are known of all runs."""
    values: Mapping[str, tuple[float, ...]]
    """Run → its values, in the order of the axes."""
    front: tuple[str, ...]
    dominated: Mapping[str, str]
    """Run → one of the front that is as good in everything and better in something."""


def choose(records: Sequence[RunRecord], ratios: Ratios) -> Choice | str:
    """Which of completed runs to take; or why none can be chosen, in words."""
    done = [r for r in records if r.ok]
    if len(done) < 2:
        return "fewer than two runs completed"
    criterion = criterion_of(done)
    if criterion is None:
        return (
            "they are neither trainings scored on the same data nor runs of one network with a "
            "throughput"
        )
    name = "accuracy" if criterion == "accuracy" else "throughput_per_s"
    best = max(done, key=lambda r: r.figures[name].value)
    others = [r for r in done if r is not best]
    pairs = len(done) * (len(done) - 1) // 2
    if criterion == "accuracy":
        found = [compare_accuracy(r, best, pairs) for r in others]
    else:
        found = [_throughput(ratio, pairs) for ratio in ratios(best, others)]
    standings = {r.run_id: one for r, one in zip(others, found, strict=True)}
    own = Standing(verdict=BEST, difference=None, low=None, high=None)
    standings = {r.run_id: standings.get(r.run_id, own) for r in done}
    tied = [r for r in done if standings[r.run_id].verdict in (BEST, TIED)]
    cost, cheapest = _cheapest(tied, criterion)
    return Choice(
        criterion=criterion,
        best=best.run_id,
        chosen=(cheapest or best).run_id,
        cost=cost,
        standings=standings,
    )


def criterion_of(records: Sequence[RunRecord]) -> str | None:
    """`accuracy` of trainings that were scored on the same samples, else `throughput` of runs of
    one network; None where neither compares."""
    works = [r.spec.work for r in records]
    if all(isinstance(w, Train) for w in works) and all("accuracy" in r.figures for r in records):
        scored = {
            (w.data, w.classes, r.key.data_id, r.figures["accuracy"].n)
            for r, w in zip(records, works, strict=True)
            if isinstance(w, Train)
        }
        return "accuracy" if len(scored) == 1 else None
    named = {(w.kind, w.network) for w in works if isinstance(w, NetworkWork)}
    whole = all(isinstance(w, NetworkWork) and r.figure("throughput_per_s")
                for r, w in zip(records, works, strict=True))  # fmt: skip
    return "throughput" if whole and len(named) == 1 else None


def matched_pairs(first: RunRecord, second: RunRecord) -> MatchedPairs | None:
    """The answers of two trainings to the same samples; None where they are not stored of both, or
    the samples are others."""
    own, other = first.scored_samples, second.scored_samples
    if own is None or other is None:
        return None
    if (own.samples_id, own.count) != (other.samples_id, other.count):
        return None
    works = first.spec.work, second.spec.work
    data = {(w.data, w.classes) for w in works if isinstance(w, Train)}
    if len(data) != 1 or first.key.data_id != second.key.data_id:
        return None
    try:
        one, two = right_samples(own), right_samples(other)
    except ValueError:  # damaged
        return None
    return MatchedPairs(
        samples=own.count, lost=int((one & ~two).sum()), gained=int((two & ~one).sum())
    )


def compare_accuracy(record: RunRecord, chosen: RunRecord, pairs: int = 1) -> Standing:
    """The accuracy of a training less that of `chosen`, one of `pairs` comparisons; `WORSE` where
    it is significantly below."""
    matched = matched_pairs(chosen, record)
    if matched is not None:
        level = _LEVEL / pairs
        interval = matched.interval(level)
        return Standing(
            verdict=WORSE if matched.p_value < level and matched.difference < 0 else TIED,
            difference=matched.difference,
            low=interval.low,
            high=interval.high,
            test=MCNEMAR,
            only_best=matched.lost,
            only_own=matched.gained,
            smallest=matched.smallest(level),
        )
    own, best = record.figures["accuracy"], chosen.figures["accuracy"]
    difference = own.value - best.value
    if own.low is None or own.high is None or best.low is None or best.high is None:
        return Standing(verdict=UNDECIDED, difference=difference, low=None, high=None)
    normal = NormalDist()
    wider = normal.inv_cdf(1 - _LEVEL / 2 / pairs) / normal.inv_cdf(1 - _LEVEL / 2)
    low = difference - wider * math.hypot(own.value - own.low, best.high - best.value)
    high = difference + wider * math.hypot(own.high - own.value, best.value - best.low)
    return Standing(
        verdict=TIED if high >= 0 else WORSE,
        difference=difference,
        low=low,
        high=high,
        test=NEWCOMBE,
        smallest=high - difference if difference <= 0 else difference - low,
    )


def _throughput(ratio: Ratio | None, pairs: int) -> Standing:
    if ratio is None:
        return Standing(verdict=UNDECIDED, difference=None, low=None, high=None)
    p = ratio.p_value()
    verdict = UNDECIDED if p is None else TIED if p * pairs > _LEVEL else WORSE
    return Standing(verdict=verdict, difference=ratio.value, low=ratio.low, high=ratio.high)


def _cheapest(records: Sequence[RunRecord], criterion: str) -> tuple[str, RunRecord | None]:
    """The first cost that is known of all of them, and the run with the least."""
    if len(records) < 2:
        return "", None
    order = ("energy", "time") if criterion == "accuracy" else ("energy per sample", "memory")
    for name in order:
        known = _known(name, records)
        if known is not None:
            return name, min(records, key=lambda r: known[r.run_id])
    return "", None


def _known(name: str, records: Sequence[RunRecord]) -> dict[str, float] | None:
    """A quantity of every run; None where one of them lacks it, or was measured otherwise."""
    if name.startswith("energy"):
        covered = {f.method for r in records if (f := r.figures.get("energy_joules_per_sample"))}
        if len(covered) != 1:  # the power of a GPU's board is not that of a package
            return None
    found = {r.run_id: _QUANTITIES[name](r) for r in records}
    known = {r: v for r, v in found.items() if v is not None and math.isfinite(v)}
    return known if len(known) == len(records) else None


def _energy(record: RunRecord) -> float | None:
    """Joules of the measured steps."""
    joules = record.figure("energy_joules_per_sample")
    return None if joules is None else joules * sum(w.samples for w in record.measured)


def _time(record: RunRecord) -> float | None:
    return record.figure("wall_s") or record.elapsed_s


def _size(record: RunRecord) -> float | None:
    work = record.spec.work
    return float(_parameters(work)) if isinstance(work, NetworkWork) else None


@lru_cache(maxsize=256)
def _parameters(work: NetworkWork) -> float:
    try:
        return networks.build_for(work).parameter_count
    except CubemeshError:  # a network of another version
        return math.nan


_QUANTITIES: Mapping[str, Callable[[RunRecord], float | None]] = {
    "accuracy": lambda record: record.figure("accuracy"),
    "throughput": lambda record: record.figure("throughput_per_s"),
    "time": _time,
    "energy": _energy,
    "energy per sample": lambda record: record.figure("energy_joules_per_sample"),
    "memory": lambda record: record.figure("peak_memory_bytes"),
    "size": _size,
}
_HIGHER = frozenset({"accuracy", "throughput"})


def pareto_front(records: Sequence[RunRecord]) -> ParetoFront | None:
    """The front of completed runs that compare; None with fewer than two runs or axes."""
    done = [r for r in records if r.ok]
    criterion = criterion_of(done) if len(done) > 1 else None
    if criterion is None:
        return None
    second = ("time", "energy") if criterion == "accuracy" else ("energy per sample", "memory")
    known = {name: _known(name, done) for name in (criterion, *second, "size")}
    axes = tuple(n for n, of in known.items() if of and len(set(of.values())) > 1)
    if len(axes) < 2:
        return None
    values = {r.run_id: tuple((known[name] or {})[r.run_id] for name in axes) for r in done}
    signs = [1 if name in _HIGHER else -1 for name in axes]
    scores = {
        run: tuple(s * v for s, v in zip(signs, of, strict=True)) for run, of in values.items()
    }
    front = [run for run in scores if not any(_dominates(o, scores[run]) for o in scores.values())]
    return ParetoFront(
        axes=axes,
        values=values,
        front=tuple(front),
        dominated={
            run: next(other for other in front if _dominates(scores[other], scores[run]))
            for run in scores
            if run not in front
        },
    )


def _dominates(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first != second and all(a >= b for a, b in zip(first, second, strict=True))
