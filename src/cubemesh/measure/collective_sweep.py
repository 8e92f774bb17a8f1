"""Results of a collective sweep: the points of all ranks merged, and figures from them.

    bus_bytes_per_s   the highest bus bandwidth over all sizes
    latency_s         the time at the smallest size
    wrong_elements    elements with a wrong result, over all sizes, ranks and checks

The time at a size is the mean over ranks, group by group; points and groups that some ranks lack
are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cubemesh.schema.collective import SweepPoint, bus_factor
from cubemesh.schema.record import Figure
from cubemesh.schema.warning import Warning, warn
from cubemesh.statistics import FEWEST_FOR_INTERVAL, mean, throughput_interval
from cubemesh.units import format_bytes, format_count

Place = tuple[int, bool, tuple[int, int] | None]


def merge_points(found: Iterable[tuple[int, SweepPoint]], ranks: int) -> tuple[SweepPoint, ...]:
    """One point for each size, placement and pair from the (rank, point) pairs of all ranks."""
    places: dict[Place, dict[int, SweepPoint]] = {}
    for rank, point in found:
        place = (point.size_bytes, point.in_place, point.pair)
        places.setdefault(place, {})[rank] = point
    return tuple(
        _merged(list(points.values()))
        for (*_, pair), points in places.items()
        if len(points) == (ranks if pair is None else len(pair))
    )


def _merged(points: Sequence[SweepPoint]) -> SweepPoint:
    first = points[0]
    groups = zip(*(p.seconds for p in points), strict=False)
    wrong = [p.wrong for p in points if p.wrong is not None]
    return SweepPoint(
        size_bytes=first.size_bytes,
        count=first.count,
        in_place=first.in_place,
        pair=first.pair,
        iterations=first.iterations,
        seconds=tuple(mean(group) for group in groups),
        wrong=sum(wrong) if wrong else None,
    )


def bus_bandwidth(point: SweepPoint, collective: str, ranks: int) -> Figure:
    """Bus bandwidth at a size, with an interval where there are enough groups."""
    factor = 1.0 if point.pair is not None else bus_factor(collective, ranks)
    moved, n = point.size_bytes * factor, len(point.seconds)
    value = moved / point.time_s
    if n < FEWEST_FOR_INTERVAL:
        return Figure(value=value, unit="B/s", n=n)
    time = throughput_interval([1.0] * n, point.seconds)
    return Figure(value=value, unit="B/s", low=moved * time.low, high=moved * time.high, n=n)


def sweep_figures(points: Sequence[SweepPoint], collective: str, ranks: int) -> dict[str, Figure]:
    """The figures above; empty without points."""
    collective_points = [p for p in points if p.pair is None]
    if not collective_points:
        return {}
    best = max(collective_points, key=lambda p: p.algorithm_bytes_per_s)
    least = min(collective_points, key=lambda p: (p.size_bytes, p.time_s))
    found = {
        "bus_bytes_per_s": replace(
            bus_bandwidth(best, collective, ranks),
            method=f"{collective} of {format_bytes(best.size_bytes)}",
        ),
        "latency_s": Figure(
            value=least.time_s,
            unit="s",
            method=f"{collective} of {format_bytes(least.size_bytes)}",
        ),
    }
    checked = [p.wrong for p in points if p.wrong is not None]
    if checked:
        found["wrong_elements"] = Figure(
            value=float(sum(checked)), unit="elements", n=len(checked), method="over all sizes"
        )
    return found


def wrong_results(points: Sequence[SweepPoint], collective: str, library: str) -> Warning | None:
    """The warning `wrong-results` where elements were wrong, else None."""
    bad = [p for p in points if p.wrong]
    if not bad:
        return None
    sizes = ", ".join(dict.fromkeys(format_bytes(p.size_bytes) for p in bad[:3]))
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return warn(
        "wrong-results",
        f"{format_count(sum(p.wrong or 0 for p in bad))} elements of {collective} by "
        f"{library or 'an unnamed library'} had wrong values, at {sizes}{more}.",
        "Do not use results from these devices. Check the links' error counters, and measure again "
        "with peer-to-peer access disabled (NCCL_P2P_DISABLE=1).",
    )
