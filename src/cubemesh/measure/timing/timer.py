"""Timer: warm-up and measured windows of consecutive steps, as in training.

What is timed, from left to right; W is a window:

    first step │ warm-up: W W W W W … until the last five    │ measure: W W W … W until there are
    a W of one │ show no drift, or until the limit           │ enough steps, seconds and windows,
               │                                             │ or exactly the steps of the budget

The limit is `warmup_seconds` once there are five windows, and `EXTENSION` times that before: long
steps get the windows that the test of drift needs.

One window, in which the host may run ahead of the device as it does in training:

    start                                                        start + elapsed_s
      │ step · step · step · … · step · synchronize (waits once) │ log, progress · next window

Nothing is in flight at `start`, because the previous window ended with a wait. A window contains
only steps: no log, no clock, no wait. Throughput is samples over elapsed time and the spread
between windows gives the interval (`figures.py`).

Ranks that communicate in every step run in lockstep; ranks that do not wait for one another must
not be made to by measuring them:

    lockstep       rank 0   ├ 20 steps ──┤ more? ├ 20 steps ──┤ enough   rank 0 decides for all
                   rank 1   ├ 20 steps ───┤      ├ 20 steps ─┤
    free-running   rank 0   ├ 50 ms ┤├ 50 ms ┤├ 50 ms ┤ enough           each rank has its own
                   rank 1   ├ 50 ms, slow ┤├ 50 ms, slow ┤               windows until rank 0 ends
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cubemesh.measure.figures import half_width
from cubemesh.measure.log import Log
from cubemesh.measure.timing.stopping_rule import StoppingRule, confidence_of
from cubemesh.measure.validity import not_steady, window_warnings
from cubemesh.schema.record import Window
from cubemesh.schema.spec import Budget
from cubemesh.statistics import is_steady

WARMUP_WINDOW_S = 0.05
"""Length of a warm-up window, unless a step is longer."""
STEADY_WINDOWS = 5
"""Warm-up windows over which the step time must show no drift."""
EXTENSION = 3
"""How many times `warmup_seconds` a warm-up may last that has fewer windows than that."""
WINDOW_S = 0.005
"""Minimum length of a measured window: about a thousand times the cost of synchronizing and reading
the clock."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Result of `measure`. The windows' `start_s` are readings of the program's clock."""

    windows: tuple[Window, ...]
    steady: bool
    """Whether the warm-up ended with a steady step time."""
    started: float
    """Begin of the measured part, a reading of `time.perf_counter()`."""
    ended: float


