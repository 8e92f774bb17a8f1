"""What do readings of counters say about a span of time?

Pure functions from readings to series, shares and curves: a counter of processor seconds becomes a
percentage of cores, a counter of bytes or joules a rate, each for the span that ends at its time.
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
}
"""Counters that are shown as what they grow by in a second."""
FROM_ZERO = frozenset({"gpu_energy_joules"})
"""Counters that are shown as what they have grown by since the first reading."""
MOST_IN_CURVE = 240
"""A curve of more points than this is thinned to means of neighbours."""


def series_of(
    name: str, points: Points, new: int, *, device: str, first: float, least_s: float
) -> Series | None:
    """The series that the last `new` of `points` make of a quantity as it was read; `first` is its
    first value of all. A rate over less than `least_s` is left out: it would show how a counter
    moves, not what it counts. None where there is nothing to show yet."""
    if name in RATES:
        shown = [
            (end, max(0.0, b - a) / (end - start))
            for (start, a), (end, b) in pairwise(points[-new - 1 :])
            if end - start >= least_s
        ]
        return _series(RATES[name], shown, device)
    less = first if name in FROM_ZERO else 0.0
    return _series(name, [(t, v - less) for t, v in points[-new:]], device)


def _series(name: str, points: Points, device: str = "host") -> Series | None:
    if not points:
        return None
    times, values = zip(*points, strict=True)
    return Series(name=name, device=device, times_s=times, values=values)


def percent_series(
    name: str, times_s: Sequence[float], counter_s: Sequence[float], cores: float
) -> Series:
    """The growth of a counter of processor seconds as a percentage of `cores`, a value for each
    span between neighbouring readings at the time of its end; spans of no length are left out."""
    points = [
        (end, 100 * max(0.0, b - a) / (end - start) / cores)
        for (start, end), (a, b) in zip(pairwise(times_s), pairwise(counter_s), strict=True)
        if end > start
    ]
    return Series(
        name=name, times_s=tuple(t for t, _ in points), values=tuple(v for _, v in points)
    )


def cpu_percent(
    readings: Sequence[Reading], cores: float, start: float, end: float
) -> float | None:
    """Processor time of this process tree between `start` and `end` as a percentage of `cores`;
    the counter is interpolated between readings. None for a span of no length."""
    times = [r.time_s for r in readings]
    start, end = max(start, times[0]), min(end, times[-1])
    if end <= start:
        return None
    first, last = np.interp([start, end], times, [r.tree_cpu_s for r in readings])
    return max(0.0, 100 * float(last - first) / (end - start) / cores)


def curve_since(name: str, points: Points, start: float) -> Curve:
    """A quantity against the seconds since `start`, as means of neighbours where there are more
    points than anyone can see."""
    several = max(1, -(-len(points) // MOST_IN_CURVE))
    groups = [points[i : i + several] for i in range(0, len(points), several)]
    return Curve(
        name=name,
        x_name="seconds",
        x=tuple(g[-1][0] - start for g in groups),
        y=tuple(math.fsum(v for _, v in g) / len(g) for g in groups),
    )


def others_share(readings: Sequence[Reading], cores: int, start: float, end: float) -> float | None:
    """Share (0 to 1) of `cores` processors that was not this process tree's work, yet work, between
    `start` and `end`; counters are interpolated between readings. None for a span of no length."""
    times = [r.time_s for r in readings]
    start, end = max(start, times[0]), min(end, times[-1])
    if end <= start:
        return None
    others = [r.cores_busy_s - r.tree_cpu_s for r in readings]
    first, last = np.interp([start, end], times, others)
    return max(0.0, float(last - first) / (end - start) / cores)
