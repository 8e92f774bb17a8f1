"""Who hears what a measurement finds, as it finds it.

Measuring code says everything through a `Log`: the worker's writes an event file, a test's keeps a
list. Times given to a log are absolute readings of the program's clock (the scale of
`time.perf_counter()`); the log makes them seconds since the run began.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from cubemesh.schema.collective import SweepPoint
from cubemesh.schema.first_steps_trace import Replica
from cubemesh.schema.machine import Unknown
from cubemesh.schema.record import Breakdown, Curve, Figure, Part
from cubemesh.schema.series import Series
from cubemesh.schema.warning import Warning


class Log(Protocol):
    """Takes what was measured. Every call may come from the measuring thread only, but for
    `series`, which a sampler calls."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Time what happens inside as a phase of the run, on the real clock."""

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
        """A group of steps has ended; `start` is a reading of the program's clock."""

    def progress(
        self,
        phase: str,
        steps: int,
        step_s: float | None,
        fraction: float | None,
        note: str = "",
    ) -> None:
        """How far the run has come, for whoever is watching; cheap, may be dropped. `note` is a few
        words on top."""

    def figure(self, name: str, figure: Figure) -> None:
        """A figure that is not computed from windows."""

    def curve(self, curve: Curve) -> None:
        """A whole curve; a later one of the same name takes its place."""

    def part(self, part: Part) -> None:
        """A measured part of the step."""

    def breakdown(self, breakdown: Breakdown) -> None:
        """The time of a step, sorted in one way."""

    def replica(self, replica: Replica) -> None:
        """What this rank was fed and made in the first steps."""

    def point(self, point: SweepPoint) -> None:
        """What a collective took on this rank at one size."""

    def warning(self, warning: Warning) -> None:
        """A reason for doubt."""

    def unmeasured(self, unknown: Unknown) -> None:
        """What was to be measured and could not be, and why."""

    def series(self, series: Series) -> None:
        """A chunk of samples, its times being readings of `time.perf_counter()`; chunks of one
        name are joined."""
