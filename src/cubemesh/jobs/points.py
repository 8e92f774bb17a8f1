"""Points of a running job: from the events of its workers to curves, the same that are stored.

A loss, a window, a curve and a chunk of a sensor's series become points as they are measured. A
curve event repeats the whole course; only what is new is passed on. A run that starts again from a
checkpoint takes back the points after it (`rewind`), as the record that is stored at the end has
them from there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

LOSS = "training_loss"
RATE = "samples_per_s"
"""By seconds since the run began, as sensors are; other curves are by step or epoch."""
SENSORS = (
    "gpu_utilization_percent",
    "gpu_power_watts",
    "gpu_clock_sm_mhz",
    "cpu_utilization_percent",
    "cpu_package_watts",
    "input_wait_percent",
)
"""Series of telemetry that are passed on, in the order in which they are shown."""
MOST_READINGS = 7200
"""Of a sensor, an hour, are all passed on; then every second one until there are twice as many, and
so on."""
Point = list[float | None]
"""x and y; None for a value that is not finite."""
Curves = dict[int, dict[str, list[Point]]]
"""Run of the job, from 1, → name → points."""


class PointSource:
    """The points of each run of a job, from the events of rank 0."""

    def __init__(self, known: Curves | None = None) -> None:
        self._sent: dict[tuple[int, str], set[float]] = defaultdict(set)
        for run, curves in (known or {}).items():
            for name, points in curves.items():
                self._sent[run, name] |= {p[0] for p in points if p[0] is not None}
        self._readings: dict[tuple[int, str], int] = defaultdict(int)
        self._run = 0
        self._resumed: float | None = None
        self._begun = True

    def start(self, run: int) -> None:
        """A run begins, perhaps again."""
        self._run, self._resumed, self._begun = run, None, False

    def events(self, event: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """What a worker's event adds: `points` and `rewind`, each with its value."""
        if event.get("of_rank", 0) != 0:
            return []
        kind = event["event"]
        if kind == "figure" and event["name"] == "resumed_at_step":
            self._resumed = event["figure"]["value"]
        if kind == "loss":
            return self._new(LOSS, [[event["step"], event["loss"]]])
        if kind == "curve" and event["curve"]["name"] not in SENSORS:  # its readings came before
            curve = event["curve"]
            pairs = zip(curve["x"], curve["y"], strict=True)
            return self._new(curve["name"], [[x, y] for x, y in pairs])
        if kind == "series" and event["series"]["name"] in SENSORS:
            return self._sensor(event["series"])
        if kind == "window" and event["window"]["phase"] == "measure":
            return self._new(RATE, [rate_point(event["window"])])
        return []

    def _sensor(self, series: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The readings of a chunk that are passed on."""
        name, shown = series["name"], []
        for x, y in zip(series["times_s"], series["values"], strict=True):
            number = self._readings[self._run, name]
            self._readings[self._run, name] += 1
            if number % (1 << (number // MOST_READINGS).bit_length()) == 0:
                shown.append([x, y])
        return self._new(name, shown)

    def _new(self, name: str, points: Iterable[Point]) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        if not self._begun:
            self._begun = True
            known = [key for key in self._sent if key[0] == self._run]
            if known:
                step = self._resumed or 0
                found.append(("rewind", {"run": self._run, "step": step}))
                for key in known:
                    kept = {x for x in self._sent[key] if x <= step and key[1] == LOSS}
                    self._sent[key] = kept
        sent = self._sent[self._run, name]
        new = [[x, _finite(y)] for x, y in points if x is not None and x not in sent]
        sent |= {x for x, _ in new if x is not None}
        if new:
            found.append(("points", {"run": self._run, "series": name, "points": new}))
        return found


def rate_point(window: Mapping[str, Any]) -> Point:
    """The throughput of a measured window, at its end."""
    end_s = window["start_s"] + window["elapsed_s"]
    return [round(end_s, 6), window["samples"] / window["elapsed_s"]]


def folded(events: Iterable[tuple[str, Any]]) -> Curves:
    """The curves of a job from its events (kind, value), in their order."""
    found: Curves = {}
    for kind, value in events:
        if kind == "rewind":
            curves = found.get(value["run"], {})
            for name in list(curves):
                kept = [p for p in curves[name] if (p[0] or 0) <= value["step"] and name == LOSS]
                curves[name] = kept
        elif kind == "points":
            curve = found.setdefault(value["run"], {}).setdefault(value["series"], [])
            curve.extend(value["points"])
    for curves in found.values():
        for points in curves.values():
            points.sort(key=lambda point: point[0] or 0)
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
