"""Findings, tables (as in nccl-tests) and charts of sweeps of collectives.

Charts have the faster of out of place and in place at each size; tables have both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.experiments.analysis.answer import cell_or_dash, failed_run
from cubemesh.experiments.analysis.groups import Group
from cubemesh.measure.collective_sweep import bus_bandwidth, sweep_figures
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Collective,
    Column,
    Finding,
    Line,
    Point,
    RunRecord,
    SweepPoint,
    Table,
)
from cubemesh.schema.collective import REDUCING
from cubemesh.units import format_bytes, format_count, format_quantity, format_seconds

CollectiveKey = tuple[str, int]
"""(collective, devices)."""
Groups = Sequence[Group[CollectiveKey]]
_WAY = (
    Column(name="time", unit="s"),
    Column(name="algbw", unit="B/s"),
    Column(name="busbw", unit="B/s"),
    Column(name="#wrong"),
)


def group_key(record: RunRecord) -> CollectiveKey:
    """Collective and number of devices of a record."""
    return collective_of(record).collective, record.spec.placement.devices


def collective_of(record: RunRecord) -> Collective:
    """The work of a record of a collective."""
    work = record.spec.work
    assert isinstance(work, Collective)
    return work


def all_rank_points(record: RunRecord) -> list[SweepPoint]:
    """The points of all ranks together, without those of pairs."""
    return [p for p in record.sweep if p.pair is None]


def redop(work: Collective) -> str:
    """The reduction, as nccl-tests writes it: `none` without one."""
    return work.reduction if work.collective in REDUCING else "none"


def findings(groups: Groups) -> Iterator[Finding]:
    """Bandwidth and latency of each collective, pairs of devices, and wrong results."""
    for number, group in enumerate(groups):
        if not group.ok:
            yield failed_run(_name(group.key), group)
            continue
        yield _speed(group, card=number == 0)
        yield from _pairs(group)
    yield from _checked([r for g in groups for r in g.ok])


def _speed(group: Group[CollectiveKey], *, card: bool) -> Finding:
    record, (collective, devices) = group.ok[0], group.key
    found = sweep_figures(record.sweep, collective, devices)
    bus, latency = found["bus_bytes_per_s"], found["latency_s"]
    at = bus.method.rpartition(" of ")[2]
    least = latency.method.rpartition(" of ")[2]
    return Finding.of(
        code="bus-bandwidth",
        question="How fast do the devices communicate?" if card else None,
        text=f"{_name(group.key)} reaches a bus bandwidth of "
        f"{format_quantity(bus.value, 'B/s')} ({record.library}), at {at}; {least} "
        f"take{'s' if least.startswith('1 ') else ''} {format_seconds(latency.value)}.",
        figure=bus,
        unit="B/s",
        caveats=group.caveats,
    )


def _pairs(group: Group[CollectiveKey]) -> Iterator[Finding]:
    pairs = [p for p in group.ok[0].sweep if p.pair is not None]
    if len(pairs) < 3:
        return
    slow, fast = (pick(pairs, key=lambda p: p.algorithm_bytes_per_s) for pick in (min, max))
    yield Finding(
        code="pair-bandwidth",
        text=f"Between single pairs of the {group.key[1]} devices, {_arrow(fast)} is fastest with "
        f"{format_quantity(fast.algorithm_bytes_per_s, 'B/s')} and {_arrow(slow)} slowest with "
        f"{format_quantity(slow.algorithm_bytes_per_s, 'B/s')}, at "
        f"{format_bytes(fast.size_bytes)}.",
    )


def _checked(records: Sequence[RunRecord]) -> Iterator[Finding]:
    points = [(r, p) for r in records for p in r.sweep if p.wrong is not None]
    wrong = sum(p.wrong or 0 for _, p in points)
    if wrong:
        names = ", ".join(dict.fromkeys(group_key(r)[0] for r, p in points if p.wrong))
        yield Finding(
            code="wrong-results",
            text=f"{format_count(wrong)} elements were wrong, in {names}.",
            value=wrong,
            unit="elements",
            remedy="Results from these devices are wrong; check link error counters before using "
            "them.",
            caveats=("wrong-results",),
        )
    elif points:
        yield Finding(
            code="correct-results",
            text=f"All elements of {format_count(len(points))} results were correct.",
        )


def tables(groups: Groups) -> Iterator[Table]:
    """A table for each collective and number of devices."""
    for group in groups:
        if group.ok:
            yield from sweep_tables(group.ok[0])


def sweep_tables(record: RunRecord) -> tuple[Table, ...]:
    """The tables of a record of a collective; none for other work."""
    if not record.sweep:
        return ()
    return (sweep_table(record), *_matrix(record))


def sweep_table(record: RunRecord) -> Table:
    """A sweep by size: out of place, then in place."""
    work, devices = collective_of(record), record.spec.placement.devices
    points = all_rank_points(record)
    ways = tuple(dict.fromkeys(p.in_place for p in sorted(points, key=lambda p: p.in_place)))
    named = [
        Column(name=f"{c.name}, in place" if way and len(ways) > 1 else c.name, unit=c.unit)
        for way in ways
        for c in _WAY
    ]
    rows = []
    for size in dict.fromkeys(p.size_bytes for p in points):
        own = {p.in_place: p for p in points if p.size_bytes == size}
        first = next(iter(own.values()))
        cells = [Cell(value=float(size), run_id=record.run_id), Cell(value=float(first.count))]
        for way in ways:
            cells += _cells(own.get(way), work, devices)
        rows.append(tuple(cells))
    how = f", {redop(work)}" if work.collective in REDUCING else ""
    place = " in place" if ways == (True,) else ""
    return Table(
        title=f"{_name((work.collective, devices))}{place}: {work.data_type}{how}",
        columns=(Column(name="size", unit="bytes"), Column(name="count", digits=12), *named),
        rows=tuple(rows),
    )


def _cells(point: SweepPoint | None, work: Collective, devices: int) -> list[Cell]:
    if point is None:
        return [Cell(text="–")] * len(_WAY)
    bus = bus_bandwidth(point, work.collective, devices)
    return [
        Cell(value=point.time_s),
        Cell(value=point.algorithm_bytes_per_s),
        Cell.of(bus),
        Cell(text="not checked") if point.wrong is None else Cell(value=float(point.wrong)),
    ]


def _matrix(record: RunRecord) -> Iterator[Table]:
    pairs = {p.pair: p for p in record.sweep if p.pair is not None}
    if not pairs:
        return
    size, ranks = next(iter(pairs.values())).size_bytes, range(record.spec.placement.devices)
    yield Table(
        title=f"Bandwidth of single pairs, {format_bytes(size)}: from (rows) to (columns)",
        columns=(Column(name="from"), *(Column(name=f"to {rank}", unit="B/s") for rank in ranks)),
        rows=tuple(
            (
                Cell(text=str(first), run_id=record.run_id),
                *(
                    cell_or_dash(p.algorithm_bytes_per_s if p else None)
                    for p in (pairs.get((first, last)) for last in ranks)
                ),
            )
            for first in ranks
        ),
    )


def charts(groups: Groups) -> Iterator[Chart]:
    """Bus bandwidth and time by size, with logarithmic axes; pairs of devices as a heat map."""
    measured = [g for g in groups if g.ok]
    if measured:
        yield _by_size(
            measured,
            "bus-bandwidth",
            "Bus bandwidth by size",
            Axis(name="bus bandwidth", unit="GB/s", scale="log10"),
        )
        yield _by_size(
            measured, "collective-time", "Time by size", Axis(name="time", unit="µs", scale="log10")
        )
    for group in measured:
        yield from _heat(group)


def _by_size(groups: Groups, name: str, title: str, y: Axis) -> Chart:
    several = len({g.key[1] for g in groups}) > 1
    return Chart(
        name=name,
        title=title,
        kind="line",
        x=Axis(name="size", unit="bytes", scale="log2"),
        y=y,
        lines=tuple(
            Line(
                name=_name(g.key) if several else g.key[0],
                points=tuple(_points(g.ok[0], bandwidth=y.unit == "GB/s")),
            )
            for g in groups
        ),
    )


def _points(record: RunRecord, *, bandwidth: bool) -> Iterator[Point]:
    collective, devices = group_key(record)
    points = all_rank_points(record)
    for size in dict.fromkeys(p.size_bytes for p in points):
        best = min((p for p in points if p.size_bytes == size), key=lambda p: p.time_s)
        if not bandwidth:
            yield Point(x=float(size), y=1e6 * best.time_s, run_id=record.run_id)
            continue
        bus = bus_bandwidth(best, collective, devices).scaled(1e-9, "GB/s")
        yield Point(x=float(size), y=bus.value, low=bus.low, high=bus.high, run_id=record.run_id)


def _heat(group: Group[CollectiveKey]) -> Iterator[Chart]:
    record = group.ok[0]
    pairs = {p.pair: p for p in record.sweep if p.pair is not None}
    if len(pairs) < 3:
        return
    ranks = range(group.key[1])
    size = format_bytes(next(iter(pairs.values())).size_bytes)
    yield Chart(
        name=f"pairs-{group.key[1]}",
        title=f"Bandwidth of single pairs, {size}",
        kind="heat",
        x=Axis(name="to", scale="category"),
        y=Axis(name="bandwidth", unit="B/s"),
        rows="from",
        lines=tuple(
            Line(
                name=str(first),
                points=tuple(
                    Point(
                        x=str(last),
                        y=p.algorithm_bytes_per_s if (p := pairs.get((first, last))) else None,
                        reason="" if first != last else "same device",
                        run_id=record.run_id,
                    )
                    for last in ranks
                ),
            )
            for first in ranks
        ),
    )


def _name(key: CollectiveKey) -> str:
    return f"{key[0]} on {key[1]} devices"


def _arrow(point: SweepPoint) -> str:
    assert point.pair is not None
    return f"{point.pair[0]} to {point.pair[1]}"
