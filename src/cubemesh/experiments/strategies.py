"""Gradient synchronization strategies compared on the same devices: throughput and costs.

From the papers 001 (towers with the weights on the CPU, synchronous; asynchronous as in
TensorFlow's figures) and 002 (model-parallel). Each strategy of docs/devices.md trains on the same
devices at the same batch size: throughput and its ratio to `all-reduce`, what a step waits for
communication and for the slowest rank, bytes communicated, and the staleness of asynchronous
gradients. What each of them learns is measured by `train`, `batch-accuracy` and
`sequential-equivalence`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import caveats, titled
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, verdicts
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.analysis import (
    ScalingData,
    efficiency,
    efficiency_independent,
    profiled_record,
)
from cubemesh.experiments.scaling.design import (
    NO_SYNC,
    VARIES,
    ScalingCase,
    ScalingCurve,
    ScalingGroup,
    ScalingMode,
    ScalingSettings,
    chosen_cases,
    curves,
    device_counts,
    specs,
)
from cubemesh.experiments.scaling.pipelines import pipeline_findings, pipeline_tables
from cubemesh.experiments.scaling.report import charts, failed_runs, median_cell, parts_table
from cubemesh.measure.attribution.attribution import COMMUNICATION, STRAGGLER
from cubemesh.measure.attribution.bottlenecks import mean_parts
from cubemesh.schema import Answer, Cell, Column, Figure, Finding, RunRecord, Table, TrainSteps

BASELINE = "all-reduce"
"""The strategy that the others are compared with."""
STRATEGIES = (
    *(BASELINE, "all-reduce-16", "parameter-server", "local-sgd"),
    *("asynchronous", "asynchronous-aware"),
)
PUBLISHED = (
    ScalingCase("resnet-50", 32),
    ScalingCase("vgg16", 32),
    ScalingCase("little-cnn", 32, 224),
)
SMALL = (ScalingCase("little-cnn", 64),)


@dataclass(frozen=True, kw_only=True)
class Settings(ScalingSettings):
    """Settings of `strategies` besides the fields of its specs."""

    strategies: tuple[str, ...] = STRATEGIES
    """Gradient synchronization strategies to compare; `model-parallel`, `pipeline` and `hybrid`
    train networks that are a chain of segments."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; one is always included. Default: all of the machine, at most 8."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes per device. Default: the paper's 32; 64 on a CPU."""


