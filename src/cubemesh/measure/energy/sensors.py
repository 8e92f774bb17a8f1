"""Power sensors of GPUs: how long a GPU must be measured for its power readings to be valid.

A power sensor updates periodically, each value the mean over a window, and some rise slowly.
`power_sensors.csv` has these times as measured against an external meter (arXiv 2312.02741,
"Part-time Power Measurements: nvidia-smi's Lack of Attention"). A stretch shorter than ten times
the longest of them is not measurable: with ten readings, what came before and after it has a weight
of at most a tenth.

A GPU that is not in the table has the slowest times of its generation; one of an unmeasured
generation the one-second mean of current drivers.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

TIMES = 10
"""Minimum length of a stretch, in multiples of the sensor's longest time."""
UNKNOWN_S = 1.0
"""Longest time assumed for an unknown sensor."""


class Sensor(NamedTuple):
    """Power sensor of one GPU, for one kind of reading."""

    gpu: str
    generation: str
    reading: str
    """`instant`, or `average` for the mean over a second."""
    longest_s: float
    """The longest of its times: update period, averaging window or rise."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Minimum length of a stretch, and the reason."""

    seconds: float
    why: str


@cache
def sensors() -> tuple[Sensor, ...]:
    """Every row of the table, in its order."""
    text = (resources.files(__package__) / "power_sensors.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(
        Sensor(row["gpu"], row["generation"], row["reading"], _longest_s(row)) for row in rows
    )


def needed(name: str, generation: str, reading: str) -> Need:
    """Minimum length of a stretch on the GPU `name` of an NVML `generation`, with power read as
    `reading`."""
    alike = [s for s in sensors() if (s.generation, s.reading) == (generation, reading)]
    own = [s for s in alike if set(_words(s.gpu)) <= set(_words(name))]
    if not alike:
        return Need(
            seconds=TIMES * UNKNOWN_S,
            why=f"the sampling of this GPU's power sensor is unknown; {TIMES} times a mean over "
            f"{UNKNOWN_S:g} s is assumed",
        )
    slowest = max(own or alike, key=lambda s: s.longest_s)
    whose = "its power sensor" if own else f"a power sensor such as that of {slowest.gpu}"
    return Need(
        seconds=TIMES * slowest.longest_s,
        why=f"{whose} needs {TIMES} times {1000 * slowest.longest_s:g} ms",
    )


def _longest_s(row: Mapping[str, str]) -> float:
    columns = ("update_period_ms", "averaging_window_ms", "rise_ms")
    return max(float(row[column]) for column in columns if row[column]) / 1000


def _words(name: str) -> list[str]:
    return name.lower().replace("-", " ").split()
