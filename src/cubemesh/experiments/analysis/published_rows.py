"""Published throughputs of the same network, shown next to measurements and never mixed with them.

The table holds the nearest published throughputs, five at most. A published line is drawn if one
system was measured at several batch sizes, unless it is so high that the measured line could no
longer be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.utilization_columns import ABOVE_WHOLE
from cubemesh.networks.own_input import at_own_size
from cubemesh.papers.published import Series, figures, nearest, peak_share, sweep
from cubemesh.schema import Cell, Column, Line, Point, PublishedFigure, RunRecord, Table, Warning
from cubemesh.units import format_number

ROWS = 5
FORWARD_BACKWARD = "forward+backward time"
FORWARD_BACKWARD_TIME = Column(name="forward + backward", unit="ms")
HIGHEST = 3.0
"""A published line this many times as high as the measured one is left out."""


def nearest_rows(network: str, groups: Sequence[Group[int]]) -> list[PublishedFigure]:
    """The published rows nearest to the fastest of `groups` (keyed by batch size); none where
    nothing was measured at the network's own image size, or nothing is published."""
    done = [(f.value, g) for g in groups if (f := g.throughput) is not None]
    if not done:
        return []
    best = max(done, key=lambda p: p[0])[1]
    record = best.ok[0]
    if not at_own_size(record.spec.work):
        return []
    return nearest(
        figures(),
        network=network,
        device=_device_name(record),
        devices=_devices(record),
        precision=record.spec.program.precision,
        batch_per_device=best.key,
        limit=ROWS,
    )


def nearest_table(found: Sequence[PublishedFigure], value: Column) -> tuple[Table, ...]:
    """Published rows as a table with the column `value`; the source is last, because it is long."""
    if not found:
        return ()
    columns = (
        Column(name="device"),
        Column(name="framework"),
        Column(name="precision"),
        Column(name="batch size"),
        value,
        Column(name="of peak", unit="%"),
        Column(name="network"),
        Column(name="system"),
        Column(name="source"),
    )
    title = "Nearest published results"
    return (Table(title=title, columns=columns, rows=tuple(map(_row, found))),)


def above_peak(found: Sequence[PublishedFigure]) -> tuple[Warning, ...]:
    """Warnings of published rows that exceed their device's peak."""
    shares = (peak_share(figure) for figure in found)
    return tuple(share.warning for share in shares if share.warning is not None)


def _share_cell(figure: PublishedFigure) -> Cell:
    """The percentage of its device's peak that a published figure reached."""
    found = peak_share(figure)
    if found.share is None:
        return Cell(text="–")
    if found.share > 1:
        return Cell(text=ABOVE_WHOLE)
    if found.at_least:
        return Cell(text=f"≥ {format_number(100 * found.share)}")
    return Cell(value=100 * found.share)


def time_rows(groups: Sequence[Group[tuple[str, str]]]) -> list[PublishedFigure]:
    """Published times of a forward and backward pass, nearest to what was measured: two rows
    a network of `groups` (keyed by network and framework) that ran at its own image size. They
    exclude the update."""
    rows: list[PublishedFigure] = []
    for network in dict.fromkeys(g.key[0] for g in groups):
        record = next((g.ok[0] for g in groups if g.key[0] == network and g.ok), None)
        if record is None or not at_own_size(record.spec.work):
            continue
        rows += nearest(
            figures(),
            network=network,
            device=_device_name(record),
            devices=_devices(record),
            precision=record.spec.program.precision,
            batch_per_device=record.spec.batch_per_device,
            metric=FORWARD_BACKWARD,
            limit=2,
        )
    return rows


def published_sweep(network: str, groups: Sequence[Group[int]]) -> Series:
    """One published system's throughputs within the batch sizes that `groups` measured; none where
    no source has three of them, or where they would hide what was measured."""
    measured = [(g.key, f.value) for g in groups if (f := g.throughput) is not None]
    if not measured:
        return ()
    if not at_own_size(groups[0].records[0].spec.work):
        return ()
    batches = [batch for batch, _ in measured]
    precision = groups[0].records[0].spec.program.precision
    found = sweep(
        figures(), network=network, precision=precision, batches=(min(batches), max(batches))
    )
    top = max(y for _, y in measured)
    return found if not found or max(f.value for f in found) <= HIGHEST * top else ()


def published_line(found: Series) -> tuple[Line, ...]:
    """A published sweep as the line of a chart."""
    if not found:
        return ()
    name = f"{found[0].device}, {found[0].precision} (published)"
    points = tuple(Point(x=f.batch_per_device or 0, y=f.value) for f in found)
    return (Line(name=name, points=points, role="published"),)


def published_note(found: Series) -> tuple[str, ...]:
    """The source of the published line."""
    if not found:
        return ()
    f = found[0]
    return (
        f"The published line: {f.network} on {f.device} with {f.framework}, {f.precision} "
        f"({f.source}).",
    )


def _device_name(record: RunRecord) -> str | None:
    """The name of the device a run used; None if unknown, or for the null framework."""
    return (record.ranks[0].device_name or None) if record.ranks else None


def _devices(record: RunRecord) -> int:
    """The number of devices; 0 for a run on a CPU, as in published tables."""
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
        _share_cell(figure),
        Cell(text=figure.network),
        Cell(text=figure.system),
        Cell(text=figure.source),
    )


def _device(figure: PublishedFigure) -> str:
    if figure.devices is None:
        return f"{figure.device}, count not stated"
    return f"{figure.devices}× {figure.device}" if figure.devices > 1 else figure.device


def _short(framework: str) -> str:
    """The framework with its version, without the libraries below it."""
    return framework.split(",")[0].strip()
