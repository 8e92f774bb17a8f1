"""Series, rates and curves from readings of counters.

Pure functions: a counter of CPU seconds becomes a percentage of cores, a counter of bytes or joules
a rate, each for the span that ends at its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from cubemesh.measure.telemetry.host import Reading
from cubemesh.schema.record import Curve
from cubemesh.schema.series import Series

Points = Sequence[tuple[float, float]]
"""(time, value) in rising order of time."""
RATES = {
    "pcie_tx_bytes": "pcie_tx_bytes_per_s",
    "pcie_rx_bytes": "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes": "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes": "nvlink_rx_bytes_per_s",
    "disk_read_bytes": "disk_read_bytes_per_s",
    "disk_write_bytes": "disk_write_bytes_per_s",
    "network_receive_bytes": "network_receive_bytes_per_s",
    "network_transmit_bytes": "network_transmit_bytes_per_s",
    "cpu_package_joules": "cpu_package_watts",
    "dram_joules": "dram_watts",
    "input_wait_percent_seconds": "input_wait_percent",
}
"""Counters that are shown as rates."""
FROM_ZERO = frozenset({"gpu_energy_joules"})
"""Counters that are shown relative to the first reading."""
MOST_IN_CURVE = 240
"""Limit on the points of a curve; above it, neighbours are averaged."""


def series_of(
    name: str, points: Points, new: int, *, device: str, first: float, least_s: float
) -> Series | None:
    """Series of the last `new` of `points`; `first` is the quantity's first value. A rate over less
    than `least_s` is left out: it would show the counter's update steps; so is one from or to a
    reading that is NaN. None without points."""
    if name in RATES:
        shown = [
            (end, max(0.0, b - a) / (end - start))
            for (start, a), (end, b) in pairwise(points[-new - 1 :])
            if end - start >= least_s and math.isfinite(b - a)
        ]
        return _series(RATES[name], shown, device) if shown else None
    less = first if name in FROM_ZERO else 0.0
    return _series(name, [(t, v - less) for t, v in points[-new:]], device)


def _series(name: str, points: Points, device: str = "host") -> Series:
    times, values = (tuple(p[i] for p in points) for i in (0, 1))
    return Series(name=name, device=device, times_s=times, values=values)


def percent_series(
    name: str, times_s: Sequence[float], counter_s: Sequence[float], cores: float
) -> Series:
    """Growth of a counter of CPU seconds in percent of `cores`, one value for each span between
    readings, at its end; empty spans are left out."""
    points = [
        (end, 100 * max(0.0, b - a) / (end - start) / cores)
        for (start, end), (a, b) in zip(pairwise(times_s), pairwise(counter_s), strict=True)
        if end > start
    ]
    return _series(name, points)


def cpu_percent(
    readings: Sequence[Reading], cores: float, start: float, end: float
) -> float | None:
    """CPU time of this process tree between `start` and `end` in percent of `cores`, interpolated
    between readings. None for an empty span."""
    used = _cores_used(readings, [r.tree_cpu_s for r in readings], start, end)
    return None if used is None else 100 * used / cores


def others_share(readings: Sequence[Reading], cores: int, start: float, end: float) -> float | None:
    """Fraction (0 to 1) of `cores` processors used by other process trees between `start` and
    `end`, interpolated between readings. None for an empty span."""
    others = [r.cores_busy_s - r.tree_cpu_s for r in readings]
    used = _cores_used(readings, others, start, end)
    return None if used is None else used / cores


def _cores_used(
    readings: Sequence[Reading], counter_s: Sequence[float], start: float, end: float
) -> float | None:
    times = [r.time_s for r in readings]
    start, end = max(start, times[0]), min(end, times[-1])
    if end <= start:
        return None
    first, last = np.interp([start, end], times, counter_s)
    return max(0.0, float(last - first) / (end - start))


def curve_since(name: str, points: Points, start: float) -> Curve:
    """A quantity over the seconds since `start`, with at most `MOST_IN_CURVE` points."""
    several = max(1, -(-len(points) // MOST_IN_CURVE))
    groups = [points[i : i + several] for i in range(0, len(points), several)]
    return Curve(
        name=name,
        x_name="seconds",
        x=tuple(g[-1][0] - start for g in groups),
        y=tuple(math.fsum(v for _, v in g) / len(g) for g in groups),
    )
