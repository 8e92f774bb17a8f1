"""How long must a GPU be watched before its power reading says anything? A table of its sensors.

A power sensor gives a new value every so often, each the mean over a while, and some rise slowly.
`power_sensors.csv` has what was measured of them against a meter at the plug or in the slot
(arXiv 2312.02741, "Part-time Power Measurements: nvidia-smi's Lack of Attention"). A stretch
shorter than ten times the longest of these times is not measurable: each reading stands for the
time around it, so that with ten of them what came before and after weighs a tenth at most.

A GPU that is not in the table is held to the slowest of its generation; one of a generation that
was not measured, to the mean over one second which current drivers give.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

FILE = "power_sensors.csv"
TIMES = 10
"""A measured stretch is as many times the sensor's longest time, at least."""
UNKNOWN_S = 1.0
"""What is taken for a sensor of which nothing is known."""


@dataclass(frozen=True, kw_only=True)
class Sensor:
    """What is known of the power sensor of one GPU, read in one way."""

    gpu: str
    generation: str
    reading: str
    """`instant`, or `average` for the mean over a second."""
    update_period_s: float | None
    averaging_window_s: float | None
    rise_s: float | None
    steady_state_error_pct: str
    energy_error_pct: str
    behaviour: str
    source: str

    @property
    def longest_s(self) -> float:
        """The longest of its times."""
        known = (self.update_period_s, self.averaging_window_s, self.rise_s)
        return max(s for s in known if s is not None)


@dataclass(frozen=True, kw_only=True)
class Need:
    """How long a stretch must be, and why."""

    seconds: float
    why: str


@cache
def sensors() -> tuple[Sensor, ...]:
    """Every row of the table, in its order."""
    text = (resources.files(__package__) / FILE).read_text(encoding="utf-8")
    return tuple(
        Sensor(
            gpu=row["gpu"],
            generation=row["generation"],
            reading=row["reading"],
            update_period_s=_seconds(row["update_period_ms"]),
            averaging_window_s=_seconds(row["averaging_window_ms"]),
            rise_s=_seconds(row["rise_ms"]),
            steady_state_error_pct=row["steady_state_error_pct"],
            energy_error_pct=row["energy_error_pct"],
            behaviour=row["behaviour"],
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def needed(name: str, generation: str, reading: str) -> Need:
    """The least length of a stretch on the GPU called `name`, of a generation as NVML names it,
    whose power is read in the way `reading`."""
    alike = [s for s in sensors() if (s.generation, s.reading) == (generation, reading)]
    own = [s for s in alike if set(_words(s.gpu)) <= set(_words(name))]
    if not alike:
        return Need(
            seconds=TIMES * UNKNOWN_S,
            why=f"how the power sensor of this GPU samples is not known, and {TIMES} times a mean "
            f"over {UNKNOWN_S:g} s is taken for it",
        )
    slowest = max(own or alike, key=lambda s: s.longest_s)
    whose = "its power sensor" if own else f"the power sensor of its generation ({slowest.gpu})"
    return Need(
        seconds=TIMES * slowest.longest_s,
        why=f"{whose} needs {TIMES} times {1000 * slowest.longest_s:g} ms",
    )


def _seconds(text: str) -> float | None:
    return float(text) / 1000 if text else None


def _words(name: str) -> list[str]:
    return name.lower().replace("-", " ").split()
