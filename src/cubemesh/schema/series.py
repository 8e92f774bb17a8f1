"""Time series sampled during a run: utilization, memory, power."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Series:
    """Samples of one quantity on one device of one rank.

    `times_s` are seconds on the run's own clock (0 is the start of the run), one for each of
    `values`, in rising order.
    """

    name: str
    """With its unit: `cpu_utilization_percent`, `resident_bytes`."""
    rank: int = 0
    device: str = "host"
    times_s: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.values):
            raise ValueError(
                f"{self.name}: {len(self.times_s)} times for {len(self.values)} values"
            )
