"""Timestamps of the host within each step: four readings of the clock, two of thread counters.

    feed ──▶ place ──▶ step ──▶ done          (next step) feed …  …  wait: synchronize
    requests  batch is  batch is  step is
    a batch   there     placed    queued
                        ▲         ▲
                        counters  counters: CPU time and run-queue delay of the thread

The clock costs some tenths of a microsecond a step, the counters some microseconds. They are read
in the measured windows themselves, so that the attribution covers the very steps whose time is
attributed. The loop itself is between `done` and the next `feed`. Where the program runs ahead of a
device, the counters are read at `done` only: the time on a processor says nothing of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cubemesh.measure.attribution.contention import Competition
from cubemesh.measure.attribution.transfers import Transfer
from cubemesh.measure.telemetry.run_queue import ThreadTime
from cubemesh.schema.record import Window


class Stamp(NamedTuple):
    """Readings of the program's clock in one step, and seconds that its thread spent."""

    feed: float
    """A batch is requested from the feed."""
    place: float
    """The batch is there; placing it begins."""
    step: float
    """The batch is placed; the step begins."""
    done: float
    """The step is queued, or computed by a program that does not run ahead."""
    ran_s: float | None = None
    """On a processor between `step` and `done`; None where it was not read."""
    delayed_s: float = 0.0
    """On a run queue between `step` and `done`."""
    delayed_before_s: float = 0.0
    """On a run queue between the end of the step before and `step`."""


@dataclass(frozen=True, kw_only=True)
class StampedWindow:
    """A window with the timestamps of its steps."""

    start_s: float
    end_s: float
    """After the wait for the device."""
    stamps: tuple[Stamp, ...]
    delayed_after_s: float = 0.0
    """Run-queue delay after the last step, up to the end of the window."""
    transfers: tuple[Transfer, ...] = ()
    """Transfers between devices in it."""
    competition: Competition | None = None
    """What competed for the processors; None where it was not read."""

    @property
    def elapsed_s(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass
class StampedSteps:
    """A step, called without arguments, that records its timestamps."""

    take: Callable[[], Any]
    """Returns the next batch on the host; may wait for it."""
    place: Callable[[Any], Any]
    queue: Callable[[Any], None]
    clock: Callable[[], float]
    exchanged: Callable[[float, float], tuple[Transfer, ...]] = lambda start_s, end_s: ()
    """Transfers between two times."""
    thread: Callable[[], ThreadTime] | None = None
    """Reads the counters of the thread that calls the steps; None: they are not read."""
    compete: Callable[[], Competition] | None = None
    """Reads what competed with it since the last call."""
    runs_ahead: bool = False
    """Whether `queue` returns before the step is computed."""
    _readings: list[_Reading] = field(default_factory=list)
    _before: ThreadTime | None = None
    """Counters before the first of them."""

    def __call__(self) -> None:
        """One step."""
        clock, thread = self.clock, self.thread
        if thread is not None and self._before is None:
            self._before = thread()
        feed = clock()
        batch = self.take()
        place = clock()
        placed = self.place(batch)
        begun = None if thread is None or self.runs_ahead else thread()
        step = clock()
        self.queue(placed)
        done = clock()
        ended = None if thread is None else thread()
        self._readings.append(_Reading(feed, place, step, done, begun, ended))

    def cut(self, window: Window) -> StampedWindow:
        """Timestamps of `window`, the last that ran; older ones are dropped."""
        now = None if self.thread is None else self.thread()
        first = len(self._readings) - window.steps
        before = self._readings[first - 1].ended if first else self._before
        readings = self._readings[first:]
        self._readings, self._before = [], now
        end_s = window.start_s + window.elapsed_s
        stamps, late_s = _stamps(window.start_s, before, readings)
        after_s = 0.0
        if now is not None and readings and (ended := readings[-1].ended) is not None:
            after_s = min(late_s + now.delayed_s - ended.delayed_s, end_s - readings[-1].done)
        return StampedWindow(
            start_s=window.start_s,
            end_s=end_s,
            stamps=tuple(stamps),
            delayed_after_s=after_s,
            transfers=self.exchanged(window.start_s, end_s),
            competition=None if self.compete is None else self.compete().over(window.elapsed_s),
        )


class _Reading(NamedTuple):
    """What is read in one step."""

    feed: float
    place: float
    step: float
    done: float
    begun: ThreadTime | None
    ended: ThreadTime | None


def _stamps(
    start_s: float, before: ThreadTime | None, readings: Sequence[_Reading]
) -> tuple[list[Stamp], float]:
    """The stamps of a window, and run-queue delay that is left for the time after the last.

    The clock and the counters are not read at one moment: a thread may lose its processor between.
    So what exceeds the wall time of a step less its CPU time is delay before the step, and what
    exceeds the time since the step before, after it."""
    stamps, end, late_s = [], start_s, 0.0
    for index, (feed, place, step, done, begun, ended) in enumerate(readings):
        if before is None or ended is None:
            stamps.append(Stamp(feed, place, step, done))
        elif begun is None:
            delay_s = ended.delayed_s - before.delayed_s
            stamps.append(Stamp(feed, place, step, done, delayed_s=delay_s))
        else:
            ran_s = ended.ran_s - begun.ran_s
            delay_s = ended.delayed_s - begun.delayed_s
            within_s = min(delay_s, max(0.0, done - step - ran_s))
            earlier_s = begun.delayed_s - before.delayed_s + delay_s - within_s + late_s
            waited_s = min(earlier_s, step - end)
            # What precedes the window is none of it.
            late_s = earlier_s - waited_s if index else 0.0
            stamps.append(Stamp(feed, place, step, done, ran_s, within_s, waited_s))
        before, end = ended, done
    return stamps, late_s


def boundaries(window: StampedWindow) -> Iterator[tuple[float, str]]:
    """What the host does from which time: (time, `loop`, `feed`, `place`, `step` or `wait`)."""
    yield window.start_s, "loop"
    for stamp in window.stamps:
        yield stamp.feed, "feed"
        yield stamp.place, "place"
        yield stamp.step, "step"
        yield stamp.done, "loop"
    if window.stamps:
        yield window.stamps[-1].done, "wait"
