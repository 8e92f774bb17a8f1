"""Profile: the events that a framework's profiler recorded during some steps.

Only a framework knows its profiler; everything that is made of a profile (`breakdown.py`,
`measure/attribution/attribution.py`) reads these. Times are readings of the program's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

EventKind = Literal["operator", "scope", "runtime", "kernel", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEvent:
    """One thing the profiler saw.

    On the host: an `operator` computes (or queues) something; a `scope` is what stands around
    operators and computes nothing itself (automatic differentiation, an optimizer's step); a
    `runtime` event is a call into the device's runtime. On the device: a `kernel`, or a `copy`
    (filling memory included).
    """

    name: str
    kind: EventKind
    start_s: float
    duration_s: float
    lane: int = 0
    """The host's thread, or the device's stream."""
    launch: int | None = None
    """A number shared by a runtime call and what it launched on the device; None for none."""
    layer: str = ""
    """The layer of the network; empty if none, or without layer scopes."""
    update: bool = False
    """Whether it belongs to the optimizer's update."""
    occupancy: float | None = None
    """Occupancy of a kernel, 0 to 1; None if not reported."""

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The events recorded during some steps."""

    events: tuple[ProfileEvent, ...]
    """Sorted by start."""
    by_layer: bool = False
    """Whether events name their layer."""

    def between(self, start_s: float, end_s: float) -> Profile:
        """The events that started in that interval."""
        inside = tuple(e for e in self.events if start_s <= e.start_s < end_s)
        return replace(self, events=inside)

    @property
    def on_device(self) -> tuple[ProfileEvent, ...]:
        """Kernels and copies; empty for a program that computes on the host."""
        return tuple(e for e in self.events if e.kind in ("kernel", "copy"))
