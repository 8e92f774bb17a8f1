"""Training time of a fixed number of samples, by number of devices (`samples=`).

The method of the paper 003: the batch size per device is constant, the number of iterations shrinks
as devices are added, so that every number of devices trains the same samples.

    iterations      samples / global batch size
    training time   from the start of the first measured iteration to the end of the last, the
                    longest over the ranks; after the warm-up
    epochs          iterations × global batch size / samples of the training set

images/s is batch size × N / M of N iterations that take M seconds. The wall time of the run has the
start of the framework, compiling and the warm-up, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cubemesh.data import entry as source_of
from cubemesh.experiments.analysis.answer import cell_or_dash
from cubemesh.experiments.analysis.groups import Group, caveats, throughput_unit
from cubemesh.experiments.scaling.analysis import ScalingData
from cubemesh.experiments.scaling.design import NO_SYNC, ScalingCurve, ScalingGroup
from cubemesh.networks.own_input import is_imagenet
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    NetworkWork,
    Point,
    RunRecord,
    Table,
)
from cubemesh.statistics import median
from cubemesh.units import format_devices, format_seconds

IMAGENET_IMAGES = 1_281_167
"""Training images of ILSVRC 2012 (Russakovsky et al., IJCV 115, 2015, table 2)."""


def training_time_s(record: RunRecord) -> float | None:
    """Seconds from the first measured step to the end of the last, of the slowest rank; None
    without a measurement of a fixed number of steps."""
    if not record.ok or not record.spec.budget.exact_steps or not record.measured:
        return None
    spans = []
    for rank in {w.rank for w in record.measured}:
        own = [w for w in record.measured if w.rank == rank]
        spans.append(max(w.start_s + w.elapsed_s for w in own) - min(w.start_s for w in own))
    return max(spans)


def group_time_s(group: Group[Any]) -> float | None:
    """The median over the runs of a point."""
    found = [s for r in group.ok if (s := training_time_s(r)) is not None]
    return median(found) if found else None


def fixed_groups(data: ScalingData) -> list[tuple[ScalingCurve, ScalingGroup]]:
    """The points that trained a fixed number of samples together, by curve."""
    return [
        (curve, group)
        for curve in data.curves
        for group in curve.groups
        if group.records[0].spec.budget.exact_steps and _together(group)
    ]


def _together(group: ScalingGroup) -> bool:
    """Whether its devices train one network."""
    devices, sync = group.key
    return devices == 1 or sync != NO_SYNC


def epochs(record: RunRecord) -> float | None:
    """Passes over the training set; None where its size is unknown."""
    spec, work = record.spec, record.spec.work
    assert isinstance(work, NetworkWork)
    whole = source_of(work.data).train_samples
    if whole is None and is_imagenet(work):
        whole = IMAGENET_IMAGES
    return None if whole is None else spec.budget.steps * (spec.global_batch or 0) / whole


def time_findings(data: ScalingData) -> Iterator[Finding]:
    """For each curve and strategy the training time on one device and on the most."""
    points = fixed_groups(data)
    for curve in data.curves:
        own = [g for c, g in points if c is curve and group_time_s(g) is not None]
        one = next((g for g in own if g.key[0] == 1), None)
        for sync in curve.strategies:
            several = [g for g in own if g.key[0] > 1 and g.key[1] == sync]
            if one is not None and several:
                yield _time_finding(data, curve, one, several[-1])


def _time_finding(
    data: ScalingData, curve: ScalingCurve, one: ScalingGroup, last: ScalingGroup
) -> Finding:
    devices, sync = last.key
    alone_s, together_s = group_time_s(one), group_time_s(last)
    assert alone_s is not None
    assert together_s is not None
    steps = [g.records[0].spec.budget.steps for g in (one, last)]
    samples = steps[0] * (one.records[0].spec.global_batch or 0)
    return Finding(
        code="training-time",
        question="How long does the same work take?",
        text=f"{data.name(curve, sync)}: {samples:,} samples train in {format_seconds(alone_s)} on "
        f"one device ({steps[0]:,} iterations) and in {format_seconds(together_s)} on "
        f"{format_devices(devices)} ({steps[1]:,} iterations), "
        f"{alone_s / together_s:.2f}× as fast.",
        value=alone_s / together_s,
        unit="× as fast",
        caveats=caveats(one, last),
    )


def time_tables(data: ScalingData) -> Iterator[Table]:
    """A row for each point: iterations, epochs, throughput, training and wall time."""
    points = fixed_groups(data)
    if not points:
        return
    unit = throughput_unit(r for _, group in points for r in group.records)
    yield Table(
        title="Training time of a fixed number of samples",
        columns=(
            Column(name="network, batch size"),
            Column(name="devices"),
            Column(name="strategy"),
            Column(name="global batch size"),
            Column(name="iterations"),
            Column(name="samples"),
            Column(name="epochs"),
            Column(name="throughput", unit=unit),
            Column(name="training time", unit="s"),
            Column(name="speed-up of the time", unit="x"),
            Column(name="wall time", unit="s"),
        ),
        rows=tuple(_row(data, curve, group) for curve, group in points),
    )


def _row(data: ScalingData, curve: ScalingCurve, group: ScalingGroup) -> tuple[Cell, ...]:
    spec, seconds = group.records[0].spec, group_time_s(group)
    head = (
        Cell(text=data.name(curve), run_id=group.run_id),
        Cell(value=group.key[0]),
        Cell(text=group.key[1]),
        Cell(value=spec.global_batch),
        Cell(value=spec.budget.steps),
        Cell(value=spec.budget.steps * (spec.global_batch or 0)),
        cell_or_dash(epochs(group.records[0])),
    )
    if seconds is None:
        return (*head, *[group.cell(None)] * 4)
    one = group_time_s(curve.one) if curve.one is not None else None
    return (
        *head,
        group.cell(group.throughput),
        Cell(value=seconds, run_id=group.run_id),
        cell_or_dash(None if one is None or group.key[0] == 1 else one / seconds, group.run_id),
        cell_or_dash(group.median_of("wall_s"), group.run_id),
    )


def time_charts(data: ScalingData, name: str) -> Iterator[Chart]:
    """Training time by number of devices, a line for each curve and strategy."""
    points = fixed_groups(data)
    lines = []
    for curve in data.curves:
        own = [g for c, g in points if c is curve]
        for sync in curve.strategies:
            groups = [g for g in own if g.key[0] == 1 or g.key[1] == sync]
            lines.append(Line(name=data.name(curve, sync), points=tuple(map(_point, groups))))
    if points and lines:
        yield Chart(
            name=f"{name}-training-time",
            title="Training time of a fixed number of samples by devices",
            kind="line",
            x=Axis(name="devices", scale="log2"),
            y=Axis(name="training time", unit="s", from_zero=True),
            lines=tuple(lines),
        )


def _point(group: ScalingGroup) -> Point:
    seconds = group_time_s(group)
    if seconds is None:
        return Point(x=group.key[0], reason=group.why, run_id=group.run_id)
    return Point(x=group.key[0], y=seconds, run_id=group.run_id)
