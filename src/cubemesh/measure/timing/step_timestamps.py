"""When did the host do what in a step? Four readings of the clock in each, and nothing else.

    feed ──▶ place ──▶ step ──▶ done          (next step) feed …  …  wait: synchronize
    asks for  has it,   handed    queued
    a batch   hands it  over:
              over      queues it

They cost some tenths of a microsecond a step and are taken in the very windows that are measured,
so that the host's part of the attribution is of the steps whose time is attributed. What lies
between `done` and the next `feed` is the loop itself.
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
    """A batch is asked for."""
    place: float
    """It is there."""
    step: float
    """It is handed over to the program."""
    done: float
    """The step is queued (or computed, by a program that does not run ahead)."""


@dataclass(frozen=True, kw_only=True)
class StampedWindow:
    """A window with the stamps of its steps."""

    start_s: float
    end_s: float
    """After the wait for the device."""
    stamps: tuple[Stamp, ...]
    transfers: tuple[Transfer, ...] = ()
    """What was exchanged in it, on several devices."""

    @property
    def elapsed_s(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


def _nothing(start_s: float, end_s: float) -> tuple[Transfer, ...]:
    return ()


@dataclass
class StampedSteps:
    """A step that is called without arguments and stamps what it does."""

    take: Callable[[], Any]
    """Gives the next batch on the host; may wait for it."""
    place: Callable[[Any], Any]
    queue: Callable[[Any], None]
    clock: Callable[[], float]
    exchanged: Callable[[float, float], tuple[Transfer, ...]] = _nothing
    """What was exchanged between two times."""
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
        """The stamps of `window`, the last that ran; older ones are forgotten."""
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
    """From when on the host did what: (time, `loop`, `feed`, `place`, `step` or `wait`)."""
    yield window.start_s, "loop"
    for stamp in window.stamps:
        yield stamp.feed, "feed"
        yield stamp.place, "place"
        yield stamp.step, "step"
        yield stamp.done, "loop"
    if window.stamps:
        yield window.stamps[-1].done, "wait"
