"""The tables and charts of a scaling: points, attributions by rank, throughput, efficiency."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.scaling.design import ALONE, ScalingCurve
from cubemesh.experiments.scaling.efficiency import efficiency, efficiency_alone
from cubemesh.experiments.scaling.forecast import ForecastPoint, forecast_points
from cubemesh.experiments.scaling.losses import (
    mean_parts,
    parts_by_rank,
    profiled_record,
    step_overhead,
)
from cubemesh.experiments.scaling.modes import ScalingMode
from cubemesh.measure.attribution.attribution import OTHER, PARTS
from cubemesh.schema import Axis, Cell, Chart, Column, Figure, Line, Point, Table


@dataclass(frozen=True, kw_only=True)
class ScalingData:
    """The curves of a scaling."""

    regime: ScalingMode
    scaled: tuple[ScalingCurve, ...]

    def name(self, scaled: ScalingCurve, sync: str = "") -> str:
        """What tells a curve from the others: the network, the minibatch, and what else differs."""
        curve = scaled.curve
        words = [curve.network, str(curve.batch)]
        if len({s.curve.image_size for s in self.scaled if s.curve.network == curve.network}) > 1:
            words.append(f"{curve.image_size or 'usual'} pixels")
        if len({s.curve.framework for s in self.scaled}) > 1:
            words.append(curve.framework)
        if sync and len(self.exchanges) > 1:
            words.append(sync)
        return ", ".join(words)

    @cached_property
    def forecasts(self) -> tuple[ForecastPoint, ...]:
        """Of every point of several devices that has one device beside it."""
        return tuple(
            (self.name(s), group, point)
            for s in self.scaled
            for group, point in forecast_points(s.one, s.together)
        )

    @property
    def exchanges(self) -> tuple[str, ...]:
        """Those of all curves."""
        return tuple(dict.fromkeys(e for s in self.scaled for e in s.exchanges))


ScalingGroup = Group[tuple[int, str]]


def points_table(shown: ScalingData) -> Table:
    """A row for each number of devices of each curve, with the regime in it."""
    columns = (
        Column(name="network"),
        Column(name="regime"),
        Column(name="framework"),
        Column(name="devices"),
        Column(name="sync"),
        Column(name="minibatch per device"),
        Column(name="global minibatch"),
        Column(name="samples/s"),
        Column(name="of one device", unit="x"),
        Column(name="efficiency", unit="%"),
        Column(name="of slowest alone", unit="%"),
        Column(name="memory", unit="MiB"),
        Column(name="wall time", unit="s"),
        Column(name="90 epochs", unit="days"),
        Column(name="most is lost to"),
    )
    rows = tuple(_row(shown, s, group) for s in shown.scaled for group in s.groups)
    return Table(title=f"{str(shown.regime).capitalize()} scaling", columns=columns, rows=rows)


def _row(shown: ScalingData, scaled: ScalingCurve, group: ScalingGroup) -> tuple[Cell, ...]:
    devices, sync = group.key
    spec = group.records[0].spec
    alone = devices > 1 and sync == ALONE
    head = (
        Cell(text=scaled.curve.network, run_id=group.run_id),
        Cell(text="each alone" if alone else str(shown.regime)),
        Cell(text=scaled.curve.framework),
        Cell(value=devices),
        Cell(text=sync),
        Cell(value=spec.batch_per_device),
        Cell(value=spec.global_batch),
    )
    figure = group.throughput
    if figure is None:
        return (*head, *[group.cell(None)] * 8)
    one = scaled.one
    found = efficiency(group, one) if one and devices > 1 else None
    forecast_points = scaled.at(devices, ALONE)
    against = (
        efficiency_alone(group, forecast_points)
        if forecast_points and not alone and devices > 1
        else None
    )
    return (
        *head,
        group.cell(figure),
        _scaled(found, devices / 100, group),
        _scaled(found, 1.0, group),
        _scaled(against, 1.0, group),
        _median(group, "peak_memory_bytes", 2**20),
        _median(group, "wall_s", 1.0),
        _median(group, "projected_90_epochs_days", 1.0),
        Cell(text=_loss(group, one, devices)),
    )


def _scaled(figure: Figure | None, factor: float, group: ScalingGroup) -> Cell:
    if figure is None:
        return Cell(text="–")
    low, high = (None if x is None else factor * x for x in (figure.low, figure.high))
    return Cell(value=factor * figure.value, low=low, high=high, run_id=group.run_id)


def _median(group: ScalingGroup, name: str, unit: float) -> Cell:
    value = group.median_of(name)
    return Cell(text="–") if value is None else Cell(value=value / unit, run_id=group.run_id)


def _loss(group: ScalingGroup, one: ScalingGroup | None, devices: int) -> str:
    found = step_overhead(group, one) if one and devices > 1 else None
    if found is None:
        return "–"
    if not found.biggest:
        return "nothing much"
    share = 100 * found.by_part[found.biggest] / found.step_s
    return f"{found.biggest.replace('_', ' ')}, {share:.1f} % of the step"


def parts_table(shown: ScalingData) -> Iterator[Table]:
    """The step of each rank of each point as a sum; none where no step was taken apart."""
    told = [
        (scaled, group, record)
        for scaled in shown.scaled
        for group in scaled.groups
        if (record := profiled_record(group)) is not None
    ]
    if not told:
        return
    names = [n for n in PARTS if any(n in mean_parts(record) for *_, record in told)]
    columns = (
        Column(name="network, minibatch"),
        Column(name="devices"),
        Column(name="sync"),
        Column(name="rank"),
        Column(name="step", unit="ms"),
        *(Column(name=name.replace("_", " "), unit="ms") for name in names),
    )
    rows = []
    for scaled, group, record in told:
        for rank, parts in parts_by_rank(record).items():
            seconds = {part.name: part.seconds for part in parts}
            rows.append(
                (
                    Cell(text=shown.name(scaled), run_id=record.run_id),
                    Cell(value=group.key[0]),
                    Cell(text=group.key[1]),
                    Cell(value=rank),
                    Cell(value=1e3 * math.fsum(seconds.values()), run_id=record.run_id),
                    *(
                        Cell(value=1e3 * seconds[name]) if name in seconds else Cell(text="–")
                        for name in names
                    ),
                )
            )
    yield Table(title="The mean step of each rank as a sum", columns=columns, rows=tuple(rows))


def charts(shown: ScalingData, name: str = "") -> Iterator[Chart]:
    """For each network throughput against devices with the ideal line, and where the step goes;
    and the efficiencies of all. `name` begins the names of their files, else the regime does."""
    name = name or f"{shown.regime}-scaling"
    for scaled in shown.scaled:
        yield from _throughput_chart(shown, scaled, name)
    yield from _efficiency_chart(shown, name)
    for scaled in shown.scaled:
        yield from _parts_chart(shown, scaled, name)


def _slug(name: str, scaled: ScalingCurve) -> str:
    curve = scaled.curve
    size = f"-{curve.image_size}" if curve.image_size else ""
    return f"{name}-{curve.network}-{curve.batch}{size}-{curve.framework}"


def _throughput_chart(shown: ScalingData, scaled: ScalingCurve, name: str) -> Iterator[Chart]:
    one = scaled.one
    if one is None or not scaled.together:
        return
    lines = []
    for sync in scaled.exchanges:
        groups = [one, *(g for g in scaled.together if g.key[1] == sync)]
        points = tuple(g.point(g.key[0], g.throughput) for g in groups)
        lines.append(Line(name=sync, points=points))
    alone = [g for g in scaled.groups if g.key[0] > 1 and g.key[1] == ALONE]
    if alone:
        points = tuple(g.point(g.key[0], g.throughput) for g in alone)
        lines.append(Line(name="each alone, all at once", points=points))
    lines += _forecast_lines(shown, scaled)
    if one.throughput is not None:
        counts = sorted({g.key[0] for g in scaled.groups})
        ideal = tuple(Point(x=n, y=n * one.throughput.value) for n in counts)
        lines.append(Line(name="ideal: N times one device", points=ideal, role="reference"))
    fixed = f"{shown.regime.fixed} {scaled.curve.batch}"
    yield Chart(
        name=_slug(name, scaled),
        title=f"{shown.name(scaled)}: samples/s by devices ({shown.regime} scaling, {fixed})",
        kind="line",
        x=Axis(name="devices", scale="log2"),
        y=Axis(name="throughput", unit="samples/s", from_zero=True),
        lines=tuple(lines),
    )


def _forecast_lines(shown: ScalingData, scaled: ScalingCurve) -> Iterator[Line]:
    for sync in scaled.exchanges:
        points = tuple(
            Point(x=group.key[0], y=found.samples_per_s, low=found.low, high=found.high)
            for _, group, found in shown.forecasts
            if group in scaled.together and group.key[1] == sync and not isinstance(found, str)
        )
        if points:
            yield Line(name=f"{sync}, forecast", points=points, role="forecast")


def _efficiency_chart(shown: ScalingData, name: str) -> Iterator[Chart]:
    """Bars by devices: against one device, and against the slowest of the devices alone."""
    against_one: list[Point] = []
    against_alone: list[Point] = []
    for scaled in shown.scaled:
        for group in scaled.together:
            devices, sync = group.key
            x = f"{shown.name(scaled, sync)} · {devices} devices"
            one, alone = scaled.one, scaled.at(devices, ALONE)
            against_one.append(group.point(x, efficiency(group, one) if one else None))
            if alone and (found := efficiency_alone(group, alone)) is not None:
                against_alone.append(group.point(x, found))
    if not against_one:
        return
    lines = [Line(name="against one device", points=tuple(against_one))]
    if against_alone:
        words = "against the slowest of them alone"
        lines.append(Line(name=words, points=tuple(against_alone)))
    yield Chart(
        name=f"{name}-efficiency",
        title=f"Efficiency of {shown.regime} scaling",
        kind="bar",
        x=Axis(name="network, minibatch and devices", scale="category"),
        y=Axis(name="efficiency", unit="%", from_zero=True),
        lines=tuple(lines),
    )


def _parts_chart(shown: ScalingData, scaled: ScalingCurve, name: str) -> Iterator[Chart]:
    told: list[tuple[str, Any, dict[str, float]]] = []
    for group in scaled.groups:
        record = profiled_record(group)
        if record is not None:
            devices, sync = group.key
            x = f"{devices} devices, {sync}" if devices > 1 else "1 device"
            told.append((x, record, mean_parts(record)))
    if len(told) < 2:
        return
    names = [n for n in PARTS if any(n in parts for *_, parts in told)]
    lines = tuple(
        Line(
            name=part.replace("_", " "),
            points=tuple(
                Point(x=x, y=max(0.0, 1e3 * parts.get(part, 0.0)), run_id=record.run_id)
                for x, record, parts in told
            ),
            role="reference" if part == OTHER else "measured",
        )
        for part in names
    )
    yield Chart(
        name=f"{_slug(name, scaled)}-parts",
        title=f"{shown.name(scaled)}: where a step goes, mean over the ranks",
        kind="bar",
        x=Axis(name="devices", scale="category"),
        y=Axis(name="a step", unit="ms", from_zero=True),
        lines=lines,
        stacked=True,
    )
