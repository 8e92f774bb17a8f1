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

from collections.abc import Callable, Iterator
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
    _stamps: list[Stamp] = field(default_factory=list)
    _ended: ThreadTime | None = None

    def __call__(self) -> None:
        """One step."""
        clock, thread = self.clock, self.thread
        if thread is not None and not self._stamps:
            self._ended = thread()
        feed = clock()
        batch = self.take()
        place = clock()
        placed = self.place(batch)
        begun = None if thread is None or self.runs_ahead else thread()
        step = clock()
        self.queue(placed)
        done = clock()
        if thread is None or self._ended is None:
            self._stamps.append(Stamp(feed, place, step, done))
            return
        before, self._ended = self._ended, thread()
        if begun is None:
            delay_s = self._ended.delayed_s - before.delayed_s
            self._stamps.append(Stamp(feed, place, step, done, delayed_s=delay_s))
            return
        ran_s, delay_s = (b - a for a, b in zip(begun, self._ended, strict=True))
        earlier_s = begun.delayed_s - before.delayed_s
        self._stamps.append(Stamp(feed, place, step, done, ran_s, delay_s, earlier_s))

    def cut(self, window: Window) -> StampedWindow:
        """Timestamps of `window`, the last that ran; older ones are dropped."""
        stamps = tuple(self._stamps[-window.steps :])
        self._stamps.clear()
        end_s = window.start_s + window.elapsed_s
        return StampedWindow(
            start_s=window.start_s,
            end_s=end_s,
            stamps=stamps,
            transfers=self.exchanged(window.start_s, end_s),
            competition=None if self.compete is None else self.compete().over(window.elapsed_s),
        )


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
