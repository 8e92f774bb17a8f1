"""A log that keeps what it hears, for using the timer and the training loop in one's own process:
in a notebook, a benchmark, a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cubemesh.schema.collective import SweepPoint
from cubemesh.schema.first_steps_trace import Replica
from cubemesh.schema.machine import Unknown
from cubemesh.schema.record import Breakdown, Curve, Figure, Part, Phase, Window
from cubemesh.schema.series import Series
from cubemesh.schema.warning import Warning


@dataclass
class KeptLog:
    """A `Log` (see base.py) made of lists. Times stay readings of the clocks they came from."""

    phases: list[Phase] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    breakdowns: list[Breakdown] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    points: list[SweepPoint] = field(default_factory=list)
    warnings: list[Warning] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    chunks: list[Series] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    """Every fraction of the run that `progress` told."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """See `Log.phase`."""
        start = time.perf_counter()
        yield
        elapsed_s = time.perf_counter() - start
        self.phases.append(Phase(name=name, start_s=start, elapsed_s=elapsed_s))

    def window(
        self,
        *,
        phase: str,
        start: float,
        elapsed_s: float,
        steps: int,
        samples: int,
        marks: tuple[str, ...] = (),
    ) -> None:
        """See `Log.window`."""
        self.windows.append(
            Window(
                phase=phase,
                start_s=start,
                elapsed_s=elapsed_s,
                steps=steps,
                samples=samples,
                marks=marks,
            )
        )

    def progress(
        self,
        phase: str,
        steps: int,
        step_s: float | None,
        fraction: float | None,
        note: str = "",
    ) -> None:
        """See `Log.progress`."""
        if fraction is not None:
            self.fractions.append(fraction)

    def figure(self, name: str, figure: Figure) -> None:
        """See `Log.figure`."""
        self.figures[name] = figure

    def curve(self, curve: Curve) -> None:
        """See `Log.curve`."""
        self.curves[curve.name] = curve

    def part(self, part: Part) -> None:
        """See `Log.part`."""
        self.parts.append(part)

    def breakdown(self, breakdown: Breakdown) -> None:
        """See `Log.breakdown`."""
        self.breakdowns.append(breakdown)

    def replica(self, replica: Replica) -> None:
        """See `Log.replica`."""
        self.replicas.append(replica)

    def point(self, point: SweepPoint) -> None:
        """See `Log.point`."""
        self.points.append(point)

    def warning(self, warning: Warning) -> None:
        """See `Log.warning`."""
        self.warnings.append(warning)

    def unmeasured(self, unknown: Unknown) -> None:
        """See `Log.unmeasured`."""
        self.unknown.append(unknown)

    def series(self, series: Series) -> None:
        """See `Log.series`."""
        self.chunks.append(series)

    def joined(self, name: str) -> Series:
        """All chunks of one series, one after the other."""
        chunks = [c for c in self.chunks if c.name == name]
        return Series(
            name=name,
            times_s=tuple(t for c in chunks for t in c.times_s),
            values=tuple(v for c in chunks for v in c.values),
        )
