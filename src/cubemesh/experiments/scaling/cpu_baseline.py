"""Devices against the host's CPU: throughput of 1 and N devices over that of all its cores.

Figure 2 of the paper 003: 1 and 4 GPUs against a server with two CPUs. The CPU trains the same
network at the batch size of one device, in the same framework and precision; of a fixed number of
samples, as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from cubemesh.experiments.analysis.answer import cell_or_dash, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit
from cubemesh.experiments.analysis.ratios import format_ratio, ratio
from cubemesh.experiments.scaling.analysis import ScalingData
from cubemesh.experiments.scaling.design import (
    CurveKey,
    ScalingCurve,
    ScalingGroup,
    curve_key,
    on_all_cores,
)
from cubemesh.experiments.scaling.training_time import group_time_s
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    RunRecord,
    Table,
    TrainSteps,
)
from cubemesh.units import format_devices, format_list

Compared = tuple[ScalingCurve, Group[CurveKey], tuple[ScalingGroup, ...]]
"""A curve, the CPU's runs, and the points on one and several devices that trained together."""


def compared(data: ScalingData, records: Sequence[RunRecord]) -> list[Compared]:
    """The curves whose case was measured on the CPU, too."""
    own = [r for r in records if isinstance(r.spec.work, TrainSteps) and on_all_cores(r)]
    groups = {g.key: g for g in group_by(own, lambda r: curve_key(r, data.mode))}
    found = []
    for curve in data.curves:
        cpu = groups.get(curve.key._replace(threads=None))
        if cpu is not None:
            points = ((curve.one,) if curve.one is not None else ()) + curve.together
            found.append((curve, cpu, points))
    return found


def cpu_findings(data: ScalingData, found: Sequence[Compared]) -> Iterator[Finding]:
    """How many times as fast as the CPU one device and the most are."""
    for curve, cpu, points in found:
        name = data.name(curve)
        if cpu.throughput is None:
            yield failed_run(f"{name} on the CPU", cpu)
            continue
        ratios = [(g, r) for g in points if (r := _ratio(g, cpu)) is not None]
        if not ratios:
            continue
        ends = ratios if len(ratios) == 1 else [ratios[0], ratios[-1]]
        words = [
            f"{_device(group)} train{'s' if group.key[0] == 1 else ''} {format_ratio(figure)}"
            for group, figure in ends
        ]
        yield Finding.of(
            code="cpu-speed-up",
            question="How much faster than the CPU?",
            text=f"{name}: {format_list(words)} as fast as {_cpu_name(cpu)}.",
            figure=ends[-1][1],
            unit="× the CPU",
            caveats=caveats(cpu, *(group for group, _ in ends)),
        )


def _ratio(group: ScalingGroup, cpu: Group[CurveKey]) -> Figure | None:
    a, b = group.throughput, cpu.throughput
    return None if a is None or b is None else replace(ratio(a, b), unit="x")


def _device(group: ScalingGroup) -> str:
    devices, sync = group.key
    return format_devices(devices) if devices == 1 else f"{format_devices(devices)} ({sync})"


def _cpu_name(cpu: Group[CurveKey]) -> str:
    """`the CPU (Model T, 16 threads)`, as far as known."""
    ranks = cpu.records[0].ranks
    if not ranks:
        return "the CPU"
    words = [ranks[0].device_name, f"{ranks[0].threads} threads" if ranks[0].threads else ""]
    known = ", ".join(filter(None, words))
    return f"the CPU ({known})" if known else "the CPU"


def cpu_tables(data: ScalingData, found: Sequence[Compared]) -> Iterator[Table]:
    """A row for the CPU and for each number of devices."""
    if not found:
        return
    groups: list[Group[Any]] = []
    rows: list[tuple[Cell, ...]] = []
    for curve, cpu, points in found:
        groups += [cpu, *points]
        name = data.name(curve)
        rows.append(_row(name, "CPU, all cores", cpu, None))
        rows += [_row(name, _device(g), g, _ratio(g, cpu)) for g in points]
    yield Table(
        title="Devices and the CPU",
        columns=(
            Column(name="network, batch size"),
            Column(name="trained on"),
            Column(name="throughput", unit=throughput_unit(r for g in groups for r in g.records)),
            Column(name="vs CPU", unit="x"),
            Column(name="training time", unit="s"),
            Column(name="wall time", unit="s"),
        ),
        rows=tuple(rows),
    )


def _row(
    name: str, where: str, group: Group[CurveKey] | ScalingGroup, over: Figure | None
) -> tuple[Cell, ...]:
    head = Cell(text=name, run_id=group.run_id), Cell(text=where)
    if group.throughput is None:
        return (*head, *[group.cell(None)] * 4)
    return (
        *head,
        group.cell(group.throughput),
        cell_or_dash(over, group.run_id),
        cell_or_dash(group_time_s(group), group.run_id),
        cell_or_dash(group.median_of("wall_s"), group.run_id),
    )


def cpu_charts(data: ScalingData, found: Sequence[Compared], name: str) -> Iterator[Chart]:
    """Bars: throughput of the CPU and of each number of devices."""
    lines = tuple(
        Line(
            name=data.name(curve),
            points=(
                cpu.point("CPU", cpu.throughput),
                *(g.point(_device(g), g.throughput) for g in points),
            ),
        )
        for curve, cpu, points in found
    )
    if lines:
        yield Chart(
            name=f"{name}-cpu",
            title="Throughput of the CPU and of devices",
            kind="bar",
            x=Axis(name="trained on", scale="category"),
            y=Axis(name="throughput", unit=data.unit, from_zero=True),
            lines=lines,
        )
