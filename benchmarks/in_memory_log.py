"""In-memory `Log` for benchmarks and tests: every event in a list, times as they were read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cubemesh.measure.log import Log
from cubemesh.schema.collective import SweepPoint
from cubemesh.schema.first_steps_trace import RankTrace
from cubemesh.schema.machine import Unknown
from cubemesh.schema.record import Breakdown, Curve, Figure, Part, Phase, ScoredSamples, Window
from cubemesh.schema.series import Series
from cubemesh.schema.warning import Warning


@dataclass
class InMemoryLog(Log):
    """Lists of what was logged."""

    phases: list[Phase] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    breakdowns: list[Breakdown] = field(default_factory=list)
    replicas: list[RankTrace] = field(default_factory=list)
    points: list[SweepPoint] = field(default_factory=list)
    warnings: list[Warning] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    chunks: list[Series] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    scored: list[ScoredSamples] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    """Every fraction that `progress` reported."""

    def emit(self, event: str, **fields: Any) -> None:
        """See `Log.emit`."""
        if event == "progress":
            if fields["fraction"] is not None:
                self.fractions.append(fields["fraction"])
        elif event == "figure":
            self.figures[fields["name"]] = fields["figure"]
        elif event == "curve":
            self.curves[fields["curve"].name] = fields["curve"]
        elif event != "enter":
            lists = {
                "unmeasured": self.unknown,
                "series": self.chunks,
                "loss": self.losses,
                "scored_samples": self.scored,
            }
            (lists[event] if event in lists else getattr(self, f"{event}s")).append(fields[event])

    def joined(self, name: str) -> Series:
        """All chunks of one series, one after the other."""
        chunks = [c for c in self.chunks if c.name == name]
        return Series(
            name=name,
            times_s=tuple(t for c in chunks for t in c.times_s),
            values=tuple(v for c in chunks for v in c.values),
        )
