"""What did others publish of the same network? Shown beside a measurement, never mixed with it.

The table holds the nearest published throughputs, five at most. A published line is drawn only
where one system was measured at several minibatches, and not where it would stand so high that the
measured line could no longer be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.experiments.groups import Group
from cubemesh.model import Cell, Column, Line, Point, PublishedFigure, RunRecord, Table
from cubemesh.results.published import Series, figures, nearest, sweep

ROWS = 5
FORWARD_BACKWARD = "forward+backward time"
HIGHEST = 3.0
"""A published line is left out where it would rise above the measured one this many times."""


def nearest_table(network: str, groups: Sequence[Group[int]]) -> tuple[Table, ...]:
    """The published rows nearest to the fastest of `groups` (keyed by minibatch); none where
    nothing was measured or nothing is published.

    The source of a row stands last, so that its name may run on.
    """
    done = [(f.value, g) for g in groups if (f := g.throughput) is not None]
    if not done:
        return ()
    best = max(done, key=lambda p: p[0])[1]
    record = best.ok[0]
    found = nearest(
        figures(),
        network=network,
        devices=_devices(record),
        precision=record.spec.program.precision,
        batch_per_device=best.key,
        limit=ROWS,
    )
    if not found:
        return ()
    columns = (
        Column(name="device"),
        Column(name="framework"),
        Column(name="precision"),
        Column(name="minibatch"),
        Column(name="samples/s"),
        Column(name="network"),
        Column(name="system"),
        Column(name="source"),
    )
    title = "Beside the published record"
    return (Table(title=title, columns=columns, rows=tuple(map(_row, found))),)


def nearest_times(groups: Sequence[Group[tuple[str, str]]]) -> tuple[Table, ...]:
    """Published times of a minibatch forward and backward, nearest to what was measured: two rows
    a network of `groups` (keyed by network and framework). They leave out the update."""
    rows: list[tuple[Cell, ...]] = []
    for network in dict.fromkeys(g.key[0] for g in groups):
        record = next((g.ok[0] for g in groups if g.key[0] == network and g.ok), None)
        if record is None:
            continue
        found = nearest(
            figures(),
            network=network,
            devices=_devices(record),
            precision=record.spec.program.precision,
            batch_per_device=record.spec.batch_per_device,
            metric=FORWARD_BACKWARD,
            limit=2,
        )
        rows += [_time_row(f) for f in found]
    columns = (
        Column(name="network"),
        Column(name="device"),
        Column(name="framework"),
        Column(name="minibatch"),
        Column(name="forward + backward", unit="ms"),
        Column(name="source"),
    )
    title = "Beside the published record"
    return (Table(title=title, columns=columns, rows=tuple(rows)),) if rows else ()


def _time_row(figure: PublishedFigure) -> tuple[Cell, ...]:
    return (
        Cell(text=figure.canonical or figure.network),
        Cell(text=_device(figure)),
        Cell(text=_short(figure.framework) or "not stated"),
        Cell(text=str(figure.batch_per_device or "not stated")),
        Cell(value=figure.value),
        Cell(text=figure.source),
    )


def published_sweep(network: str, groups: Sequence[Group[int]]) -> Series:
    """One published system's throughputs within the minibatches that `groups` measured; none where
    no source has three of them, or where they would hide what was measured."""
    measured = [(g.key, f.value) for g in groups if (f := g.throughput) is not None]
    if not measured:
        return ()
    batches = [batch for batch, _ in measured]
    precision = groups[0].records[0].spec.program.precision
    found = sweep(
        figures(), network=network, precision=precision, batches=(min(batches), max(batches))
    )
    top = max(y for _, y in measured)
    return found if not found or max(f.value for f in found) <= HIGHEST * top else ()


def published_line(found: Series) -> tuple[Line, ...]:
    """A published sweep as the line of a chart; none for none."""
    if not found:
        return ()
    name = f"{found[0].device}, {found[0].precision} (published)"
    points = tuple(Point(x=f.batch_per_device or 0, y=f.value) for f in found)
    return (Line(name=name, points=points, role="published"),)


def published_note(found: Series) -> tuple[str, ...]:
    """Where the published line comes from."""
    if not found:
        return ()
    f = found[0]
    return (
        f"The published line: {f.network} on {f.device} with {f.framework}, {f.precision} "
        f"({f.source}).",
    )


def _devices(record: RunRecord) -> int:
    """As published tables count: 0 is a run on a CPU."""
    on_cpu = any(rank.device == "cpu" for rank in record.ranks)
    return 0 if on_cpu else record.spec.placement.devices


def _row(figure: PublishedFigure) -> tuple[Cell, ...]:
    implied = " (implied)" if figure.precision_implied else ""
    return (
        Cell(text=_device(figure)),
        Cell(text=_short(figure.framework) or "not stated"),
        Cell(text=f"{figure.precision or 'not stated'}{implied}"),
        Cell(text=str(figure.batch_per_device or "not stated")),
        Cell(value=figure.value),
        Cell(text=figure.network),
        Cell(text=figure.system),
        Cell(text=figure.source),
    )


def _device(figure: PublishedFigure) -> str:
    if figure.devices is None:
        return f"{figure.device}, count not stated"
    return f"{figure.devices}× {figure.device}" if figure.devices > 1 else figure.device


def _short(framework: str) -> str:
    """The framework with its version; the libraries below it are in the data."""
    return framework.split(",")[0].strip()
