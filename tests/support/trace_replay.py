"""Replay of recorded telemetry: sensors without their hardware, for tests.

A recording is a text file. Its first line describes the sensors, each further line is one reading:

    {"schema": 1, "cores": 2, "host_cores": 4, "meters": [{"device": "gpu", "missing": {},
     "name": "NVIDIA H200", "generation": "hopper", "power": "instant"}]}
    {"reading": {"time_s": 0.0, …}, "meters": [{"gpu_power_watts": 612.5, …}]}

`record` writes one from the machine it runs on. `load` gives the reader and the meters that
`Telemetry` takes; they return one reading after the other, then repeat the last.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cubemesh.errors import DataError
from cubemesh.measure.energy.sensors import Need, needed
from cubemesh.measure.telemetry.host import HostReader, Reader, Reading
from cubemesh.measure.telemetry.telemetry import Meter

SCHEMA = 1
_DESCRIPTION = ("name", "generation", "power")
"""Attributes of a GPU's meter."""


class Replay:
    """A `Reader` of recorded readings; it repeats the last."""

    def __init__(self, readings: Sequence[Reading], cores: int = 1, host_cores: int = 1) -> None:
        self.cores = cores
        self.host_cores = host_cores
        self._readings = list(readings)
        self._next = 0

    def read(self) -> Reading:
        """See `Reader.read`."""
        reading = self._readings[min(self._next, len(self._readings) - 1)]
        self._next += 1
        return reading


class ReplayedMeter:
    """A `Meter` of recorded values; it repeats the last."""

    def __init__(self, values: Sequence[Mapping[str, float]], **description: Any) -> None:
        self.device: str = description.get("device", "host")
        self.missing: dict[str, str] = dict(description.get("missing", {}))
        self.name, self.generation, self.power = (
            str(description.get(part, "")) for part in _DESCRIPTION
        )
        self._values = list(values)
        self._next = 0

    def read(self) -> Mapping[str, float]:
        """See `Meter.read`."""
        found = self._values[min(self._next, len(self._values) - 1)]
        self._next += 1
        return found

    def needs(self) -> Need | None:
        """See `Meter.needs`."""
        return needed(self.name, self.generation, self.power) if self.device == "gpu" else None


def record(
    path: Path,
    meters: Sequence[Meter],
    *,
    readings: int,
    every_s: float,
    reader: Reader | None = None,
) -> None:
    """Read this machine `readings` times, every `every_s`, and write the readings to `path`."""
    host = reader or HostReader()
    first = {
        "schema": SCHEMA,
        "cores": host.cores,
        "host_cores": host.host_cores,
        "meters": [
            {"device": m.device, "missing": m.missing}
            | {part: getattr(m, part) for part in _DESCRIPTION if hasattr(m, part)}
            for m in meters
        ],
    }
    with open(path, "w", encoding="utf-8") as file:
        print(json.dumps(first), file=file)
        for n in range(readings):
            if n:
                time.sleep(every_s)
            line = {"reading": asdict(host.read()), "meters": [dict(m.read()) for m in meters]}
            print(json.dumps(line), file=file)


def load(path: Path) -> tuple[Replay, tuple[ReplayedMeter, ...]]:
    """The reader and the meters of a recording; DataError for an invalid file."""
    try:
        first, *lines = (json.loads(line) for line in path.read_text("utf-8").splitlines())
        if first["schema"] != SCHEMA:
            raise ValueError(f"schema {first['schema']} is not {SCHEMA}")
        readings = [Reading(**line["reading"]) for line in lines]
        if not readings:
            raise ValueError("it holds no reading")
        meters = tuple(
            ReplayedMeter([line["meters"][n] for line in lines], **description)
            for n, description in enumerate(first["meters"])
        )
        return Replay(readings, first["cores"], first["host_cores"]), meters
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"'{path}' is no recording of telemetry: {error}") from error
