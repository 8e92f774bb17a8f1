"""In which order is the fastest setting looked for, and what decides?

Coordinate descent: one lever after the other (tune_levers.py) is turned from the fastest setting so
far, each option measured once in a fresh process, of a GPU's first pass only what promises most;
again over all levers, until a pass that held nothing back changes nothing. Fresh processes differ
by more than their windows, so options within `NEAR` of the fastest are measured again by turns, and
the slower half is dropped after each round (successive halving; Jamieson and Talwalkar, AISTATS
2016). A lever stays turned where it gained `LEAST` at least. At the end the nearest of all settings
are halved once more, and the winner alternates with the stock setting in one process, where the two
can share one.

A `Search` decides from records alone. Whoever drives it may answer a trial with None, for want of
time; then the trial counts as untried and the search goes on with the next. Driven again with the
records of before, it comes to the same end: so an answer is computed from a store.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.tune.admission import Means, departs, judge, means_of
from cubemesh.experiments.tune.search_space import (
    BATCH_SIZE,
    KNOBS,
    STOCK_EXCHANGE,
    Configuration,
    Options,
    SearchRequest,
    SearchSpace,
    device_of,
    loss_scale_of,
    prefers_nhwc,
    usual_precisions,
    usual_strategies,
    usual_threads,
)
from cubemesh.frameworks import entry
from cubemesh.schema import RunRecord, Status
from cubemesh.schema.spec import Layout
from cubemesh.store.windows import run_windows

NEAR = 0.15
"""A setting this much slower than the fastest may yet be the faster one: so far do fresh processes
differ."""
NEAR_AT_THE_END = 0.08
"""The same for settings that were measured several times."""
LEAST = 0.01
"""A gain of less leaves a lever where it is."""
ROUNDS, LAST_ROUNDS, FINALISTS = 2, 3, 4
PASSES = 3
FAR = 0.5
"""A framework that is not half as fast as the best is not tried again in later passes."""
SEEDS = 3
"""Runs of the stock setting, from other seeds, behind the run-to-run spread."""
UNKNOWN_SPREAD = "no time was left to see how far stock runs are from one another"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run that the search asks for."""

    configuration: Configuration
    number: int = 0
    """How often the configuration was measured before."""
    seed: int = 0
    """What is added to the seed: other than 0, the run is for its losses alone."""
    against: Configuration | None = None
    """What alternates with it."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step up: the lever that was turned, from where, to where."""

    knob: str
    before: Configuration
    after: Configuration


Walk = Generator[Trial, RunRecord | None, None]


