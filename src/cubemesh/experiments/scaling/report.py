"""Findings, tables, charts and notes of the scaling experiments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from cubemesh.experiments.analysis.answer import answer_of, cell_or_dash, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, throughput_unit, titled
from cubemesh.experiments.analysis.ratios import plus_minus, ratio, significance
from cubemesh.experiments.core.experiment import Experiment
from cubemesh.experiments.scaling.analysis import (
    MIN_FRACTION,
    ForecastPoint,
    ScalingData,
    StepOverhead,
    efficiency,
    efficiency_independent,
    independent_rates,
    profiled_record,
    step_overhead,
)
from cubemesh.experiments.scaling.cpu_baseline import (
    compared,
    cpu_charts,
    cpu_findings,
    cpu_tables,
)
from cubemesh.experiments.scaling.design import (
    MAX_DEVICES,
    NO_SYNC,
    ScalingCase,
    ScalingCurve,
    ScalingGroup,
    ScalingMode,
    ScalingSettings,
    curves,
    on_all_cores,
)
from cubemesh.experiments.scaling.energy_columns import EnergyColumns
from cubemesh.experiments.scaling.pipelines import pipeline_findings, pipeline_tables
from cubemesh.experiments.scaling.super_linear import super_linear_finding
from cubemesh.experiments.scaling.training_time import (
    fixed_groups,
    time_charts,
    time_findings,
    time_tables,
)
from cubemesh.measure.attribution.attribution import PARTS, UNATTRIBUTED
from cubemesh.measure.attribution.bottlenecks import (
    LEAST,
    losses,
    mean_parts,
    over_ranks,
    parts_by_rank,
)
from cubemesh.networks import rate_unit
from cubemesh.networks.own_input import is_imagenet
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    Point,
    RunRecord,
    Table,
    Warning,
    warn,
)
from cubemesh.units import format_devices, format_list, format_quantity, format_seconds

MAX_NAMED = 3
"""Most parts that are named as overhead."""
RULE = (
    "On a CPU and with --quick, little-cnn replaces the papers' networks, unless --full is given "
    "or networks are named."
)


def scaling_answer(
    experiment: Experiment,
    mode: ScalingMode,
    settings: ScalingSettings,
    published: Sequence[ScalingCase],
    records: Sequence[RunRecord],
) -> Answer:
    """Findings, tables and charts from the records of one scaling experiment."""
    data = ScalingData(mode=mode, curves=tuple(curves(records, mode)))
    on_cpu = compared(data, records)
    return answer_of(
        experiment,
        titled(f"{str(mode).capitalize()} scaling", records),
        records,
        findings=(
            *_findings(data),
            *pipeline_findings(data),
            *time_findings(data),
            *cpu_findings(data, on_cpu),
            *_forecast_finding(data.forecasts),
        ),
        tables=(
            *([_points_table(data)] if data.curves else []),
            *time_tables(data),
            *cpu_tables(data, on_cpu),
            *parts_table(data),
            *pipeline_tables(data),
            *([_forecast_table(data.forecasts)] if data.forecasts else []),
        ),
        charts=(
            *charts(data),
            *time_charts(data, f"{mode}-scaling"),
            *cpu_charts(data, on_cpu, f"{mode}-scaling"),
        ),
        warnings=_reduced(data, settings, published),
        notes=_notes(data, records),
    )


def _findings(data: ScalingData) -> Iterator[Finding]:
    """For each curve the efficiency of the largest number of devices, without synchronization too,
    the overhead of its step, and what did not run."""
    card = True
    for curve in data.curves:
        for sync in curve.strategies:
            done = [g for g in curve.together if g.key[1] == sync and g.throughput]
            if curve.one is not None and curve.one.throughput is not None and done:
                yield from _curve_findings(data, curve, curve.one, done, card)
                card = False
        yield from failed_runs(data, curve)
    if data.curves and not any(c.together for c in data.curves):
        yield Finding(
            code="single-device",
            text="Only one device was measured: there is no scaling to report.",
            remedy="Set devices=…; on a CPU a device is a group of threads=… cores.",
        )


def failed_runs(data: ScalingData, curve: ScalingCurve) -> Iterator[Finding]:
    """The reasons for missing points of a curve."""
    for group in curve.groups:
        if group.throughput is None:
            devices, sync = group.key
            yield failed_run(f"{data.name(curve)} on {format_devices(devices)}, {sync}", group)


def _curve_findings(
    data: ScalingData,
    curve: ScalingCurve,
    one: ScalingGroup,
    done: list[ScalingGroup],
    card: bool,
) -> Iterator[Finding]:
    last = done[-1]
    devices, sync = last.key
    figure, reached = last.throughput, efficiency(last, one)
    assert figure is not None
    assert reached is not None
    yield Finding.of(
        code="scaling-efficiency",
        question="How far does it scale?" if card else None,
        text=f"{data.name(curve, sync)}, {_batch_words(data, last)}: {devices} devices train "
        f"{plus_minus(figure)} {rate_unit(curve.key.network)}, "
        f"{devices * reached.value / 100:.2f}× one device: an "
        f"efficiency of {plus_minus(reached)} %.",
        figure=reached,
        unit="%",
        caveats=caveats(last, one),
    )
    if (independent := curve.at(devices, NO_SYNC)) is not None:
        yield from _independent_finding(last, one, independent)
    if (found := step_overhead(last, one)) is not None:
        yield _overhead_finding(data.name(curve, sync), found, last, one)
    for group in done:
        yield from super_linear_finding(group, one, data.name(curve, sync))
    for fewer, more in pairwise(done):
        a, b = fewer.throughput, more.throughput
        if a and b and significance(ratio(b, a)) < 0:
            yield Finding(
                code="slower-with-more-devices",
                text=f"{format_devices(more.key[0])} train slower than "
                f"{format_devices(fewer.key[0])}.",
                caveats=caveats(more, fewer),
            )


def _batch_words(data: ScalingData, group: ScalingGroup) -> str:
    spec = group.records[0].spec
    each, every = spec.batch_per_device, spec.global_batch
    batch = {
        ScalingMode.WEAK: f"{each} per device, {every} global",
        ScalingMode.STRONG: f"{every} global, {each} per device",
        ScalingMode.CONSTANT_BATCH: f"{every} per host, {each} per device",
    }[data.mode]
    return f"{data.mode} scaling (batch size {batch})"


def _independent_finding(
    last: ScalingGroup, one: ScalingGroup, independent: ScalingGroup
) -> Iterator[Finding]:
    """What is lost to running at the same time, and what to synchronization."""
    unit = throughput_unit(independent.records)
    rates, found = independent_rates(independent), efficiency_independent(last, independent)
    if not rates or found is None:
        return
    slowest, devices = min(rates, key=lambda rank: rates[rank]), last.key[0]
    text = (
        f"Without synchronization the slowest of the {devices} devices (rank {slowest}) trains "
        f"{format_quantity(rates[slowest], unit)}; synchronized training reaches "
        f"{plus_minus(found)} % of {devices} times that."
    )
    own = efficiency(independent, one)
    if own is not None and own.high is not None and own.high < 100:
        text += (
            f" The devices without synchronization reach "
            f"{plus_minus(own)} % of {devices} times one: the rest "
            "is lost to shared resources, independent of the strategy."
        )
    yield Finding.of(
        code="efficiency-without-sync",
        text=text,
        figure=found,
        unit="%",
        caveats=caveats(last, independent),
    )


def _overhead_finding(
    name: str, found: StepOverhead, last: ScalingGroup, one: ScalingGroup
) -> Finding:
    devices, record = last.key[0], profiled_record(last)
    assert record is not None
    over = f" ({over_ranks(record)})" if over_ranks(record) else ""
    same = last.records[0].spec.batch_per_device == one.records[0].spec.batch_per_device
    ideal = "one device's" if same else "ideal"
    code, step = "scaling-overhead", format_seconds(found.step_s)
    if not found.largest:
        return Finding(
            code=code,
            text=f"{name}: a step on {devices} devices takes {step}{over}, as long as {ideal}: no "
            f"part has an overhead of 1 % of the step.{_largest_loss(found, record, one)}",
            caveats=caveats(last, one),
            run_id=record.run_id,
        )
    named = [
        f"{format_seconds(seconds)} {name.replace('_', ' ')}"
        for name, seconds in list(found.by_part.items())[:MAX_NAMED]
        if seconds >= MIN_FRACTION * found.step_s
    ]
    longer = "longer" if found.extra_s >= 0 else "shorter"
    return Finding(
        code=code,
        text=f"{name}: a step on {devices} devices takes {step}{over}, "
        f"{format_seconds(abs(found.extra_s))} {longer} than {ideal}, with {format_list(named)} "
        f"more. The largest overhead of scaling is {found.largest.replace('_', ' ')}, "
        f"{found.percent:.1f} % of the step.{_largest_loss(found, record, one)}",
        value=found.percent,
        unit="%",
        remedy=found.remedy,
        caveats=caveats(last, one),
        run_id=record.run_id,
    )


def _largest_loss(found: StepOverhead, record: RunRecord, one: ScalingGroup) -> str:
    """What the step loses most to, where that is not the largest overhead of scaling: one device
    may have it too."""
    name, share = next(iter(losses(record).items()), ("", 0.0))
    largest = found.largest == name and f"{100 * share:.1f}" == f"{found.percent:.1f}"
    if share < LEAST or largest:
        return ""
    single = profiled_record(one)
    own = 0.0 if single is None else losses(single).get(name, 0.0)
    return (
        f" The largest loss of the step is {name.replace('_', ' ')}, {100 * share:.0f} % of it "
        f"({100 * own:.0f} % on one device)."
    )


def _forecast_finding(found: Sequence[ForecastPoint]) -> Iterator[Finding]:
    """The errors of the forecasts that have a measurement."""
    errors = [
        abs(point.samples_per_s / group.throughput.value - 1)
        for _, group, point in found
        if not isinstance(point, str) and group.throughput is not None
    ]
    if errors:
        yield Finding(
            code="forecast-error",
            text=f"Forecasts from one device's rate have a median error of "
            f"{100 * median(errors):.1f} %, at most {100 * max(errors):.1f} %, over {len(errors)} "
            "points of several devices.",
            value=100 * median(errors),
            unit="%",
        )


def _points_table(data: ScalingData) -> Table:
    """A row for each point of each curve."""
    energy = EnergyColumns.of(data)
    columns = (
        Column(name="network"),
        Column(name="mode"),
        Column(name="framework"),
        Column(name="devices"),
        Column(name="strategy"),
        Column(name="batch size per device"),
        Column(name="global batch size"),
        Column(name="throughput", unit=data.unit),
        Column(name="speed-up", unit="x"),
        Column(name="efficiency", unit="%"),
        Column(name="vs slowest device without sync", unit="%"),
        *energy.columns(),
        Column(name="memory", unit="MiB"),
        Column(name="wall time", unit="s"),
        *([Column(name="90 epochs", unit="days")] if _projects(data) else []),
        Column(name="largest overhead of scaling"),
    )
    rows = tuple(_point_row(data, c, group, energy) for c in data.curves for group in c.groups)
    return Table(title=f"{str(data.mode).capitalize()} scaling", columns=columns, rows=rows)


def _point_row(
    data: ScalingData, curve: ScalingCurve, group: ScalingGroup, energy: EnergyColumns
) -> tuple[Cell, ...]:
    devices, sync = group.key
    spec = group.records[0].spec
    independent = devices > 1 and sync == NO_SYNC
    head = (
        Cell(text=curve.key.network, run_id=group.run_id),
        Cell(text="no sync" if independent else str(data.mode)),
        Cell(text=curve.key.framework),
        Cell(value=devices),
        Cell(text=sync),
        Cell(value=spec.batch_per_device),
        Cell(value=spec.global_batch),
    )
    figure = group.throughput
    if figure is None:
        return (*head, *[group.cell(None)] * (7 + _projects(data) + len(energy)))
    found, compared = None, None
    if devices > 1:
        baseline = None if independent else curve.at(devices, NO_SYNC)
        found = efficiency(group, curve.one) if curve.one else None
        compared = efficiency_independent(group, baseline) if baseline else None
    return (
        *head,
        group.cell(figure),
        cell_or_dash(found and found.scaled(devices / 100, "x"), group.run_id),
        *(cell_or_dash(figure, group.run_id) for figure in (found, compared)),
        *energy.cells(group),
        median_cell(group, "peak_memory_bytes", 2**20),
        median_cell(group, "wall_s", 1.0),
        *([projection_cell(group)] if _projects(data) else []),
        Cell(text=_largest_overhead(group, curve.one) if devices > 1 else "–"),
    )


def _projects(data: ScalingData) -> bool:
    """Whether any curve trains a network for ImageNet."""
    return any(is_imagenet(g.records[0].spec.work) for c in data.curves for g in c.groups)


def projection_cell(group: Group[Any]) -> Cell:
    """Days of 90 ImageNet epochs; a dash for work on other input."""
    if not is_imagenet(group.records[0].spec.work):
        return cell_or_dash(None)
    return cell_or_dash(group.median_of("projected_90_epochs_days"), group.run_id)


def median_cell(group: ScalingGroup, name: str, unit: float) -> Cell:
    """The median of a figure over `unit`, or a dash."""
    value = group.median_of(name)
    return cell_or_dash(None if value is None else value / unit, group.run_id)


def _largest_overhead(group: ScalingGroup, one: ScalingGroup | None) -> str:
    found = step_overhead(group, one) if one else None
    if found is None:
        return "–"
    if not found.largest:
        return "none"
    return f"{found.largest.replace('_', ' ')}, {found.percent:.1f} % of the step"


def parts_table(data: ScalingData) -> Iterator[Table]:
    """The mean step of each rank of each profiled point, by part."""
    profiled = [
        (curve, group, record)
        for curve in data.curves
        for group in curve.groups
        if (record := profiled_record(group)) is not None
    ]
    if not profiled:
        return
    names = [n for n in PARTS if any(n in mean_parts(record) for *_, record in profiled)]
    columns = (
        Column(name="network, batch size"),
        Column(name="devices"),
        Column(name="strategy"),
        Column(name="rank"),
        Column(name="step", unit="ms"),
        *(Column(name=name.replace("_", " "), unit="ms") for name in names),
    )
    rows = []
    for curve, group, record in profiled:
        for rank, parts in parts_by_rank(record).items():
            seconds = {part.name: part.seconds for part in parts}
            rows.append(
                (
                    Cell(text=data.name(curve), run_id=record.run_id),
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
    title = "Breakdown of the mean step time of each rank"
    yield Table(title=title, columns=columns, rows=tuple(rows))


def _forecast_table(found: Sequence[ForecastPoint]) -> Table:
    """Forecast and measured throughput of each point of several devices."""
    unit = throughput_unit(r for _, group, _ in found for r in group.records)
    rows = []
    for name, group, point in found:
        devices, sync = group.key
        head = (Cell(text=name, run_id=group.run_id), Cell(value=devices), Cell(text=sync))
        figure = group.throughput
        measured = group.cell(figure)
        if isinstance(point, str):
            rows.append((*head, measured, *(Cell(reason=point) for _ in range(3))))
            continue
        error = None if figure is None else 100 * (point.samples_per_s / figure.value - 1)
        rows.append(
            (
                *head,
                measured,
                Cell(value=point.samples_per_s, low=point.low, high=point.high),
                group.cell(None) if error is None else Cell(value=error),
                Cell(text=point.limit),
            )
        )
    return Table(
        title="Forecast from one device and measurement",
        columns=(
            Column(name="network, batch size"),
            Column(name="devices"),
            Column(name="strategy"),
            Column(name="measured", unit=unit),
            Column(name="forecast", unit=unit),
            Column(name="forecast error", unit="%"),
            Column(name="forecast limit"),
        ),
        rows=tuple(rows),
    )


def charts(data: ScalingData, name: str = "") -> Iterator[Chart]:
    """Throughput by devices of each curve, all efficiencies, and the parts of a step. `name` is the
    prefix of the file names, by default the mode."""
    name = name or f"{data.mode}-scaling"
    for curve in data.curves:
        yield from _throughput_chart(data, curve, name)
    yield from _efficiency_chart(data, name)
    for curve in data.curves:
        yield from _parts_chart(data, curve, name)


def _slug(data: ScalingData, curve: ScalingCurve, name: str) -> str:
    key = curve.key
    size = f"-{key.image_size}" if key.image_size else ""
    several = len({c.key.threads for c in data.curves}) > 1
    threads = f"-{key.threads}-threads" if several else ""
    return f"{name}-{key.network}-{key.batch}{size}-{key.framework}{threads}"


def _throughput_chart(data: ScalingData, curve: ScalingCurve, name: str) -> Iterator[Chart]:
    one = curve.one
    if one is None or not curve.together:
        return
    lines = []
    for sync in curve.strategies:
        groups = [one, *(g for g in curve.together if g.key[1] == sync)]
        lines.append(_rates(sync, groups))
    independent = [g for g in curve.groups if g.key[0] > 1 and g.key[1] == NO_SYNC]
    if independent:
        lines.append(_rates("no sync", independent))
    lines += _forecast_lines(data, curve)
    if one.throughput is not None:
        counts = sorted({g.key[0] for g in curve.groups})
        ideal = tuple(Point(x=n, y=n * one.throughput.value) for n in counts)
        lines.append(Line(name="ideal: N times one device", points=ideal, role="reference"))
    constant = f"{data.mode.constant} {curve.key.batch}"
    yield Chart(
        name=_slug(data, curve, name),
        title=f"{data.name(curve)}: throughput by devices ({data.mode} scaling, {constant})",
        kind="line",
        x=Axis(name="devices", scale="log2"),
        y=Axis(name="throughput", unit=rate_unit(curve.key.network), from_zero=True),
        lines=tuple(lines),
    )


def _rates(name: str, groups: Sequence[ScalingGroup]) -> Line:
    return Line(name=name, points=tuple(g.point(g.key[0], g.throughput) for g in groups))


def _forecast_lines(data: ScalingData, curve: ScalingCurve) -> Iterator[Line]:
    for sync in curve.strategies:
        points = tuple(
            Point(x=group.key[0], y=found.samples_per_s, low=found.low, high=found.high)
            for _, group, found in data.forecasts
            if group in curve.together and group.key[1] == sync and not isinstance(found, str)
        )
        if points:
            yield Line(name=f"{sync}, forecast", points=points, role="forecast")


def _efficiency_chart(data: ScalingData, name: str) -> Iterator[Chart]:
    """Bars: efficiency relative to one device, and to the slowest device without sync."""
    from_one: list[Point] = []
    from_slowest: list[Point] = []
    for curve in data.curves:
        for group in curve.together:
            devices, sync = group.key
            x = f"{data.name(curve, sync)} · {devices} devices"
            one, independent = curve.one, curve.at(devices, NO_SYNC)
            from_one.append(group.point(x, efficiency(group, one) if one else None))
            if independent and (found := efficiency_independent(group, independent)) is not None:
                from_slowest.append(group.point(x, found))
    if not from_one:
        return
    lines = [Line(name="vs one device", points=tuple(from_one))]
    if from_slowest:
        lines.append(Line(name="vs slowest device without sync", points=tuple(from_slowest)))
    yield Chart(
        name=f"{name}-efficiency",
        title=f"Efficiency of {data.mode} scaling",
        kind="bar",
        x=Axis(name="network, batch size and devices", scale="category"),
        y=Axis(name="efficiency", unit="%", from_zero=True),
        lines=tuple(lines),
    )


def _parts_chart(data: ScalingData, curve: ScalingCurve, name: str) -> Iterator[Chart]:
    bars: list[tuple[str, RunRecord, dict[str, float]]] = []
    for group in curve.groups:
        record = profiled_record(group)
        if record is not None:
            devices, sync = group.key
            x = f"{devices} devices, {sync}" if devices > 1 else "1 device"
            bars.append((x, record, mean_parts(record)))
    if len(bars) < 2:
        return
    lines = tuple(
        Line(
            name=part.replace("_", " "),
            points=tuple(
                Point(x=x, y=max(0.0, 1e3 * parts.get(part, 0.0)), run_id=record.run_id)
                for x, record, parts in bars
            ),
            role="reference" if part == UNATTRIBUTED else "measured",
        )
        for part in PARTS
        if any(part in parts for *_, parts in bars)
    )
    yield Chart(
        name=f"{_slug(data, curve, name)}-parts",
        title=f"{data.name(curve)}: breakdown of the step time, mean over the ranks",
        kind="bar",
        x=Axis(name="devices", scale="category"),
        y=Axis(name="step time", unit="ms", from_zero=True),
        lines=lines,
        stacked=True,
    )


def _reduced(
    data: ScalingData, settings: ScalingSettings, published: Sequence[ScalingCase]
) -> Iterator[Warning]:
    """The warning `reduced` if less was measured than in the papers."""
    if not data.curves:
        return
    keys = [c.key for c in data.curves]
    measured = {ScalingCase(k.network, k.batch, k.image_size) for k in keys}
    reductions = []
    missing = [case for case in published if case not in measured]
    if not settings.networks and missing:
        names = dict.fromkeys(f"{case.network} at {case.batch}" for case in missing)
        reductions.append(f"without {', '.join(names)}")
    most = max(group.key[0] for curve in data.curves for group in curve.groups)
    if not settings.devices and most < MAX_DEVICES:
        reductions.append(f"{format_devices(most)} instead of {MAX_DEVICES}")
    if reductions:
        rule = f" {RULE}" if "little-cnn" in {case.network for case in measured} else ""
        cause = f"Less than in the papers: {'; '.join(reductions)}.{rule}"
        yield warn("reduced", cause, "Use --full, or name networks, batch sizes and devices.")


def _notes(data: ScalingData, records: Sequence[RunRecord]) -> Iterator[str]:
    yield {
        ScalingMode.WEAK: "Weak scaling: the batch size per device is constant.",
        ScalingMode.STRONG: "Strong scaling: the global batch size is constant.",
        ScalingMode.CONSTANT_BATCH: "Constant-batch scaling: the batch size per host is constant; "
        "on one host that is strong scaling.",
    }[data.mode]
    yield (
        "Efficiency is the throughput of N devices over N times that of one; ‘vs slowest device "
        "without sync’ is over N times that of the slowest of the N devices, all training at the "
        "same time without synchronization. Intervals come from resampling runs and windows of "
        "both points."
    )
    if fixed_groups(data):
        yield (
            "Every number of devices trains the same samples. The training time is from the first "
            "of their iterations to the end of the last, after the warm-up; the wall time has the "
            "start of the process and the warm-up, too."
        )
    if any(map(on_all_cores, records)):
        yield (
            "The CPU is that of the host, all its cores as one device, at the batch size of one "
            "device and in the same framework."
        )
    groups = [r for r in records if not on_all_cores(r)]
    if any(rank.device == "cpu" for r in groups for rank in r.ranks):
        threads = sorted({r.spec.placement.threads or 0 for r in groups})
        cores = ", ".join(str(n or "all") for n in threads)
        yield (
            f"A device is {cores} core{'' if threads == [1] else 's'} of the CPU, to which its "
            "process is pinned; a single device has as many."
        )
    if _projects(data):
        yield "90 epochs are of 1.28 million images each."
    yield "docs/attribution.md describes the parts of a step."