def plan(settings: Settings, context: Context) -> Plan:
    """One device, then each strategy on all devices, then these without synchronization."""
    counts = device_counts(settings, context)
    if not settings.devices:
        counts = sorted({1, counts[-1]})
    cases = chosen_cases(settings, settings.batch_sizes, PUBLISHED, SMALL, context)
    yield from specs(settings, ScalingMode.WEAK, cases, context, counts)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `strategies`."""
    data = ScalingData(mode=ScalingMode.WEAK, curves=tuple(curves(records, ScalingMode.WEAK)))
    return answer_of(
        EXPERIMENT,
        titled("Gradient synchronization strategies", records),
        records,
        findings=(*_findings(data), *pipeline_findings(data)),
        tables=(
            *([_table(data)] if data.curves else []),
            *parts_table(data),
            *pipeline_tables(data),
        ),
        charts=charts(data, name="strategies"),
        notes=(
            "Weak scaling: the batch size per device is the same for all strategies. "
            "‘Communicated’ is what a rank passes to its strategy in a step; a ring all-reduce "
            "sends nearly twice that over each link.",
            "Waits are means over the ranks (docs/attribution.md); strategies in which ranks write "
            "to each other are not profiled. With local-sgd and the asynchronous strategies the "
            "weights differ from those of one device: compare their accuracy too.",
        ),
    )


def _findings(data: ScalingData) -> Iterator[Finding]:
    card = True
    for curve in data.curves:
        for devices in dict.fromkeys(g.key[0] for g in curve.together):
            ran = [g for g in curve.together if g.key[0] == devices and g.throughput]
            if ran:
                yield from _findings_on(data, curve, devices, ran, card)
                card = False
        yield from failed_runs(data, curve)
    if data.curves and not any(c.together for c in data.curves):
        yield Finding(
            code="single-device",
            text="Only one device was measured: there is no strategy to compare.",
            remedy="Name more with --set devices=….",
        )


def _findings_on(
    data: ScalingData, curve: ScalingCurve, devices: int, ran: list[ScalingGroup], card: bool
) -> Iterator[Finding]:
    ranked = sorted(ran, key=lambda g: -_rate(g).value)
    best = ranked[0]
    where = f"{data.name(curve)} on {devices} devices"
    reached = efficiency(best, curve.one) if curve.one else None
    words = f", {reached.value:.0f} % of {devices} times one device" if reached else ""
    noise = caveats(*ran, *([curve.one] if curve.one else []))
    text = f"{where}: {best.key[1]} is fastest{words}."
    if noise:
        text = f"{where}: {best.key[1]} was fastest{words}, but a run was noisy: no comparison."
    yield Finding(
        code="fastest-strategy",
        question="Which strategy is fastest?" if card else None,
        text=text,
        value=None if reached is None else reached.value,
        unit=f"% efficiency: {best.key[1]}",
        low=None if reached is None else reached.low,
        high=None if reached is None else reached.high,
        caveats=noise,
    )
    baseline = next((g for g in ran if g.key[1] == BASELINE), None)
    if baseline is not None and not noise:
        yield from _ratios(where, baseline, [g for g in ranked if g is not baseline])
    yield from _waits(where, ran)
    for group in ran:
        stale = group.median_of("staleness")
        if stale is not None:
            yield Finding(
                code="staleness",
                text=f"{where}, {group.key[1]}: the mean staleness of a gradient is {stale:.2f} "
                f"updates; {devices - 1} is expected of {devices} equal workers.",
                value=stale,
                unit="updates",
                caveats=caveats(group),
            )


def _ratios(where: str, baseline: ScalingGroup, others: list[ScalingGroup]) -> Iterator[Finding]:
    words = {1: "faster", -1: "slower"}
    ratios = [ratio(_rate(group), _rate(baseline)) for group in others]
    parts = [
        f"{group.key[1]} {words[verdict.sign]}, {format_ratio(found)}"
        if verdict.sign
        else f"{group.key[1]} no significant difference, {format_ratio(found)} ({verdict.unseen})"
        for group, found, verdict in zip(others, ratios, verdicts(ratios), strict=True)
    ]
    if parts:
        yield Finding(
            code="strategy-ratios",
            text=f"{where}, compared with {BASELINE}: {'; '.join(parts)}.",
        )


def _waits(where: str, ran: Sequence[ScalingGroup]) -> Iterator[Finding]:
    """The strategy with the longest wait of a step, for communication and the slowest rank."""
    waits = [(sum(found), group, found) for group in ran if (found := _wait_fractions(group))]
    if not waits:
        return
    total, group, (communication, straggler) = max(waits, key=lambda w: w[0])
    yield Finding(
        code="longest-wait",
        text=f"{where}: a step waits longest with {group.key[1]}, {100 * total:.1f} % of its "
        f"time: {100 * communication:.1f} % for communication and {100 * straggler:.1f} % for "
        "the slowest rank.",
        value=100 * total,
        unit="%",
        caveats=caveats(group),
    )


def _wait_fractions(group: ScalingGroup) -> tuple[float, float] | None:
    """Exposed communication and straggler wait as fractions of the step; None if not profiled."""
    record = profiled_record(group)
    if record is None:
        return None
    parts = mean_parts(record)
    step_s = math.fsum(parts.values())
    return parts.get(COMMUNICATION, 0.0) / step_s, parts.get(STRAGGLER, 0.0) / step_s


def _rate(group: ScalingGroup) -> Figure:
    figure = group.throughput
    assert figure is not None
    return figure


def _table(data: ScalingData) -> Table:
    columns = (
        Column(name="network, batch size"),
        Column(name="devices"),
        Column(name="strategy"),
        Column(name="throughput", unit=data.unit),
        Column(name=f"vs {BASELINE}", unit="x"),
        Column(name="efficiency", unit="%"),
        Column(name="vs slowest device without sync", unit="%"),
        Column(name="communicated", unit="MiB/step"),
        Column(name="communication wait", unit="%"),
        Column(name="straggler wait", unit="%"),
        Column(name="staleness", unit="updates"),
        Column(name="memory", unit="MiB"),
    )
    rows = tuple(_row(data, c, group) for c in data.curves for group in c.groups)
    return Table(title="Strategies", columns=columns, rows=rows)


def _row(data: ScalingData, curve: ScalingCurve, group: ScalingGroup) -> tuple[Cell, ...]:
    devices, sync = group.key
    name = sync if sync != NO_SYNC else "–" if devices == 1 else "no sync"
    head = (Cell(text=data.name(curve)), Cell(value=devices), Cell(text=name))
    figure = group.throughput
    if figure is None:
        return (*head, *[group.cell(None)] * 9)
    over = reached = compared = fractions = None
    if devices > 1:
        baseline, independent = curve.at(devices, BASELINE), curve.at(devices, NO_SYNC)
        over = ratio(figure, _rate(baseline)) if baseline and baseline.throughput else None
        reached = efficiency(group, curve.one) if curve.one else None
        if independent and independent is not group:
            compared = efficiency_independent(group, independent)
        fractions = _wait_fractions(group)
    waits = [Cell(text="–")] * 2
    if fractions is not None:
        waits = [Cell(value=100 * fraction, run_id=group.run_id) for fraction in fractions]
    return (
        *head,
        group.cell(figure),
        *(Cell(text="–") if f is None else group.cell(f) for f in (over, reached, compared)),
        median_cell(group, "exchanged_bytes", 2**20),
        *waits,
        median_cell(group, "staleness", 1.0),
        median_cell(group, "peak_memory_bytes", 2**20),
    )


EXPERIMENT = Experiment(
    name="strategies",
    question="Which gradient synchronization strategy is fastest, and what does each cost?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    papers="[001], figure 4, [002], section 3.2",
)
