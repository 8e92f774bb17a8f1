"""How long does a step take when steps follow one another as they do in training?

What is timed, from left to right; W is a window:

    first step │ warm-up: W W W W W … until the last five    │ measure: W W W … W until there are
    a W of one │ show no drift, or warmup_seconds have passed │ enough steps, seconds and windows

One window, in which the host may run ahead of the device as it does in training:

    start                                                        start + elapsed_s
      │ step · step · step · … · step · synchronize (waits once) │ log, progress · next window

Nothing is in flight at `start`, because the window before ended with a wait. Inside a window there
is nothing but the steps: no log, no clock, no wait. Throughput is samples over elapsed time and the
spread between windows gives the interval (`figures.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cubemesh.measure.figures import half_width
from cubemesh.measure.log import Log
from cubemesh.measure.timing.stopping_rule import StoppingRule
from cubemesh.measure.validity import not_steady, window_warnings
from cubemesh.schema.record import Window
from cubemesh.schema.spec import Budget
from cubemesh.statistics import is_steady

WARMUP_WINDOW_S = 0.05
"""Length of a warm-up window, where a step is shorter than that."""
STEADY_WINDOWS = 5
"""Warm-up windows that are looked at together to see whether the step time drifts."""
WINDOW_S = 0.005
"""Least length of a measured window, where the effort asks for no more: some thousand times what
reading the clock and waiting once cost."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What `measure` found. The windows' `start_s` are readings of the program's clock."""

    windows: tuple[Window, ...]
    steady: bool
    """Whether the warm-up ended because the step time had settled."""
    started: float
    """When the measured part began, a reading of `time.perf_counter()`."""
    ended: float


@dataclass(frozen=True, kw_only=True)
class Stopwatch:
    """Times groups of steps of one program and tells the log of each."""

    step: Callable[[], None]
    """Queues one step; may return before the device is done."""
    synchronize: Callable[[], None]
    clock: Callable[[], float]
    samples_per_step: int
    log: Log

    def window(self, phase: str, steps: int, marks: tuple[str, ...] = ()) -> Window:
        """Run `steps` steps and wait for them. Nothing may be in flight before."""
        step, start = self.step, self.clock()
        for _ in range(steps):
            step()
        return self._ended(phase, start, steps, marks)

    def window_lasting(self, phase: str, seconds: float) -> Window:
        """Run steps, one at least, until so many seconds have passed, and wait for them."""
        step, clock, steps = self.step, self.clock, 0
        start = clock()
        while not steps or clock() - start < seconds:
            step()
            steps += 1
        return self._ended(phase, start, steps, ())

    def _ended(self, phase: str, start: float, steps: int, marks: tuple[str, ...]) -> Window:
        self.synchronize()
        elapsed_s = self.clock() - start
        if elapsed_s <= 0:
            raise RuntimeError(f"the program's clock stood still over {steps} steps")
        samples = steps * self.samples_per_step
        self.log.window(
            phase=phase,
            start=start,
            elapsed_s=elapsed_s,
            steps=steps,
            samples=samples,
            marks=marks,
        )
        return Window(
            phase=phase,
            start_s=start,
            elapsed_s=elapsed_s,
            steps=steps,
            samples=samples,
            marks=marks,
        )


class Pace(Protocol):
    """How the ranks of a run agree on window lengths and on the end of a phase. All ranks make the
    same calls in the same order."""

    def length(self, steps: int, step_s: float) -> float:
        """The length to pass to `window` for about `steps` steps of `step_s` seconds."""

    def window(self, watch: Stopwatch, phase: str, length: float) -> Window:
        """Time one window."""

    def ends(self, phase: str, steady: bool, over: bool) -> tuple[bool, bool]:
        """(steady, over) as decided for this rank, given its own view."""


class Lockstep:
    """All ranks make the same number of steps, which rank 0 broadcasts (`Group.agree`). A length is
    a number of steps."""

    def __init__(self, agree: Callable[[Any], Any] = lambda decision: decision) -> None:
        self._agree = agree

    def length(self, steps: int, step_s: float) -> float:
        """See `Pace`."""
        return float(self._agree(steps))

    def window(self, watch: Stopwatch, phase: str, length: float) -> Window:
        """See `Pace`."""
        return watch.window(phase, int(length))

    def ends(self, phase: str, steady: bool, over: bool) -> tuple[bool, bool]:
        """See `Pace`."""
        steady, over = self._agree((steady, over))
        return steady, over