@dataclass
class Search:
    """A search under way, or done; see above."""

    request: SearchRequest
    stock: Configuration | None = None
    """The first that ran: PyTorch's defaults, where PyTorch is among the frameworks."""
    best: Configuration | None = None
    steps_taken: list[Step] = field(default_factory=list)
    tried: dict[Configuration, list[RunRecord]] = field(default_factory=dict)
    refused: dict[Configuration, str] = field(default_factory=dict)
    """Those whose loss curve departs, and how."""
    untried: dict[Configuration, None] = field(default_factory=dict)
    alternated: RunRecord | None = None
    """The best against the stock setting in one process."""
    seeds: list[RunRecord] = field(default_factory=list)
    """Runs of the stock setting from other seeds."""
    _judged: set[Configuration] = field(default_factory=set)
    _left: set[str] = field(default_factory=set)
    """Frameworks that are not tried again."""
    _declined: set[object] = field(default_factory=set)

    @property
    def cut_short(self) -> bool:
        """Whether anything that was asked for was not measured."""
        return bool(self._declined)

    def group(self, configuration: Configuration) -> Group[Configuration]:
        """All that was measured of a configuration that was tried."""
        return Group(configuration, tuple(self.tried[configuration]))

    def speed(self, configuration: Configuration) -> float | None:
        """Samples per second over all its runs; None where none was good."""
        windows = [w for r in self.tried.get(configuration, ()) if r.ok for w in run_windows(r)]
        if not windows:
            return None
        return sum(w.samples for w in windows) / sum(w.elapsed_s for w in windows)

    def walk(self) -> Walk:
        """Ask for trials until nothing is left to try."""
        yield from self._find_stock()
        if self.stock is None:
            return
        space = self._space()
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
        asked = self.request
        precision = asked.precisions[0] if asked.precisions else "fp32"
        for name in asked.frameworks:
            own: Layout = "nhwc" if prefers_nhwc(name, asked.layouts) else asked.layouts[0]
            configuration = Configuration(
                framework=name,
                precision=precision,
                loss_scale=loss_scale_of(name, precision),
                layout=own,
                sync=(*asked.strategies, STOCK_EXCHANGE)[0] if asked.devices > 1 else "none",
                batch_per_device=asked.batch_per_device,
            )
            yield from self._measure(configuration)
            if self.speed(configuration) is not None:
                self.stock = self.best = configuration
                self._judged.add(configuration)
                return

    def _space(self) -> SearchSpace:
        assert self.stock is not None
        asked = self.request
        on_gpu, usable = device_of(self.tried[self.stock][0])
        set_already = on_gpu or asked.devices > 1  # a device of several has its own cores
        return SearchSpace(
            frameworks=asked.frameworks,
            precisions=asked.precisions or usual_precisions(on_gpu),
            layouts=asked.layouts,
            compile_by=asked.compile_by,
            strategies=(asked.strategies or usual_strategies(on_gpu)) if asked.devices > 1 else (),
            buckets=asked.buckets,
            threads=() if set_already else asked.threads or usual_threads(usable),
            pinnings=asked.pinnings,
            batch_sizes=asked.batch_sizes,
            on_gpu=on_gpu,
            usable_threads=usable,
        )

    def _turn(self, knob: str, offers: Options, space: SearchSpace) -> Walk:
        """Measure what a lever offers, and leave it at the fastest that learns as stock does."""
        now = self._now()
        options = [
            option
            for option in dict.fromkeys(offers(now, space))
            if option != now and option.framework not in self._left
        ]
        for option in options:
            if option not in self.tried:
                yield from self._measure(option)
            self._leave(option, now)
        yield from self._halve([now, *options], NEAR, ROUNDS, knob)

    def _leave(self, option: Configuration, now: Configuration) -> None:
        """No more of a framework that is not there, or far behind."""
        records, mine, its = self.tried.get(option), self.speed(now), self.speed(option)
        if not records or option.framework == now.framework:
            return
        absent = records[0].outcome.status is Status.NOT_INSTALLED
        if absent or (mine and its and its < FAR * mine):
            self._left.add(option.framework)

    def _now(self) -> Configuration:
        assert self.best is not None, "stock has run"
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
        """A run, or None; what was answered with None is not asked for again, so that the same
        records lead the same way."""
        kind = (trial.configuration, trial.seed > 0, trial.against)
        record = None if kind in self._declined else (yield trial)
        if record is None:
            self._declined.add(kind)
        return record

    def _halve(
        self, contenders: Sequence[Configuration], near: float, rounds: int, knob: str
    ) -> Walk:
        """Compare the nearest of `contenders` again and again, and take the fastest."""
        alive = yield from self._nearest(contenders, near)
        for number in range(rounds):
            if len(alive) < 2:
                break
            for configuration in alive:
                yield from self._measure(configuration)
            kept = max(2, -(-len(alive) // 2)) if number + 1 < rounds else len(alive)
            alive = (yield from self._nearest(alive, near))[:kept]
        if alive:
            self._climb(alive[0], knob)

    def _nearest(
        self, contenders: Sequence[Configuration], near: float
    ) -> Generator[Trial, RunRecord | None, list[Configuration]]:
        """Those within `near` of the fastest, the fastest first; what does not learn as the stock
        setting does is refused on the way."""
        rates = {c: s for c in contenders if (s := self.speed(c)) and c not in self.refused}
        for configuration in sorted(rates, key=lambda c: -rates[c]):
            if rates[configuration] < (1 - near) * max(rates.values()):
                break
            yield from self._judge(configuration)
            if configuration in self.refused:
                del rates[configuration]
        least = (1 - near) * max(rates.values(), default=0.0)
        return sorted((c for c in rates if rates[c] >= least), key=lambda c: -rates[c])

    def _judge(self, configuration: Configuration) -> Walk:
        """Hold its losses against the stock setting's, once. With another minibatch there is
        nothing to hold them against; whoever let it vary has said that they may differ."""
        assert self.stock is not None
        if configuration in self._judged:
            return
        self._judged.add(configuration)
        if configuration.batch_per_device != self.stock.batch_per_device:
            return
        stock = means_of(self.tried[self.stock][0])
        found = means_of(self.tried[configuration][0])
        fewer = not configuration.counts_as(self.stock)
        judged = judge(stock, found, (), fewer_digits=fewer)
        if stock is not None and found is not None and departs(stock, found):
            runs = yield from self._spread(stock)
            judged = judge(stock, found, runs, fewer_digits=fewer)
            if len(runs) < SEEDS:
                judged = replace(judged, why=f"{judged.why}; {UNKNOWN_SPREAD}")
        if not judged.admitted:
            self.refused[configuration] = judged.why

    def _spread(self, stock: Means) -> Generator[Trial, RunRecord | None, list[Means]]:
        """The stock setting's losses from several seeds, `stock` the first."""
        assert self.stock is not None
        for seed in range(1 + len(self.seeds), SEEDS):
            record = yield from self._ask(Trial(configuration=self.stock, seed=seed))
            if record is None:
                break
            self.seeds.append(record)
        found = [means_of(record) for record in self.seeds]
        return [stock, *(means for means in found if means is not None)]

    def _climb(self, winner: Configuration, knob: str) -> None:
        now = self._now()
        mine, its = self.speed(now), self.speed(winner)
        better = its is not None and (mine is None or its >= (1 + LEAST) * mine)
        if winner != now and better:
            self.steps_taken.append(Step(knob=knob, before=now, after=winner))
            self.best = winner

    def _settle(self) -> Walk:
        """The nearest of all that were measured, once more."""
        speeds = {c: s for c in self.tried if (s := self.speed(c)) and c not in self.refused}
        ranked = sorted(speeds, key=lambda c: -speeds[c])
        yield from self._halve(
            ranked[:FINALISTS], NEAR_AT_THE_END, LAST_ROUNDS, "the nearest compared again"
        )

    def _alternate(self) -> Walk:
        """The best against stock in one process, where one process can hold both."""
        best, stock = self.best, self.stock
        assert best is not None
        assert stock is not None
        shared = entry(best.framework).requires == entry(stock.framework).requires
        bound = best.pinning != stock.pinning  # the process is, for both of them
        if best == stock or not shared or bound or self.request.devices > 1:
            return
        trial = Trial(configuration=stock, number=len(self.tried[stock]), against=best)
        self.alternated = yield from self._ask(trial)
