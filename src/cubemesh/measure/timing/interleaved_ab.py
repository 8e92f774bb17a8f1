"""Interleaved A/B comparison: which of two programs is faster, measured in one process.

Fresh processes differ by percents, and a machine's speed changes from minute to minute. So short
windows of the two alternate, and interference affects both alike:

    instance 1   A B B A     of each two blocks of an instance one begins with A and one with B, in
    instance 2   B A A B     random order: a speed that changes evenly over a block cancels, and so
    instance 1   B A A B     does the cost of switching between the programs
    instance 2   A B B A

A block is one observation: the mean of ln(samples/s) of its two B windows less that of its two A
windows. Equal programs in one process can still differ by a percent, by the memory addresses of
their arrays. So several instances of each side are built, each pair of them gives one value (the
mean of its blocks, trimmed by a fifth at both ends), and Student's interval over these values is
about the programs and not their memory addresses. Its variance is at least what the blocks within
instances imply. A single pair of instances has an interval over its blocks, widened for their
autocorrelation, which leaves that out; no difference is reported from it.

Nothing here depends on a framework: a side has its step, its synchronization and its clock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cubemesh.measure.log import Log
from cubemesh.measure.timing.stopping_rule import StoppingRule, confidence_of
from cubemesh.measure.timing.timer import STEADY_WINDOWS, Stopwatch, warmup_is_over
from cubemesh.measure.validity import not_steady
from cubemesh.schema.comparison import Ratio, classify_ratio
from cubemesh.schema.record import AGAINST, Window
from cubemesh.schema.spec import Budget
from cubemesh.statistics import (
    CONFIDENCE,
    is_steady,
    mean,
    mean_interval,
    median,
    t_interval,
    trimmed_mean,
)

WINDOW_S = 0.05
"""Minimum length of a window; a longer step has its own window."""
RUN_AHEAD_STEPS, RUN_AHEAD_S = 4, 0.5
"""Minimum steps of a window of a device with a queue, and the time up to which that applies: queued
steps keep it busy."""
ORDERS = ((0, 1, 1, 0), (1, 0, 0, 1))
"""Orders of the sides within a block."""
SECOND_PROGRAM = "Second program: "
"""How the cause of a warning about the other side begins."""
ALONE = (
    "only one instance of each program was built, and instances of one program can differ by a "
    "percent. Set instances=4 or more."
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side: a step that may return before the device is done, and its synchronization."""

    step: Callable[[], None]
    synchronize: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter
    samples_per_step: int = 1
    queues: bool = True
    """Whether a step may return before the device is done."""
    resume: Callable[[], None] = lambda: None
    """Called before each window, outside its time: restores process-wide settings of the
    framework."""


@dataclass(frozen=True, kw_only=True)
class InterleavedResult:
    """Result of `alternate`."""

    windows: tuple[Window, ...]
    """Measured windows in order: phase `measure` for the first side and `against` for the second,
    marked `instance-N` and `block-N`."""
    steady: bool
    """Whether the warm-up ended with steady step times."""
    started: float
    """Begin of the measured part, a reading of `time.perf_counter()`."""
    ended: float
    confidence: float = CONFIDENCE
    """Of the intervals: higher where the end depended on them."""

    @property
    def ratio(self) -> Ratio:
        """The second side's throughput over the first's."""
        return ratio_of(self.windows, self.confidence)


def alternate(
    instances: Sequence[tuple[Side, Side]], *, budget: Budget, log: Log, seed: int = 0
) -> InterleavedResult:
    """Warm all programs up, then alternate windows until each side has at least `budget.steps`
    steps, `budget.seconds` seconds and `budget.windows` windows, and every instance as many blocks
    of either order; with `budget.target_ci`, until the interval is that narrow as well, or each
    side has had `budget.max_seconds`.

    Phases, windows and warnings go to `log`. ValueError without instances.
    """
    if not instances:
        raise ValueError("at least one instance of each side is needed")
    comparison = _Comparison(instances, budget, log, random.Random(seed))
    with log.phase("warm-up"):
        steady = comparison.warm_up()
    with log.phase("measure"):
        started = time.perf_counter()
        comparison.measure()
        ended = time.perf_counter()
    return InterleavedResult(
        windows=tuple(comparison.windows),
        steady=steady,
        started=started,
        ended=ended,
        confidence=confidence_of(budget),
    )


