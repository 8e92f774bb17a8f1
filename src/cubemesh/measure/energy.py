"""How much energy did the measured steps take, and of which parts of the machine?

    joules             ∫ power dt over the measured windows, or the growth of a counter over them
    joules per sample  joules / samples of these windows
    samples per joule  its inverse: samples per second for each watt
    mean power         joules / seconds of these windows

Power between two readings is taken to lie on the straight line that joins them (the trapezoid
rule), a counter to grow evenly. A GPU's board has both: the counter is what is used where there is
one, the other checks it. RAPL counts the processors' packages and their memory. What is summed up,
and what is not in it, stands in the `method` of every figure.

A stretch too short for the sensor, or one outside the readings, has no figure: an `Unknown` says
why. Nothing is ever nought for want of a reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cubemesh.measure.gpu import ENERGY, POWER
from cubemesh.measure.rapl import DRAM, PACKAGE
from cubemesh.measure.sensors import Need
from cubemesh.model.machine import Unknown
from cubemesh.model.record import Figure
from cubemesh.model.warning import Warning, warn
from cubemesh.units import format_seconds

Points = Sequence[tuple[float, float]]
"""(time, value) in rising order of time."""
Span = tuple[float, float]
"""From when to when."""
AGREE = 0.05
"""Share by which the counter and the integral may differ."""
GAP_S = 0.05
"""Windows nearer to one another than this belong to one stretch."""
RAPL_S = 0.05
"""RAPL's counters move every millisecond or so, unevenly; over this they are good to a few percent
(Hackenberg et al., "Power measurement techniques on standard compute nodes", ISPASS 2013)."""
WHAT = "energy and power"
INTEGRATED = "gpu_energy_integrated_joules"
_OUTSIDE = (
    "the measured windows do not lie between the readings: the program keeps a clock of its own, "
    "or its sensors fell silent"
)
_PARTS = {PACKAGE: "CPU package", DRAM: "DRAM"}
_MEANS = {PACKAGE: "cpu_package_watts", DRAM: "dram_watts"}


@dataclass(frozen=True, kw_only=True)
class Energy:
    """What was found: figures by name, what could not be measured, and doubts."""

    figures: Mapping[str, Figure]
    unmeasured: tuple[Unknown, ...] = ()
    warnings: tuple[Warning, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The energy of one part of the machine over the measured windows."""

    name: str
    how: str
    joules: float
    mean_name: str


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
    """The energy of the windows `spans`, in which `samples` were processed (None: none are
    counted), from readings by name taken every `every_s`.

    `gpu_needs` is how long the GPU's sensor must be watched, None for a run without a GPU;
    `missing` has the reason for every sensor that is not there.
    """
    if not spans:
        return Energy(figures={})
    if not any(sampled.get(name) for name in (POWER, ENERGY, PACKAGE, DRAM)):
        return Energy(figures={}, unmeasured=(_unknown(_no_sensor(missing)),))
    lengths = [end - start for start, end in stretches(spans)]
    length = math.fsum(lengths) / len(lengths)
    parts: list[_Part] = []
    why: list[str] = []
    figures: dict[str, Figure] = {}
    warnings: list[Warning] = []
    if gpu_needs is not None:
        need = max(gpu_needs.seconds, 2 * every_s)
        if length < need:
            why.append(f"{_too_short(length, lengths, need)}: {gpu_needs.why}")
        else:
            own = _board(sampled, spans)
            figures |= own
            warnings += _disagreement(own)
            for name in (ENERGY, INTEGRATED):
                if name in own:
                    parts.append(
                        _Part(
                            name="GPU board",
                            how=own[name].method,
                            joules=own[name].value,
                            mean_name=POWER,
                        )
                    )
                    break
            else:
                why.append(f"GPU board: {_missing_gpu(missing)}")
    for name, words in _PARTS.items():
        need = max(RAPL_S, 2 * every_s)
        if name in missing:
            continue
        if length < need:
            why.append(f"{words}: {_too_short(length, lengths, need)}, two readings")
        elif (joules := counted(sampled.get(name, ()), spans)) is not None:
            parts.append(_Part(name=words, how="RAPL", joules=joules, mean_name=_MEANS[name]))
    if not parts:
        return Energy(figures={}, unmeasured=(_unknown("; ".join(why) or _OUTSIDE),))
    seconds = math.fsum(end - start for start, end in spans)
    figures |= {
        p.mean_name: Figure(value=p.joules / seconds, unit="W", n=len(spans), method=p.how)
        for p in parts
    }
    # Of a run on a GPU, a sum without the GPU is no answer.
    if gpu_needs is None or any(part.mean_name == POWER for part in parts):
        figures |= _totals(parts, seconds, samples, len(spans))
    unmeasured = tuple(_unknown(w) for w in why)
    return Energy(figures=figures, unmeasured=unmeasured, warnings=tuple(warnings))