@dataclass(frozen=True, kw_only=True)
class Stopwatch:
    """Times windows of steps of one program and logs each."""

    step: Callable[[], None]
    """Queues one step; may return before the device is done."""
    synchronize: Callable[[], None]
    clock: Callable[[], float]
    samples_per_step: int
    log: Log
    waited: Callable[[], float | None] | None = None
    """Takes the seconds for which this rank waited for others since the last call."""

    def window(self, phase: str, steps: int, marks: tuple[str, ...] = ()) -> Window:
        """Run `steps` steps and wait for them. Nothing may be in flight before."""
        step, start = self.step, self._begun()
        for _ in range(steps):
            step()
        return self._ended(phase, start, steps, marks)

    def window_lasting(self, phase: str, seconds: float) -> Window:
        """Run steps, at least one, until `seconds` have passed, and wait for them."""
        step, clock, steps = self.step, self.clock, 0
        start = self._begun()
        while not steps or clock() - start < seconds:
            step()
            steps += 1
        return self._ended(phase, start, steps, ())

    def _begun(self) -> float:
        """The clock at the begin of a window, to which no earlier wait belongs."""
        if self.waited is not None:
            self.waited()
        return self.clock()

    def _ended(self, phase: str, start: float, steps: int, marks: tuple[str, ...]) -> Window:
        self.synchronize()
        elapsed_s = self.clock() - start
        if elapsed_s <= 0:
            raise RuntimeError(f"the program's clock stood still over {steps} steps")
        window = Window(
            phase=phase,
            start_s=start,
            elapsed_s=elapsed_s,
            steps=steps,
            samples=steps * self.samples_per_step,
            marks=marks,
            waited_s=None if self.waited is None else self.waited(),
        )
        self.log.window(window)
        return window


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
    after each window (`Group.poll_flag`). A length is a number of seconds."""

    def __init__(self, rank: int, poll_flag: Callable[[str, bool], bool]) -> None:
        self._first, self._poll_flag = rank == 0, poll_flag

    def length(self, steps: int, step_s: float) -> float:
        """See `Pace`."""
        return steps * step_s

    def window(self, watch: Stopwatch, phase: str, length: float) -> Window:
        """See `Pace`."""
        return watch.window_lasting(phase, length)

    def ends(self, phase: str, steady: bool, over: bool) -> tuple[bool, bool]:
        """See `Pace`. Ranks other than 0 count as steady."""
        return steady or not self._first, self._poll_flag(phase, over)


def measure(
    step: Callable[[], None],
    synchronize: Callable[[], None],
    clock: Callable[[], float],
    *,
    samples_per_step: int,
    budget: Budget,
    log: Log,
    after_window: Callable[[Window], None] | None = None,
    pace: Pace | None = None,
    waited: Callable[[], float | None] | None = None,
) -> Measured:
    """Warm up, then time windows of `step` until there are at least `budget.steps` steps,
    `budget.seconds` seconds and `budget.windows` windows, and the throughput's interval is within
    `budget.target_ci` or `budget.max_seconds` have been measured. With `budget.exact_steps` there
    are exactly `budget.steps` steps.

    The phases "warm-up" and "measure", every window and warnings about them go to `log`.
    `after_window` is called after each measured window, outside its time. `pace` is for several
    ranks: lockstep or free-running; `waited` takes the seconds that this one waited for the others.
    RuntimeError where the clock does not advance.
    """
    pace = pace or Lockstep()
    watch = Stopwatch(
        step=step,
        synchronize=synchronize,
        clock=clock,
        samples_per_step=samples_per_step,
        log=log,
        waited=waited,
    )
    synchronize()
    with log.phase("warm-up"):
        warm, steady = _warm_up(watch, budget, pace)
    if not steady:
        log.warning(not_steady(warm, math.fsum(w.elapsed_s for w in warm), STEADY_WINDOWS))
    with log.phase("measure"):
        started = time.perf_counter()
        phase = _measure_exactly if budget.exact_steps else _measure
        windows = phase(watch, budget, pace, warm[-1].step_s, after_window)
        ended = time.perf_counter()
    for warning in window_warnings(windows):
        log.warning(warning)
    return Measured(windows=windows, steady=steady, started=started, ended=ended)


def steps_per_window(budget: Budget, step_s: float) -> int:
    """Steps of each measured window when a step takes about `step_s`.

    The steps of the budget divided over its windows and rounded down: there may be more windows,
    never much more time. A step of several seconds has a window of its own.
    """
    wanted = max(
        budget.steps,
        math.ceil(budget.seconds / step_s),
        math.ceil(WINDOW_S / step_s) * budget.windows,
    )
    return max(1, wanted // budget.windows)


def warmup_is_over(windows: int, spent_s: float, budget: Budget) -> bool:
    """Whether a warm-up that is not steady ends after `windows` that took `spent_s`."""
    extension = 1 if windows >= STEADY_WINDOWS else EXTENSION
    return spent_s >= extension * budget.warmup_seconds


def _warm_up(watch: Stopwatch, budget: Budget, pace: Pace) -> tuple[list[Window], bool]:
    """Windows of the warm-up after the first step, and whether the step time became steady.

    The first step has its own window outside the budget: it may compile.
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
        spent_s = watch.clock() - start
        over = steady or warmup_is_over(len(windows), spent_s, budget)
        steady, over = pace.ends("warm-up", steady, over)
        if over:
            return windows, steady
        length = pace.length(max(1, round(WARMUP_WINDOW_S / window.step_s)), window.step_s)


def _measure(
    watch: Stopwatch,
    budget: Budget,
    pace: Pace,
    step_s: float,
    after_window: Callable[[Window], None] | None,
) -> tuple[Window, ...]:
    length = pace.length(steps_per_window(budget, step_s), step_s)
    windows: list[Window] = []
    done, elapsed_s, over = 0, 0.0, False
    rule = StoppingRule(budget, lambda: half_width(windows, confidence_of(budget)))
    while not over:
        window = pace.window(watch, "measure", length)
        windows.append(window)
        if after_window is not None:
            after_window(window)
        done += window.steps
        elapsed_s += window.elapsed_s
        fraction = min(
            done / budget.steps,
            elapsed_s / budget.seconds if budget.seconds else 1.0,
            len(windows) / budget.windows,
            1.0,
        )
        watch.log.progress("measure", done, window.step_s, fraction)
        over = fraction >= 1 and not rule.wants_more(len(windows), elapsed_s)
        _, over = pace.ends("measure", True, over)
    if (warning := rule.warning()) is not None:
        watch.log.warning(warning)
    return tuple(windows)


def _measure_exactly(
    watch: Stopwatch,
    budget: Budget,
    pace: Pace,
    step_s: float,
    after_window: Callable[[Window], None] | None,
) -> tuple[Window, ...]:
    """The steps of the budget, divided over its windows as evenly as whole steps allow."""
    count = min(budget.windows, budget.steps)
    windows: list[Window] = []
    for number in range(count):
        done, more = (budget.steps * n // count for n in (number, number + 1))
        window = pace.window(watch, "measure", pace.length(more - done, step_s))
        windows.append(window)
        if after_window is not None:
            after_window(window)
        watch.log.progress("measure", more, window.step_s, more / budget.steps)
    return tuple(windows)
