"""Roofline of a run: its layers under the roof of the device, as a chart and a table of losses.

The roof comes from the ceilings measured before the run, the datasheet's is dashed. Layers are
coloured by category; those with the largest loss are labelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from cubemesh.forecast.roofline import LAYER, LayerPoint, measured_roof, points_of
from cubemesh.forecast.utilization import Limits, datasheet_limits
from cubemesh.networks import build_for
from cubemesh.networks.activation_memory import ELEMENT_BYTES
from cubemesh.networks.cost import costs
from cubemesh.networks.layers import EmbeddingBags
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    Point,
    RunRecord,
    Table,
    TrainSteps,
)
from cubemesh.units import format_bytes, format_number, format_quantity

NAMED = 4
"""Layers with a label in the chart."""
LABEL_DISTANCE = 0.25
"""Smallest vertical distance of two labels in powers of ten: on a narrow page a label may reach
across the chart."""
MOST_CATEGORIES = 6
"""Number of colours; categories with the smallest loss are left out."""
CATEGORIES = ("convolution", "matrix product", "normalization", "elementwise", "pooling")
"""In the order of their colours."""
ROWS = 8
NOTE = (
    "Roofline: operations per byte moved and operations per second, forward and backward. "
    "A layer's floor is its shortest possible time under the measured roof; its loss is its time "
    "minus the floor. Bytes are counted without fusion and caches: a layer can be above the roof."
)


def roofline(record: RunRecord) -> Chart | None:
    """The chart of a record whose layers were timed; None without them."""
    roof = measured_roof(record)
    points = points_of(record, roof)
    if not points:
        return None
    sheet = datasheet_limits(record)
    ends = [p.intensity for p in points]
    for limits in (roof, sheet):
        if limits.flops_per_s and limits.bytes_per_s:
            ends.append(2 * limits.flops_per_s / limits.bytes_per_s)
    span = min(ends), max(ends)
    lines = (
        *_layers(points, record.run_id),
        *_roof(roof, span, "measured", "reference"),
        *_roof(sheet, span, "datasheet", "published"),
    )
    network, batch = getattr(record.spec.work, "network", ""), record.spec.batch_per_device
    return Chart(
        name=f"roofline-{network}-{batch}",
        title=f"{network} at batch size {batch}: roofline of its layers",
        kind="scatter",
        x=Axis(name="arithmetic intensity", unit="FLOP/B", scale="log10"),
        y=Axis(name="compute rate", unit="FLOP/s", scale="log10"),
        lines=lines,
    )


def roofline_table(record: RunRecord) -> Table | None:
    """The layers of a record with the largest loss; None without timed layers."""
    points = points_of(record, measured_roof(record))
    if not points:
        return None
    columns = (
        Column(name="layer"),
        Column(name="category"),
        Column(name="time", unit="s"),
        Column(name="floor", unit="s"),
        Column(name="loss", unit="s"),
        Column(name="rate", unit="FLOP/s"),
        Column(name="intensity", unit="FLOP/B", digits=2),
    )
    rows = tuple(_row(point, record.run_id) for point in points[:ROWS])
    return Table(
        title="Layers with the largest loss below the roofline", columns=columns, rows=rows
    )


def rooflines(records: Iterable[RunRecord]) -> tuple[Chart, ...]:
    """The charts of the records whose layers were timed."""
    return tuple(chart for record in records if (chart := roofline(record)) is not None)


def lookup_finding(record: RunRecord) -> Finding | None:
    """What bounds the lookups of embedding tables: the bytes they move, of which dense gradients of
    whole tables are the same at every batch size. None without such layers or measured ceilings."""
    roof, work = measured_roof(record), record.spec.work
    if not roof.flops_per_s or not roof.bytes_per_s or not isinstance(work, TrainSteps):
        return None
    network, precision = build_for(work), record.spec.program.precision
    timed = {r.name: r.seconds for b in record.breakdowns if b.name == LAYER for r in b.rows}
    own = [n for n in network.nodes if n.layer.category == "embedding" and timed.get(n.name)]
    counted = costs(network, work.batch_per_device, precision)
    moved = sum(counted[n.name].total.moved_bytes for n in own)
    if not moved:
        return None
    intensity = sum(counted[n.name].total.flops for n in own) / moved
    ridge = roof.flops_per_s / roof.bytes_per_s
    layers_s = sum(timed.get(n.name, 0.0) for n in network.nodes)
    share = 100 * sum(timed[n.name] for n in own) / layers_s
    tables = ELEMENT_BYTES[precision] * sum(
        math.prod(network.parameters[name].shape)
        for name in {name for n in own for name in n.parameters.values()}
        if name not in network.sparse_gradients
    )
    gradient = (
        f", {100 * min(1.0, tables / moved):.0f} % of it the dense gradient of the tables, which "
        "is as large at every batch size"
        if tables
        else "; the gradient of the tables is sparse"
    )
    remedy = "Set a larger batch size, which shares the gradient of the tables among more samples"
    if any(isinstance(n.layer, EmbeddingBags) for n in own):
        remedy += ", or embedding_gradients=sparse with SGD without momentum"
    remedy += "."
    bound = "memory-bound" if intensity < ridge else "not memory-bound"
    return Finding(
        code="lookups",
        question="What bounds the lookups of embeddings?",
        text=f"Lookups of {work.network} at batch size {work.batch_per_device} are {bound}: "
        f"{format_number(intensity)} operations for each byte moved, where this device's products "
        f"become the limit at {format_number(ridge)}. They take {share:.0f} % of the layers' time "
        f"and move {format_bytes(moved)} a step{gradient}.",
        value=share,
        unit="% of the layers' time",
        remedy=remedy if 2 * tables > moved else "",
    )


def _row(point: LayerPoint, run_id: str) -> tuple[Cell, ...]:
    known = point.floor_s is not None
    return (
        Cell(text=point.layer, run_id=run_id),
        Cell(text=point.category),
        Cell(value=point.seconds),
        Cell(value=point.floor_s) if known else Cell(reason="no measured ceilings"),
        Cell(value=point.lost_s) if known else Cell(text="–"),
        Cell(value=point.flops_per_s),
        Cell(value=point.intensity),
    )


def _layers(points: Sequence[LayerPoint], run_id: str) -> list[Line]:
    """The points of the categories with the largest loss, ordered so that a category mostly has the
    same colour."""
    lost: dict[str, float] = {}
    for point in points:
        lost[point.category] = lost.get(point.category, 0.0) + point.lost_s
    named = _named(points)
    most = sorted(lost, key=lambda category: -lost[category])[:MOST_CATEGORIES]
    usual = [category for category in CATEGORIES if category in most]
    order = [*usual, *(category for category in most if category not in usual)]
    return [
        Line(
            name=category,
            points=tuple(
                Point(
                    x=p.intensity,
                    y=p.flops_per_s,
                    run_id=run_id,
                    label=p.layer if p.layer in named else "",
                )
                for p in points
                if p.category == category
            ),
        )
        for category in order
    ]


def _named(points: Sequence[LayerPoint]) -> set[str]:
    """The layers with the largest loss whose labels do not overlap."""
    chosen: list[LayerPoint] = []
    for point in points:
        if len(chosen) == NAMED:
            break
        if all(
            abs(math.log10(point.flops_per_s / other.flops_per_s)) > LABEL_DISTANCE
            for other in chosen
        ):
            chosen.append(point)
    return {point.layer for point in chosen}


def _roof(
    limits: Limits,
    span: tuple[float, float],
    name: str,
    role: Literal["reference", "published"],
) -> list[Line]:
    """The roof over the intensities in `span`: rising to the ridge, then flat."""
    rate, bandwidth = limits.flops_per_s, limits.bytes_per_s
    if not rate or not bandwidth:
        return []
    low, high = span
    ridge = rate / bandwidth
    xs = [low, *([ridge] if low < ridge < high else []), high]
    words = f"{name}: {format_quantity(rate, 'FLOP/s')}, {format_quantity(bandwidth, 'B/s')}"
    points = tuple(Point(x=x, y=min(rate, x * bandwidth)) for x in xs)
    return [Line(name=words, points=points, role=role)]
