"""What did all ranks find of a collective, and which figures follow from it?

    bus_bytes_per_s   the highest bus bandwidth of any size
    latency_s         the time of the smallest size
    wrong_elements    elements that were not what they must be, over all sizes, ranks and checks

The time of a size is the mean over ranks, group by group; what only some ranks came to is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cubemesh.schema.collective import SweepPoint, bus_factor
from cubemesh.schema.record import Figure
from cubemesh.schema.warning import Warning, warn
from cubemesh.statistics import FEWEST_FOR_INTERVAL, bootstrap_interval, mean
from cubemesh.units import format_bytes, format_count

Place = tuple[int, bool, tuple[int, int] | None]


def merged(told: Iterable[tuple[int, SweepPoint]], ranks: int) -> tuple[SweepPoint, ...]:
    """One point for each size and way, of what each rank told: pairs (rank, point)."""
    places: dict[Place, dict[int, SweepPoint]] = {}
    for rank, point in told:
        place = (point.size_bytes, point.in_place, point.pair)
        places.setdefault(place, {})[rank] = point
    return tuple(
        _merged(list(points.values()))
        for (*_, pair), points in places.items()
        if len(points) == (ranks if pair is None else len(pair))
    )


def _merged(points: Sequence[SweepPoint]) -> SweepPoint:
    first = points[0]
    groups = zip(*(p.seconds for p in points), strict=True)
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
    """Bus bandwidth at a size, with its interval where there were groups enough."""
    factor = 1.0 if point.pair is not None else bus_factor(collective, ranks)
    moved, n = point.size_bytes * factor, len(point.seconds)
    value = moved / point.time_s
    if n < FEWEST_FOR_INTERVAL:
        return Figure(value=value, unit="B/s", n=n)
    time = bootstrap_interval(point.seconds, mean)
    low, high = moved / time.high, moved / time.low
    return Figure(value=value, unit="B/s", low=min(low, value), high=max(high, value), n=n)


def sweep_figures(points: Sequence[SweepPoint], collective: str, ranks: int) -> dict[str, Figure]:
    """The figures above; none without points."""
    together = [p for p in points if p.pair is None]
    if not together:
        return {}
    best = max(together, key=lambda p: p.algorithm_bytes_per_s)
    least = min(together, key=lambda p: (p.size_bytes, p.time_s))
    bus, latency = bus_bandwidth(best, collective, ranks), Figure(value=least.time_s, unit="s")
    found = {
        "bus_bytes_per_s": _of(bus, f"{collective} of {format_bytes(best.size_bytes)}"),
        "latency_s": _of(latency, f"{collective} of {format_bytes(least.size_bytes)}"),
    }
    checked = [p.wrong for p in points if p.wrong is not None]
    if checked:
        found["wrong_elements"] = Figure(
            value=float(sum(checked)), unit="elements", n=len(checked), method="over all sizes"
        )
    return found


def _of(figure: Figure, method: str) -> Figure:
    return Figure(
        value=figure.value,
        unit=figure.unit,
        low=figure.low,
        high=figure.high,
        n=figure.n,
        method=method,
    )


def wrong_results(points: Sequence[SweepPoint], collective: str, library: str) -> Warning | None:
    """A warning where elements were wrong."""
    bad = [p for p in points if p.wrong]
    if not bad:
        return None
    sizes = ", ".join(dict.fromkeys(format_bytes(p.size_bytes) for p in bad[:3]))
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return warn(
        "wrong-results",
        f"{format_count(sum(p.wrong or 0 for p in bad))} elements of {collective} by "
        f"{library or 'an unnamed library'} were not what they must be, at {sizes}{more}.",
        "Trust nothing that these devices exchange until it is found out: look at the links' error "
        "counters, and measure again with peer-to-peer switched off (NCCL_P2P_DISABLE=1).",
    )
