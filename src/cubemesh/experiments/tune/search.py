"""Search algorithm of `tune`: coordinate descent with successive halving.

One knob after the other (search_space.py) is varied from the fastest configuration so far. Each
option is measured once in a fresh process; the first pass on a GPU only tries the most promising.
Passes repeat until a complete pass changes nothing. Fresh processes differ by more than their
windows, so options within `NEAR` of the fastest are measured again, interleaved, and the slower
half is dropped after each round (successive halving; Jamieson and Talwalkar, AISTATS 2016). A
change is accepted if it gains at least `MIN_GAIN`. At the end the fastest configurations are halved
once more, and the best is compared with the baseline in one process, interleaved, where the two can
share one.

A `Search` decides from records only. A trial may be answered with None when there is no time; it
then counts as untried, and the search continues. The same records lead to the same result, so the
answer is computed from the store.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.tune.convergence_check import (
    Admission,
    Means,
    admission,
    diverges,
    means_of,
)
from cubemesh.experiments.tune.search_space import (
    BATCH_SIZE,
    KNOBS,
    STOCK_STRATEGY,
    Configuration,
    Options,
    SearchSpace,
    loss_scale_of,
    prefers_nhwc,
)
from cubemesh.frameworks import entry
from cubemesh.schema import RunRecord, Status
from cubemesh.schema.spec import Layout
from cubemesh.store.run_statistics import run_windows

NEAR = 0.15
"""How much slower than the fastest a configuration may be to be measured again: fresh processes
differ by as much."""
NEAR_AT_THE_END = 0.08
"""The same for configurations that were measured several times."""
MIN_GAIN = 0.01
"""Smallest gain for which a knob is changed."""
ROUNDS, LAST_ROUNDS, FINALISTS = 2, 3, 4
PASSES = 3
FAR = 0.5
"""Frameworks slower than this fraction of the best are not tried again in later passes."""
SEEDS = 3
"""Baseline runs with different seeds for the run-to-run spread."""
UNKNOWN_SPREAD = "no time was left to measure the run-to-run spread of the baseline"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run that the search requests."""

    configuration: Configuration
    number: int = 0
    """Number of earlier runs of the configuration."""
    seed: int = 0
    """Added to the seed; if not 0, only the losses of the run are used."""
    against: Configuration | None = None
    """Configuration interleaved with it in one process."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """An accepted change of one knob."""

    knob: str
    before: Configuration
    after: Configuration


Walk = Generator[Trial, RunRecord | None, None]


@dataclass
class Search:
    """State of a search; see the module."""

    request: SearchSpace
    stock: Configuration | None = None
    """The baseline: the first configuration that ran."""
    best: Configuration | None = None
    steps_taken: list[Step] = field(default_factory=list)
    tried: dict[Configuration, list[RunRecord]] = field(default_factory=dict)
    rejected: dict[Configuration, Admission] = field(default_factory=dict)
    """Configurations whose losses do not agree with the baseline's."""
    untried: dict[Configuration, None] = field(default_factory=dict)
    alternated: RunRecord | None = None
    """The best and the baseline, interleaved in one process."""
    seeds: list[RunRecord] = field(default_factory=list)
    """Baseline runs with other seeds."""
    _checked: set[Configuration] = field(default_factory=set)
    _dropped: set[str] = field(default_factory=set)
    """Frameworks not tried again."""
    _declined: set[object] = field(default_factory=set)

    @property
    def cut_short(self) -> bool:
        """Whether a requested trial was not measured."""
        return bool(self._declined)

    def group(self, configuration: Configuration) -> Group[Configuration]:
        """All runs of a configuration that was tried."""
        return Group(configuration, tuple(self.tried[configuration]))

    def speed(self, configuration: Configuration) -> float | None:
        """Samples/s over all its runs; None if no run succeeded."""
        windows = [w for r in self.tried.get(configuration, ()) if r.ok for w in run_windows(r)]
        if not windows:
            return None
        return sum(w.samples for w in windows) / sum(w.elapsed_s for w in windows)

    def walk(self) -> Walk:
        """Request trials until nothing is left to try."""
        yield from self._find_stock()
        if self.stock is None:
            return
        space = self.request.on_device(self.tried[self.stock][0])
        for number in range(PASSES):
            before, held_back = self.best, False
            for knob in KNOBS:
                offers, now = knob.options, self._now()
                if number == 0 and knob.first is not None:
                    offers = knob.first
                    held_back |= len(offers(now, space)) < len(knob.options(now, space))
                yield from self._turn(knob.name, offers, space)
            if self.best == before and not held_back:
                break
        yield from self._settle()
        if space.batch_sizes:
            yield from self._turn(BATCH_SIZE.name, BATCH_SIZE.options, space)
        yield from self._alternate()

    def _find_stock(self) -> Walk:
        request = self.request
        precision = request.precisions[0] if request.precisions else "fp32"
        for name in request.frameworks:
            own: Layout = "nhwc" if prefers_nhwc(name, request.layouts) else request.layouts[0]
            configuration = Configuration(
                framework=name,
                precision=precision,
                loss_scale=loss_scale_of(name, precision),
                layout=own,
                sync=(*request.strategies, STOCK_STRATEGY)[0] if request.devices > 1 else "none",
                batch_per_device=request.batch_per_device,
            )
            yield from self._measure(configuration)
            if self.speed(configuration) is not None:
                self.stock = self.best = configuration
                self._checked.add(configuration)
                return

    def _turn(self, knob: str, offers: Options, space: SearchSpace) -> Walk:
        """Measure the options of a knob, and set it to the fastest admitted one."""
        now = self._now()
        options = [
            option
            for option in dict.fromkeys(offers(now, space))
            if option != now and option.framework not in self._dropped
        ]
        for option in options:
            if option not in self.tried:
                yield from self._measure(option)
            self._drop(option, now)
        yield from self._halve([now, *options], NEAR, ROUNDS, knob)

    def _drop(self, option: Configuration, now: Configuration) -> None:
        """Drop a framework that is not installed, or far slower."""
        records, mine, its = self.tried.get(option), self.speed(now), self.speed(option)
        if not records or option.framework == now.framework:
            return
        missing = records[0].outcome.status is Status.NOT_INSTALLED
        if missing or (mine and its and its < FAR * mine):
            self._dropped.add(option.framework)

    def _now(self) -> Configuration:
        assert self.best is not None, "the baseline has run"
        return self.best

    def _measure(self, configuration: Configuration) -> Walk:
        """One more run of a configuration."""
        records = self.tried.get(configuration, [])
        record = yield from self._ask(Trial(configuration=configuration, number=len(records)))
        if record is not None:
            self.tried.setdefault(configuration, []).append(record)
        elif not records:
            self.untried[configuration] = None

    def _ask(self, trial: Trial) -> Generator[Trial, RunRecord | None, RunRecord | None]:
        """A run, or None; a trial answered with None is not requested again, so that the same
        records lead to the same result."""
        kind = (trial.configuration, trial.seed > 0, trial.against)
        record = None if kind in self._declined else (yield trial)
        if record is None:
            self._declined.add(kind)
        return record

    def _halve(
        self, contenders: Sequence[Configuration], near: float, rounds: int, knob: str
    ) -> Walk:
        """Measure the fastest of `contenders` again in rounds, and take the fastest."""
        alive = yield from self._nearest(contenders, near)
        for number in range(rounds):
            if len(alive) < 2:
                break
            for configuration in alive:
                yield from self._measure(configuration)
            half = max(2, -(-len(alive) // 2)) if number + 1 < rounds else len(alive)
            alive = (yield from self._nearest(alive, near))[:half]
        if alive:
            self._accept(alive[0], knob)

    def _nearest(
        self, contenders: Sequence[Configuration], near: float
    ) -> Generator[Trial, RunRecord | None, list[Configuration]]:
        """Configurations within `near` of the fastest, fastest first; those whose losses diverge
        are rejected on the way."""
        rates = {c: s for c in contenders if (s := self.speed(c)) and c not in self.rejected}
        for configuration in sorted(rates, key=lambda c: -rates[c]):
            if rates[configuration] < (1 - near) * max(rates.values()):
                break
            yield from self._check(configuration)
            if configuration in self.rejected:
                del rates[configuration]
        least = (1 - near) * max(rates.values(), default=0.0)
        return sorted((c for c in rates if rates[c] >= least), key=lambda c: -rates[c])

    def _check(self, configuration: Configuration) -> Walk:
        """Compare its losses with the baseline's, once. Another batch size is another training, and
        is not compared."""
        assert self.stock is not None
        if configuration in self._checked:
            return
        self._checked.add(configuration)
        if configuration.batch_per_device != self.stock.batch_per_device:
            return
        stock = means_of(self.tried[self.stock][0])
        found = means_of(self.tried[configuration][0])
        lower = not configuration.same_precision(self.stock)
        result = admission(stock, found, (), lower_precision=lower)
        if stock is not None and found is not None and diverges(stock, found):
            runs = yield from self._spread(stock)
            result = admission(stock, found, runs, lower_precision=lower)
            if result.code and len(runs) < SEEDS:
                result = replace(
                    result, code="unknown-spread", why=f"{result.why}; {UNKNOWN_SPREAD}"
                )
        if not result.admitted:
            self.rejected[configuration] = result

    def _spread(self, stock: Means) -> Generator[Trial, RunRecord | None, list[Means]]:
        """Losses of baseline runs with several seeds, `stock` the first."""
        assert self.stock is not None
        for seed in range(1 + len(self.seeds), SEEDS):
            record = yield from self._ask(Trial(configuration=self.stock, seed=seed))
            if record is None:
                break
            self.seeds.append(record)
        found = [means_of(record) for record in self.seeds]
        return [stock, *(means for means in found if means is not None)]

    def _accept(self, fastest: Configuration, knob: str) -> None:
        now = self._now()
        mine, its = self.speed(now), self.speed(fastest)
        better = its is not None and (mine is None or its >= (1 + MIN_GAIN) * mine)
        if fastest != now and better:
            self.steps_taken.append(Step(knob=knob, before=now, after=fastest))
            self.best = fastest

    def _settle(self) -> Walk:
        """Measure the fastest of all once more."""
        speeds = {c: s for c in self.tried if (s := self.speed(c)) and c not in self.rejected}
        ranked = sorted(speeds, key=lambda c: -speeds[c])
        yield from self._halve(ranked[:FINALISTS], NEAR_AT_THE_END, LAST_ROUNDS, "final comparison")

    def _alternate(self) -> Walk:
        """Interleave the best with the baseline, where one process can hold both."""
        best, stock = self.best, self.stock
        assert best is not None
        assert stock is not None
        shared = entry(best.framework).shares_process(entry(stock.framework))
        bound = best.pinning != stock.pinning  # pinning is per process
        if best == stock or not shared or bound or self.request.devices > 1:
            return
        trial = Trial(configuration=stock, number=len(self.tried[stock]), against=best)
        self.alternated = yield from self._ask(trial)