class _Comparison:
    """State of one comparison."""

    def __init__(
        self,
        instances: Sequence[tuple[Side, Side]],
        budget: Budget,
        log: Log,
        order: random.Random,
    ) -> None:
        self._sides = instances
        self._watches = [tuple(_stopwatch(side, log) for side in pair) for pair in instances]
        self._budget, self._log, self._order = budget, log, order
        self._steps = [1, 1]
        self._blocks = self._done = 0
        self.windows: list[Window] = []

    def warm_up(self) -> bool:
        """Rounds of a window of every program, until neither side's mean step drifts over five
        rounds; whether that came within the limit of a warm-up (timer.py) of each program."""
        rounds: list[list[Window]] = [[], []]
        for instance in range(len(self._sides)):
            for side in (0, 1):
                self._window(instance, side, "warm-up", 1, ("first-step",))
        spent_s = 0.0
        while True:
            for side in (0, 1):
                found = [
                    self._window(i, side, "warm-up", self._steps[side])
                    for i in range(len(self._sides))
                ]
                spent_s += sum(w.elapsed_s for w in found) / (2 * len(found))
                rounds[side].append(_joined(found))
                self._steps[side] = self._per_window(side, rounds[side][-1].step_s)
            recent = [[w.step_s for w in side[-STEADY_WINDOWS:]] for side in rounds]
            self._log.progress("warm-up", self._done, recent[0][-1], None)
            if all(len(r) == STEADY_WINDOWS and is_steady(r) for r in recent):
                self._settle(recent)
                return True
            if warmup_is_over(len(rounds[0]), spent_s, self._budget):
                unsteady = next((s for s, r in enumerate(recent) if not is_steady(r)), 0)
                self._log.warning(not_steady(rounds[unsteady], spent_s, STEADY_WINDOWS))
                self._settle(recent)
                return False

    def _settle(self, recent: Sequence[Sequence[float]]) -> None:
        self._steps = [self._per_window(side, median(s)) for side, s in enumerate(recent)]

    def _per_window(self, side: int, step_s: float) -> int:
        return steps_per_window(step_s, self._sides[0][side].queues)

    def measure(self) -> None:
        """Blocks, two of every instance at a time."""
        confidence = confidence_of(self._budget)
        rule = StoppingRule(self._budget, lambda: ratio_of(self.windows, confidence).half_width)
        fraction = 0.0
        while fraction < 1 or rule.wants_more(len(self.windows), self._seconds(0)):
            self._two_blocks_of_each()
            fraction = min(self._fraction(side) for side in (0, 1))
            self._log.progress("measure", self._done, None, fraction)
        if (warning := rule.warning()) is not None:
            self._log.warning(warning)

    def _two_blocks_of_each(self) -> None:
        orders = [self._order.sample(ORDERS, 2) for _ in self._sides]
        for turn in (0, 1):
            for instance, order in enumerate(orders):
                marks = (f"instance-{instance}", f"block-{self._blocks}")
                self._blocks += 1
                for side in order[turn]:
                    phase = AGAINST if side else "measure"
                    steps = self._steps[side]
                    self.windows.append(self._window(instance, side, phase, steps, marks))

    def _window(
        self, instance: int, side: int, phase: str, steps: int, marks: tuple[str, ...] = ()
    ) -> Window:
        self._sides[instance][side].resume()
        self._done += steps
        return self._watches[instance][side].window(phase, steps, marks)

    def _own(self, side: int) -> list[Window]:
        return [w for w in self.windows if (w.phase == AGAINST) == bool(side)]

    def _seconds(self, side: int) -> float:
        return math.fsum(w.elapsed_s for w in self._own(side))

    def _fraction(self, side: int) -> float:
        """Fraction of the budget that a side has used."""
        own, budget = self._own(side), self._budget
        return min(
            sum(w.steps for w in own) / budget.steps,
            self._seconds(side) / budget.seconds if budget.seconds else 1.0,
            len(own) / budget.windows,
            1.0,
        )


def steps_per_window(step_s: float, queues: bool = True) -> int:
    """Steps of a window when one takes about `step_s`, on a device that `queues` steps or not."""
    queued = min(RUN_AHEAD_STEPS, math.ceil(RUN_AHEAD_S / step_s)) if queues else 1
    return max(1, math.ceil(WINDOW_S / step_s), queued)


def _stopwatch(side: Side, log: Log) -> Stopwatch:
    return Stopwatch(
        step=side.step,
        synchronize=side.synchronize,
        clock=side.clock,
        samples_per_step=side.samples_per_step,
        log=log,
    )


def _joined(windows: Sequence[Window]) -> Window:
    """Windows of several programs as one."""
    return Window(
        start_s=windows[0].start_s,
        elapsed_s=math.fsum(w.elapsed_s for w in windows),
        steps=sum(w.steps for w in windows),
        samples=sum(w.samples for w in windows),
    )


def ratio_of(windows: Iterable[Window], confidence: float = CONFIDENCE) -> Ratio:
    """Ratio of throughputs from alternating windows, by the method at the head of this file; only
    complete blocks count. ValueError without one."""
    by_instance = _block_values(windows)
    values = [trimmed_mean(blocks) for blocks in by_instance.values()]
    if not values:
        raise ValueError("no complete block of four windows")
    alone = len(values) == 1
    blocks = sum(map(len, by_instance.values()))
    interval = None
    if not alone:
        within = _variance_within(by_instance.values())
        interval = t_interval(values, confidence, least_variance=within)
    elif blocks > 1:
        interval = mean_interval(next(iter(by_instance.values())), confidence)
    return classify_ratio(
        math.exp(mean(values)),
        math.exp(interval.low) if interval else None,
        math.exp(interval.high) if interval else None,
        n=len(values),
        freedom=max(1, (blocks if alone else len(values)) - 1),
        why=ALONE if alone else "",
        method=f"{blocks} blocks of four alternating windows on {len(values)} "
        f"{'pair' if alone else 'pairs'} of instances; Student's interval "
        f"{'over the blocks' if alone else 'over the pairs'}",
    )


def _variance_within(instances: Iterable[Sequence[float]]) -> float:
    """Mean over instances of the variance of an instance's value that its blocks imply; instances
    with one block are left out."""
    known = [np.var(blocks, ddof=1) / len(blocks) for blocks in instances if len(blocks) > 1]
    return float(np.mean(known)) if known else 0.0


def _block_values(windows: Iterable[Window]) -> dict[str, list[float]]:
    """Instance → ln of the ratio of throughputs in each of its blocks."""
    blocks: dict[tuple[str, str], list[Window]] = {}
    for window in windows:
        instance, block = window.marks[:2]
        blocks.setdefault((instance, block), []).append(window)
    values: dict[str, list[float]] = {}
    for (instance, _), found in blocks.items():
        if len(found) == len(ORDERS[0]):
            first = mean([_log_rate(w) for w in found if w.phase != AGAINST])
            second = mean([_log_rate(w) for w in found if w.phase == AGAINST])
            values.setdefault(instance, []).append(second - first)
    return values


def _log_rate(window: Window) -> float:
    return math.log(window.samples / window.elapsed_s)