class FreeRunning:
    """Each rank makes as many steps as it can until rank 0 ends the phase, which the others poll
    after each window (`Group.told`). A length is a number of seconds."""

    def __init__(self, rank: int, told: Callable[[str, bool], bool]) -> None:
        self._first, self._told = rank == 0, told

    def length(self, steps: int, step_s: float) -> float:
        """See `Pace`."""
        return steps * step_s

    def window(self, watch: Stopwatch, phase: str, length: float) -> Window:
        """See `Pace`."""
        return watch.window_lasting(phase, length)

    def ends(self, phase: str, steady: bool, over: bool) -> tuple[bool, bool]:
        """See `Pace`. Ranks other than 0 count as steady."""
        return steady or not self._first, self._told(phase, over)


def measure(
    step: Callable[[], None],
    synchronize: Callable[[], None],
    clock: Callable[[], float],
    *,
    samples_per_step: int,
    budget: Budget,
    log: Log,
    beside: Callable[[Window], None] | None = None,
    pace: Pace | None = None,
) -> Measured:
    """Warm up, then time windows of `step` until there are at least `effort.steps` steps,
    `effort.seconds` seconds and `effort.windows` windows, and the interval of the throughput is as
    narrow as `effort.target_ci` asks, or `effort.max_seconds` have been measured.

    The phases "warm-up" and "measure", every window, and warnings where the figures deserve doubt
    go to `log`. `beside` is called after each measured window, outside its time. With several
    ranks, `pace` says how they keep together. RuntimeError where the clock does not advance.
    """
    pace = pace or Lockstep()
    watch = Stopwatch(
        step=step,
        synchronize=synchronize,
        clock=clock,
        samples_per_step=samples_per_step,
        log=log,
    )
    synchronize()
    with log.phase("warm-up"):
        warm, steady = _warm_up(watch, budget, pace)
    if not steady:
        log.warning(not_steady(warm[-STEADY_WINDOWS:], budget.warmup_seconds, STEADY_WINDOWS))
    with log.phase("measure"):
        started = time.perf_counter()
        windows = _measure(watch, budget, pace, warm[-1].step_s, beside)
        ended = time.perf_counter()
    for warning in window_warnings(windows):
        log.warning(warning)
    return Measured(windows=windows, steady=steady, started=started, ended=ended)


def steps_per_window(budget: Budget, step_s: float) -> int:
    """Steps of each measured window when a step takes about `step_s`.

    All the steps that the effort asks for, shared out over its windows and rounded down: more
    windows may come of it, never much more time. A step of seconds has a window of its own.
    """
    wanted = max(
        budget.steps,
        math.ceil(budget.seconds / step_s),
        math.ceil(WINDOW_S / step_s) * budget.windows,
    )
    return max(1, wanted // budget.windows)


def _warm_up(watch: Stopwatch, budget: Budget, pace: Pace) -> tuple[list[Window], bool]:
    """Windows of the warm-up after the first step, and whether the step time settled in them.

    The first step stands alone and outside the budget: it may compile, and cannot be cut short.
    """
    watch.window("warm-up", 1, ("first-step",))
    start = watch.clock()
    windows: list[Window] = []
    done, length = 1, pace.length(1, 0.0)
    while True:
        window = pace.window(watch, "warm-up", length)
        windows.append(window)
        done += window.steps
        watch.log.progress("warm-up", done, window.step_s, None)
        recent = [w.step_s for w in windows[-STEADY_WINDOWS:]]
        steady = len(recent) == STEADY_WINDOWS and is_steady(recent)
        over = steady or watch.clock() - start >= budget.warmup_seconds
        steady, over = pace.ends("warm-up", steady, over)
        if over:
            return windows, steady
        length = pace.length(max(1, round(WARMUP_WINDOW_S / window.step_s)), window.step_s)


def _measure(
    watch: Stopwatch,
    budget: Budget,
    pace: Pace,
    step_s: float,
    beside: Callable[[Window], None] | None,
) -> tuple[Window, ...]:
    length = pace.length(steps_per_window(budget, step_s), step_s)
    windows: list[Window] = []
    done, elapsed_s, over = 0, 0.0, False
    patience = StoppingRule(budget, lambda: half_width(windows))
    while not over:
        window = pace.window(watch, "measure", length)
        windows.append(window)
        if beside is not None:
            beside(window)
        done += window.steps
        elapsed_s += window.elapsed_s
        fraction = min(
            done / budget.steps,
            elapsed_s / budget.seconds if budget.seconds else 1.0,
            len(windows) / budget.windows,
            1.0,
        )
        watch.log.progress("measure", done, window.step_s, fraction)
        over = fraction >= 1 and not patience.wants_more(len(windows), elapsed_s)
        _, over = pace.ends("measure", True, over)
    if (warning := patience.warning()) is not None:
        watch.log.warning(warning)
    return tuple(windows)
