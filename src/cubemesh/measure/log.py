"""Log of a measurement: where timers, samplers and profilers report windows, figures and warnings.

A worker writes an event file (worker/report/events.py), tests keep lists; both only define `emit`.
Times passed in are readings of `time.perf_counter()`; logged are seconds since `origin`, the begin
of the run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cubemesh.schema.collective import LinkRate, SweepPoint
from cubemesh.schema.first_steps_trace import RankTrace
from cubemesh.schema.machine import Unknown
from cubemesh.schema.record import Breakdown, Curve, Figure, Part, Phase, ScoredSamples, Window
from cubemesh.schema.series import Series
from cubemesh.schema.warning import Warning


@dataclass
class RunningPhase:
    """A phase that has not ended yet."""

    cached: bool | None = None
    """Whether what it compiled came from a cache; None where it compiled nothing."""


class Log(ABC):
    """Receives results as they are measured. Call it from the measuring thread only, except for
    `series`, which the sampling thread calls."""

    rank: int = 0
    origin: float = 0.0

    @abstractmethod
    def emit(self, event: str, **fields: Any) -> None:
        """Write one event. A result is the field of the event's own name."""

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.origin

    @contextmanager
    def phase(self, name: str) -> Iterator[RunningPhase]:
        """Time the block as a phase of the run; a block that raises has no phase."""
        start, running = self.now(), RunningPhase()
        self.emit("enter", name=name)
        yield running
        elapsed_s = self.now() - start
        phase = Phase(
            name=name, rank=self.rank, start_s=start, elapsed_s=elapsed_s, cached=running.cached
        )
        self.emit("phase", phase=phase)

    def window(self, window: Window) -> None:
        """A group of steps has ended; its `start_s` is a reading of the program's clock."""
        start_s = window.start_s - self.origin
        self.emit("window", window=replace(window, rank=self.rank, start_s=start_s))

    def progress(
        self,
        phase: str,
        steps: int,
        step_s: float | None,
        fraction: float | None,
        note: str = "",
    ) -> None:
        """Progress of the run for a live display; may be dropped. `note` is a short text."""
        self.emit("progress", phase=phase, steps=steps, step_s=step_s, fraction=fraction, note=note)

    def figure(self, name: str, figure: Figure) -> None:
        """A figure that is not computed from windows."""
        self.emit("figure", name=name, figure=figure)

    def curve(self, curve: Curve) -> None:
        """A whole curve; replaces an earlier one of the same name."""
        self.emit("curve", curve=curve)

    def scored_samples(self, scored: ScoredSamples) -> None:
        """Which samples of the validation set were answered correctly at the end."""
        self.emit("scored_samples", scored_samples=scored)

    def loss(self, step: int, loss: float) -> None:
        """The training loss of a step, for a live display; the same is a point of the curve."""
        self.emit("loss", step=step, loss=loss)

    def part(self, part: Part) -> None:
        """A part of the step time, from the attribution."""
        self.emit("part", part=part)

    def breakdown(self, breakdown: Breakdown) -> None:
        """The step time by category, layer or runtime call."""
        self.emit("breakdown", breakdown=breakdown)

    def replica(self, replica: RankTrace) -> None:
        """Inputs and results of this rank's first steps."""
        self.emit("replica", replica=replica)

    def point(self, point: SweepPoint) -> None:
        """Times of a collective on this rank at one size."""
        self.emit("point", point=point)

    def link_rate(self, rate: LinkRate) -> None:
        """A measurement between two devices, or between the host and a device."""
        self.emit("link_rate", link_rate=rate)

    def warning(self, warning: Warning) -> None:
        """A caveat about the results."""
        self.emit("warning", warning=warning)

    def unmeasured(self, unknown: Unknown) -> None:
        """A quantity that could not be measured, with the reason."""
        self.emit("unmeasured", unmeasured=unknown)

    def series(self, series: Series) -> None:
        """A chunk of samples; chunks of one name are joined."""
        times_s = tuple(t - self.origin for t in series.times_s)
        self.emit("series", series=replace(series, rank=self.rank, times_s=times_s))
