"""Timestamps of the host within each step: four readings of the clock.

    feed ──▶ place ──▶ step ──▶ done          (next step) feed …  …  wait: synchronize
    requests  batch is  batch is  step is
    a batch   there     placed    queued

They cost some tenths of a microsecond a step and are taken in the measured windows themselves, so
that the attribution covers the very steps whose time is attributed. The loop itself is between
`done` and the next `feed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cubemesh.measure.attribution.transfers import Transfer
from cubemesh.schema.record import Window


class Stamp(NamedTuple):
    """Readings of the program's clock in one step."""

    feed: float
    """A batch is requested from the feed."""
    place: float
    """The batch is there; placing it begins."""
    step: float
    """The batch is placed; the step begins."""
    done: float
    """The step is queued, or computed by a program that does not run ahead."""


@dataclass(frozen=True, kw_only=True)
class StampedWindow:
    """A window with the timestamps of its steps."""

    start_s: float
    end_s: float
    """After the wait for the device."""
    stamps: tuple[Stamp, ...]
    transfers: tuple[Transfer, ...] = ()
    """Transfers between devices in it."""

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
    _stamps: list[Stamp] = field(default_factory=list)

    def __call__(self) -> None:
        """One step."""
        clock = self.clock
        feed = clock()
        batch = self.take()
        place = clock()
        placed = self.place(batch)
        step = clock()
        self.queue(placed)
        self._stamps.append(Stamp(feed, place, step, clock()))

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