def _board(sampled: Mapping[str, Points], spans: Sequence[Span]) -> dict[str, Figure]:
    """The board's energy by its counter and by integrated power, as far as they are there."""
    found = {}
    by_counter = counted(sampled.get(ENERGY, ()), spans)
    if by_counter is not None:
        found[ENERGY] = Figure(value=by_counter, unit="J", method="energy counter")
    by_power = integrated(sampled.get(POWER, ()), spans)
    if by_power is not None:
        n = sum(spans[0][0] <= t <= spans[-1][1] for t, _ in sampled[POWER])
        found[INTEGRATED] = Figure(value=by_power, unit="J", n=n, method="integrated power")
    return found


def _disagreement(own: Mapping[str, Figure]) -> list[Warning]:
    if ENERGY not in own or INTEGRATED not in own or own[ENERGY].value <= 0:
        return []
    share = own[INTEGRATED].value / own[ENERGY].value - 1
    if abs(share) <= AGREE:
        return []
    return [
        warn(
            "energy-disagrees",
            f"The GPU's power, integrated over {own[INTEGRATED].n} readings, is "
            f"{100 * abs(share):.1f} % {'more' if share > 0 else 'less'} than its energy counter "
            f"says; up to {100 * AGREE:.0f} % is usual.",
            "Measure longer (set seconds=10 or more): few readings of an uneven load miss some "
            "of it. The figures use the counter.",
        )
    ]


def _totals(
    parts: Sequence[_Part],
    seconds: float,
    samples: int | None,
    n: int,
) -> dict[str, Figure]:
    joules = math.fsum(part.joules for part in parts)
    covered = " + ".join(f"{p.name} ({p.how})" for p in parts)
    absent = [words for words in _PARTS.values() if words not in {p.name for p in parts}]
    rest = ", ".join([*absent, "the rest of the machine"])
    method = f"{covered}; not in it: {rest}"
    found = {"mean_power_watts": Figure(value=joules / seconds, unit="W", n=n, method=method)}
    if samples and joules > 0:
        found["energy_joules_per_sample"] = Figure(
            value=joules / samples, unit="J/sample", n=n, method=method
        )
        found["samples_per_joule"] = Figure(
            value=samples / joules, unit="samples/J", n=n, method=method
        )
    return found


def _covers(points: Points, spans: Sequence[Span]) -> bool:
    return (
        len(points) > 1
        and bool(spans)
        and points[0][0] <= min(start for start, _ in spans)
        and max(end for _, end in spans) <= points[-1][0]
    )


def _too_short(length: float, lengths: Sequence[float], need: float) -> str:
    what = "steps were measured for" if len(lengths) == 1 else "a stretch of steps took"
    return f"{what} {format_seconds(length)}, and {format_seconds(need)} are needed"


def _missing_gpu(missing: Mapping[str, str]) -> str:
    return missing.get("gpu") or missing.get(POWER) or missing.get(ENERGY) or _OUTSIDE


def _no_sensor(missing: Mapping[str, str]) -> str:
    told = {
        "GPU": missing.get("gpu") or missing.get(POWER),
        "CPU": missing.get(PACKAGE),
        "DRAM": missing.get(DRAM) if missing.get(DRAM) != missing.get(PACKAGE) else None,
    }
    known = "; ".join(f"{part}: {why}" for part, why in told.items() if why)
    return known or "no sensor was read"


def _unknown(why: str) -> Unknown:
    return Unknown(what=WHAT, why=f"not measurable: {why}")
