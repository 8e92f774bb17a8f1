"""Energy and power of the measured steps, by part of the machine.

    joules             ∫ power dt over the measured windows, or the growth of a counter over them
    joules per sample  joules / samples of these windows
    samples per joule  its inverse: samples/s per watt
    mean power         joules / seconds of these windows

Power is integrated by the trapezoid rule; a counter is interpolated linearly. A GPU's board has
both: the counter is used where there is one, and the integral checks it. RAPL counts the CPU
packages and their memory. The `method` of every figure lists what it covers and what it leaves out.

A stretch too short for the sensor, or outside the readings, has no figure: an `Unknown` gives the
reason. A missing reading is never reported as zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from cubemesh.measure.energy.rapl import DRAM, PACKAGE
from cubemesh.measure.energy.sensors import Need
from cubemesh.measure.telemetry.counter_series import Points
from cubemesh.measure.telemetry.gpu import ENERGY, POWER
from cubemesh.schema.machine import Unknown
from cubemesh.schema.record import Figure
from cubemesh.schema.warning import Warning, warn
from cubemesh.units import format_seconds

Span = tuple[float, float]
"""(start, end) in seconds."""
AGREE = 0.05
"""Relative difference between counter and integral above which there is a warning."""
GAP_S = 0.05
"""Windows with smaller gaps belong to one stretch."""
SILENT = 5
"""A gap of so many reading intervals means that the sensor stopped answering."""
RAPL_S = 0.05
"""RAPL's counters move every millisecond or so, unevenly: over this they are good to 5 % (Khan et
al., "RAPL in Action", ACM TOMPECS 3(2), 2018)."""
WHAT = "energy and power"
INTEGRATED = "gpu_energy_integrated_joules"
_OUTSIDE = (
    "the measured windows are outside the readings: the program has its own clock, or the sensors "
    "stopped answering"
)
_PARTS = {PACKAGE: "CPU package", DRAM: "DRAM"}
_MEANS = {PACKAGE: "cpu_package_watts", DRAM: "dram_watts"}
BOARD = "GPU board"
OF_HOST = {_MEANS[name]: words for name, words in _PARTS.items()}
"""Mean power of a part of the host → name of the part."""


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Figures by name, what could not be measured, and warnings."""

    figures: Mapping[str, Figure]
    unmeasured: tuple[Unknown, ...] = ()
    warnings: tuple[Warning, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Part:
    """The energy of one part of the machine over the measured windows."""

    name: str
    how: str
    joules: float
    mean_name: str


def totals(parts: Sequence[Part], seconds: float, samples: int | None, n: int) -> dict[str, Figure]:
    """Totals over `parts` in `seconds` of `n` windows with `samples` samples (None where samples
    are not counted)."""
    joules = math.fsum(part.joules for part in parts)
    covered = " + ".join(f"{p.name} ({p.how})" for p in parts)
    names = {p.name for p in parts}
    absent = [words for words in _PARTS.values() if words not in names]
    method = f"{covered}; not included: {', '.join([*absent, 'the rest of the machine'])}"
    values = {"mean_power_watts": (joules / seconds, "W")}
    if samples and joules > 0:
        values["energy_joules_per_sample"] = joules / samples, "J/sample"
        values["samples_per_joule"] = samples / joules, "samples/J"
    return {
        name: Figure(value=value, unit=unit, n=n, method=method)
        for name, (value, unit) in values.items()
    }


def counted(points: Points, spans: Sequence[Span]) -> float | None:
    """Growth of a counter over `spans`; None where they are not all within the readings."""
    if not _covers(points, spans):
        return None
    times, values = zip(*points, strict=True)
    ends = np.interp(np.array(spans), times, values)
    return max(0.0, float(np.sum(ends[:, 1] - ends[:, 0])))


def integrated(points: Points, spans: Sequence[Span]) -> float | None:
    """∫ of the line through `points` over `spans`; None where they are not all within them."""
    if not _covers(points, spans):
        return None
    times, values = (np.array(a, dtype=float) for a in zip(*points, strict=True))
    pieces = np.diff(times) * (values[1:] + values[:-1]) / 2
    until = np.concatenate(([0.0], np.cumsum(pieces)))
    at = np.array(spans)
    place = np.clip(np.searchsorted(times, at, side="right") - 1, 0, len(times) - 2)
    rest = (at - times[place]) * (values[place] + np.interp(at, times, values)) / 2
    whole = until[place] + rest
    return float(np.sum(whole[:, 1] - whole[:, 0]))


def stretches(spans: Sequence[Span]) -> list[Span]:
    """Spans in rising order, those joined that are less than `GAP_S` apart."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and start - joined[-1][1] < GAP_S:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


def energy(
    sampled: Mapping[str, Points],
    spans: Sequence[Span],
    samples: int | None,
    *,
    gpu_needs: Need | None,
    every_s: float,
    missing: Mapping[str, str],
) -> Energy:
    """Energy of the windows `spans` with `samples` samples (None where samples are not counted),
    from readings by name taken every `every_s`.

    `gpu_needs` is the stretch that the GPU's sensor needs, None for a run without a GPU; `missing`
    has the reason for every missing sensor.
    """
    if not spans:
        return Energy(figures={})
    if not any(sampled.get(name) for name in (POWER, ENERGY, PACKAGE, DRAM)):
        return Energy(figures={}, unmeasured=(unknown(_no_sensor(missing)),))
    energies = _EnergyOfParts(sampled=sampled, spans=spans, every_s=every_s, missing=missing)
    if gpu_needs is not None:
        energies.add_board(gpu_needs)
    for name in _PARTS:
        if sampled.get(name):
            energies.add_rapl(name)
    figures = energies.figures
    # On a GPU, there is no total without the GPU, and none without a part whose counter restarted.
    whole = energies.parts and not energies.warnings
    if whole and (gpu_needs is None or energies.parts[0].mean_name == POWER):
        figures |= totals(energies.parts, energies.seconds, samples, len(spans))
    return Energy(
        figures=figures,
        unmeasured=tuple(map(unknown, energies.why)),
        warnings=(*_disagreement(figures), *energies.warnings),
    )


@dataclass(kw_only=True)
class _EnergyOfParts:
    """Energy of the machine's parts, added one by one."""

    sampled: Mapping[str, Points]
    spans: Sequence[Span]
    every_s: float
    missing: Mapping[str, str]
    parts: list[Part] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    why: list[str] = field(default_factory=list)
    """Reasons for what could not be measured."""
    warnings: list[Warning] = field(default_factory=list)

    def add_board(self, need: Need) -> None:
        """Add the GPU's board, from its counter, else from integrated power."""
        if self._too_short("", need.seconds, need.why):
            return
        by_counter = counted(self._read(ENERGY), self.spans)
        by_power = integrated(self._read(POWER), self.spans)
        for name, how, joules in (
            (ENERGY, "energy counter", by_counter),
            (INTEGRATED, "integrated power", by_power),
        ):
            if joules is not None:
                n = sum(a <= t <= b for t, _ in self._read(POWER) for a, b in stretches(self.spans))
                self.figures[name] = Figure(value=joules, unit="J", n=max(1, n), method=how)
        for name in (ENERGY, INTEGRATED):
            if name in self.figures:
                figure = self.figures[name]
                self._add(BOARD, figure.method, figure.value, POWER)
                return
        reasons = (self.missing.get(name) for name in ("gpu", POWER, ENERGY))
        self.why.append(f"{BOARD}: {next(filter(None, reasons), _OUTSIDE)}")

    def add_rapl(self, name: str) -> None:
        """Add a part that RAPL counts."""
        words = _PARTS[name]
        if self._too_short(f"{words}: ", RAPL_S, "RAPL needs two readings"):
            return
        points = self._read(name)
        if _restarted(points, self.spans):
            self.why.append(f"{words}: its energy counter restarted while steps were measured")
            self.warnings.append(
                warn(
                    "counter-restarted",
                    f"The energy counter of the {words} restarted while steps were measured: what "
                    "was used in that interval is unknown.",
                    "Measure again, without suspending the machine or reloading its drivers.",
                )
            )
            return
        joules = counted([(t, v) for t, v in points if not math.isnan(v)], self.spans)
        if joules is None:
            self.why.append(f"{words}: {_OUTSIDE}")
        else:
            self._add(words, "RAPL", joules, _MEANS[name])

    @property
    def seconds(self) -> float:
        """Total time of all windows."""
        return math.fsum(end - start for start, end in self.spans)

    def _add(self, name: str, how: str, joules: float, mean_name: str) -> None:
        self.parts.append(Part(name=name, how=how, joules=joules, mean_name=mean_name))
        watts = joules / self.seconds
        self.figures[mean_name] = Figure(value=watts, unit="W", n=len(self.spans), method=how)

    def _read(self, name: str) -> Points:
        """Readings of a sensor; none where it stopped answering while steps were measured."""
        points = self.sampled.get(name, ())
        start, end = self.spans[0][0], self.spans[-1][1]
        gaps = [b - a for (a, _), (b, _) in pairwise(points) if b > start and a < end]
        return () if gaps and max(gaps) > SILENT * self.every_s else points

    def _too_short(self, whose: str, need_s: float, why: str) -> bool:
        """Whether the mean stretch of windows is shorter than `need_s` or two readings."""
        lengths = [end - start for start, end in stretches(self.spans)]
        length, need_s = math.fsum(lengths) / len(lengths), max(need_s, 2 * self.every_s)
        if length >= need_s:
            return False
        what = "steps were measured for" if len(lengths) == 1 else "a stretch of steps took"
        self.why.append(
            f"{whose}{what} {format_seconds(length)}; {format_seconds(need_s)} are needed: {why}"
        )
        return True


def _disagreement(own: Mapping[str, Figure]) -> list[Warning]:
    if ENERGY not in own or INTEGRATED not in own or own[ENERGY].value <= 0:
        return []
    share = own[INTEGRATED].value / own[ENERGY].value - 1
    if abs(share) <= AGREE:
        return []
    return [
        warn(
            "energy-mismatch",
            f"The GPU's power, integrated over {own[INTEGRATED].n} readings, is "
            f"{100 * abs(share):.1f} % {'more' if share > 0 else 'less'} than its energy counter; "
            f"up to {100 * AGREE:.0f} % is usual.",
            "Measure longer (set seconds=10 or more): few readings undersample an uneven load. The "
            "figures use the counter.",
        )
    ]


def _restarted(points: Points, spans: Sequence[Span]) -> bool:
    """Whether a counter restarted within the spans: before a reading that is NaN."""
    return any(
        math.isnan(value) and start < last and end > first
        for (start, _), (end, value) in pairwise(points)
        for first, last in spans
    )


def _covers(points: Points, spans: Sequence[Span]) -> bool:
    return (
        len(points) > 1
        and bool(spans)
        and points[0][0] <= min(start for start, _ in spans)
        and max(end for _, end in spans) <= points[-1][0]
    )


def _no_sensor(missing: Mapping[str, str]) -> str:
    reasons = {
        "GPU": missing.get("gpu") or missing.get(POWER),
        "CPU": missing.get(PACKAGE),
        "DRAM": missing.get(DRAM) if missing.get(DRAM) != missing.get(PACKAGE) else None,
    }
    known = "; ".join(f"{part}: {why}" for part, why in reasons.items() if why)
    return known or "no sensor was read"


def unknown(why: str) -> Unknown:
    """Energy and power as unmeasured, with the reason."""
    return Unknown(what=WHAT, why=f"not measurable: {why}")
