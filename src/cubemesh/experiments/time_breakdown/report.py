"""Tables and chart of `time-breakdown`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cubemesh.experiments.analysis.answer import cell_or_dash
from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.scaling.analysis import excess_text, profiled_record
from cubemesh.measure.attribution.attribution import PARTS, UNATTRIBUTED
from cubemesh.measure.attribution.bottlenecks import mean_parts
from cubemesh.schema import Axis, Breakdown, Cell, Chart, Column, Line, Point, RunRecord, Table

MOST_LAYERS = 10
Key = tuple[str, int]
"""(network, batch size)."""


def name_of(key: Key) -> str:
    """Network and batch size, for a heading."""
    return f"{key[0]}, {key[1]}"


def why(group: Group[Key]) -> str:
    """Why a point has no attribution."""
    if not group.ok:
        return group.why
    return excess_text(group) or "run without attribution"


def attributions(groups: Sequence[Group[Key]]) -> Iterator[Table]:
    """A row per point: the mean step, and the percentage of each part."""
    names = [n for n in PARTS if any(n in _percents(group) for group in groups)]
    columns = (
        Column(name="network"),
        Column(name="batch size"),
        Column(name="step", unit="ms"),
        *(Column(name=name.replace("_", " "), unit="%") for name in names),
        Column(name="profiled step", unit="x"),
        *(Column(name=words, unit="%") for _, words in _own_figures(groups)),
    )
    rows = tuple(_attribution_row(group, names, groups) for group in groups)
    yield Table(title="Breakdown of the mean step time", columns=columns, rows=rows)


_FIGURES = (("device_busy_percent", "device busy"), ("occupancy_percent", "occupancy"))


def _own_figures(groups: Sequence[Group[Key]]) -> tuple[tuple[str, str], ...]:
    """Figures that some run has: a CPU has neither."""
    return tuple(
        pair for pair in _FIGURES if any(pair[0] in r.figures for g in groups for r in g.ok)
    )


def _attribution_row(
    group: Group[Key], names: Sequence[str], groups: Sequence[Group[Key]]
) -> tuple[Cell, ...]:
    head = (Cell(text=group.key[0]), Cell(text=str(group.key[1])))
    record, figures = profiled_record(group), _own_figures(groups)
    if record is None:
        return (*head, *(Cell(reason=why(group)) for _ in range(2 + len(names) + len(figures))))
    percents, step_s = _percents(group), _step_s(record)
    profiled = record.figure("profiled_step_s")
    return (
        *head,
        Cell(value=1e3 * step_s, run_id=record.run_id),
        *(cell_or_dash(percents.get(name), record.run_id) for name in names),
        cell_or_dash(profiled and profiled / step_s, record.run_id),
        *(cell_or_dash(record.figure(name), record.run_id) for name, _ in figures),
    )


def _step_s(record: RunRecord) -> float:
    return math.fsum(mean_parts(record).values())


def _percents(group: Group[Key]) -> dict[str, float]:
    """Each part in percent of the step."""
    record = profiled_record(group)
    if record is None:
        return {}
    step_s = _step_s(record)
    return {name: 100 * seconds / step_s for name, seconds in mean_parts(record).items()}


def charts(groups: Sequence[Group[Key]]) -> Iterator[Chart]:
    """A stacked bar of the parts for each profiled point."""
    profiled = [group for group in groups if profiled_record(group)]
    if not profiled:
        return
    names = [n for n in PARTS if any(n in _percents(group) for group in profiled)]
    lines = tuple(
        Line(
            name=name.replace("_", " "),
            points=tuple(
                Point(
                    x=name_of(group.key),
                    y=max(0.0, _percents(group).get(name, 0.0)),
                    run_id=group.run_id,
                )
                for group in profiled
            ),
            role="reference" if name == UNATTRIBUTED else "measured",
        )
        for name in names
    )
    yield Chart(
        name="time-breakdown",
        title="Breakdown of the mean step time by network and batch size",
        kind="bar",
        x=Axis(name="network, batch size", scale="category"),
        y=Axis(name="step time", unit="%", from_zero=True),
        lines=lines,
        stacked=True,
    )


def _breakdown(group: Group[Key], name: str) -> Breakdown | None:
    record = profiled_record(group)
    return next((b for b in record.breakdowns if b.name == name), None) if record else None


def work_by(groups: Sequence[Group[Key]], name: str, title: str) -> Iterator[Table]:
    """A row per name, longest first, and a column per point."""
    found = [(group, b) for group in groups if (b := _breakdown(group, name)) is not None]
    if not found:
        return
    longest: dict[str, float] = {}
    for _, breakdown in found:
        total = math.fsum(row.seconds for row in breakdown.rows)
        for row in breakdown.rows:
            longest[row.name] = max(longest.get(row.name, 0.0), row.seconds / total if total else 0)
    columns = (Column(name=name), *(Column(name=name_of(g.key), unit="ms") for g, _ in found))
    rows = tuple(
        (Cell(text=row), *(_milliseconds(breakdown, row, group) for group, breakdown in found))
        for row in sorted(longest, key=lambda row: -longest[row])
    )
    yield Table(title=title, columns=columns, rows=rows)


def _milliseconds(breakdown: Breakdown, name: str, group: Group[Key]) -> Cell:
    ms = next((1e3 * row.seconds for row in breakdown.rows if row.name == name), None)
    return cell_or_dash(ms, group.run_id)


def longest_layers(groups: Sequence[Group[Key]]) -> Iterator[Table]:
    """The longest layers of each network, at its largest profiled batch size."""
    largest: dict[str, tuple[Group[Key], Breakdown]] = {}
    for group in sorted(groups, key=lambda g: g.key[1]):
        breakdown = _breakdown(group, "layer")
        if breakdown is not None:
            largest[group.key[0]] = group, breakdown
    for network, (group, breakdown) in largest.items():
        total = math.fsum(row.seconds for row in breakdown.rows)
        rows = tuple(
            (
                Cell(text=row.name),
                Cell(value=1e3 * row.seconds, run_id=group.run_id),
                Cell(value=100 * row.seconds / total if total else 0.0, run_id=group.run_id),
            )
            for row in breakdown.rows[:MOST_LAYERS]
        )
        columns = (
            Column(name="layer"),
            Column(name="per step", unit="ms"),
            Column(name="of total", unit="%"),
        )
        title = f"{network} at batch size {group.key[1]}: longest layers"
        if len(breakdown.rows) > MOST_LAYERS:
            title += f", {MOST_LAYERS} of {len(breakdown.rows)}"
        yield Table(title=title, columns=columns, rows=rows)
