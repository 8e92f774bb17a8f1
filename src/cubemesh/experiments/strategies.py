"""Which way of training on several devices together is fastest, and what does each cost?

Document 001 (towers with the weights on the CPU, synchronous; asynchronous as TensorFlow's figures
have it) and 002 (model-parallel): the exchanges of docs/devices.md side by side, on the same
devices, with the same minibatch of each. Throughput with its ratio to `all-reduce`, what a step
waits for the exchange and for the slowest rank, how much is handed over, and of asynchronous ones
how stale gradients are. What any of them learns is the question of `train`, `batch-accuracy` and
`sequential-equivalence`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.groups import caveats, titled
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, significance
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.analysis import VARIES
from cubemesh.experiments.scaling.design import (
    ALONE,
    ScalingCase,
    ScalingCurve,
    ScalingSettings,
    chosen,
    curves,
    device_counts,
    specs,
)
from cubemesh.experiments.scaling.efficiency import efficiency, efficiency_alone
from cubemesh.experiments.scaling.findings import not_run
from cubemesh.experiments.scaling.losses import mean_parts, profiled_record
from cubemesh.experiments.scaling.modes import ScalingMode
from cubemesh.experiments.scaling.report import ScalingData, ScalingGroup, charts, parts_table
from cubemesh.measure.attribution.attribution import COMMUNICATION, STRAGGLER
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.schema import Answer, Cell, Column, Figure, Finding, RunRecord, Table, TrainSteps
from cubemesh.units import format_list

USUAL = "all-reduce"
"""What the others are held against."""
COMPARED = tuple(
    name
    for name, s in STRATEGIES.items()
    if s.needs and not s.needs_peer_access and not s.same_samples
)
DOCUMENTED = (
    ScalingCase("resnet-50", 32),
    ScalingCase("vgg16", 32),
    ScalingCase("little-cnn", 32, 224),
)
SMALL = (ScalingCase("little-cnn", 64),)


@dataclass(frozen=True, kw_only=True)
class Settings(ScalingSettings):
    """What can be set in `strategies` besides the fields of its specs."""

    strategies: tuple[str, ...] = COMPARED
    """Exchanges to hold against one another; `model-parallel` is there for networks that are a
    chain of segments."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; one is always measured. None given is as many as there are, 8 at most."""
    batch_sizes: tuple[int, ...] = ()
    """Minibatches of a device; none given is the document's 32, 64 on a CPU."""


def plan(settings: Settings, context: Context) -> Plan:
    """One device, then each exchange on all of them, then each device alone."""
    counts = device_counts(settings, context)
    if not settings.devices:
        counts = sorted({1, counts[-1]})
    wanted = chosen(settings, settings.batch_sizes, DOCUMENTED, SMALL, context)
    yield from specs(settings, ScalingMode.WEAK, wanted, context, counts)


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `strategies`."""
    shown = ScalingData(regime=ScalingMode.WEAK, scaled=tuple(curves(records, ScalingMode.WEAK)))
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled("Exchanges side by side", records),
        findings=tuple(_findings(shown)),
        tables=(*([_table(shown)] if shown.scaled else []), *parts_table(shown)),
        charts=tuple(charts(shown, name="strategies")),
        warnings=tuple(w for r in records for w in r.warnings),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            "Weak scaling: every device has the same minibatch under every exchange. Handed over "
            "is what a rank gives its exchange in a step; an all-reduce by ring sends nearly twice "
            "that over each link.",
            "Waits are means over the ranks (docs/attribution.md); exchanges in which ranks write "
            "to one another are not taken apart. Under local-sgd and the asynchronous exchanges "
            "ranks have other weights than one device would have: their speed is not all.",
        ),
    )


def _findings(shown: ScalingData) -> Iterator[Finding]:
    card = True
    for scaled in shown.scaled:
        for devices in dict.fromkeys(g.key[0] for g in scaled.together):
            ran = [g for g in scaled.together if g.key[0] == devices and g.throughput]
            if ran:
                yield from _of_devices(shown, scaled, devices, ran, card)
                card = False
        yield from not_run(shown, scaled)
    if shown.scaled and not any(s.together for s in shown.scaled):
        yield Finding(
            text="One device is all that was measured, so there is nothing to exchange.",
            remedy="Name more with --set devices=….",
        )


def _of_devices(
    shown: ScalingData, scaled: ScalingCurve, devices: int, ran: list[ScalingGroup], card: bool
) -> Iterator[Finding]:
    ranked = sorted(ran, key=lambda g: -_rate(g).value)
    best = ranked[0]
    where = f"{shown.name(scaled)} on {devices} devices"
    reached = efficiency(best, scaled.one) if scaled.one else None
    words = f", {reached.value:.0f} % of {devices} times one device" if reached else ""
    disturbed = caveats(*ran, *([scaled.one] if scaled.one else []))
    surely = "ran fastest" if disturbed else "is fastest"
    but = ", but a run was disturbed: which is fastest is not told" if disturbed else ""
    yield Finding(
        question="Which exchange is fastest?" if card else None,
        text=f"{where}: {best.key[1]} {surely}{words}{but}.",
        value=None if reached is None else reached.value,
        unit=f"% efficiency: {best.key[1]}",
        low=None if reached is None else reached.low,
        high=None if reached is None else reached.high,
        caveats=disturbed,
    )
    usual = next((g for g in ran if g.key[1] == USUAL), None)
    if usual is not None and not disturbed:
        words_of = {1: "faster than", -1: "slower than", 0: "level with"}
        told = [
            f"{g.key[1]} is {words_of[significance(found)]} it, {format_ratio(found)}"
            for g in ranked
            if g is not usual
            for found in [ratio(_rate(g), _rate(usual))]
        ]
        if told:
            yield Finding(text=f"{where}, against {USUAL}: {format_list(told)}.")
    yield from _waits(where, ran)
    for group in ran:
        stale = group.median_of("staleness")
        if stale is not None:
            yield Finding(
                text=f"{where}, {group.key[1]}: a gradient is {stale:.2f} versions old when it is "
                f"applied, in the mean; {devices - 1} would be that of {devices} equal workers.",
                caveats=caveats(group),
            )


def _waits(where: str, ran: Sequence[ScalingGroup]) -> Iterator[Finding]:
    """Which exchange a step waits for longest, and for whom."""
    told = []
    for group in ran:
        shares = _shares(group)
        if shares is not None:
            told.append((sum(shares), group, shares))
    if not told:
        return
    total, group, (sync, straggler) = max(told, key=lambda t: t[0])
    yield Finding(
        text=f"{where}: a step waits longest under {group.key[1]}, {100 * total:.1f} % of its "
        f"time: {100 * sync:.1f} % for the exchange and {100 * straggler:.1f} % for the "
        "slowest rank.",
        caveats=caveats(group),
    )


def _shares(group: ScalingGroup) -> tuple[float, float] | None:
    """Exposed communication and straggler wait as shares of the step; None where not told."""
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


def _table(shown: ScalingData) -> Table:
    columns = (
        Column(name="network, minibatch"),
        Column(name="devices"),
        Column(name="sync"),
        Column(name="samples/s"),
        Column(name=f"of {USUAL}", unit="x"),
        Column(name="efficiency", unit="%"),
        Column(name="of slowest alone", unit="%"),
        Column(name="handed over", unit="MiB a step"),
        Column(name="waits for exchange", unit="%"),
        Column(name="waits for slowest", unit="%"),
        Column(name="staleness"),
        Column(name="memory", unit="MiB"),
    )
    rows = tuple(_row(shown, s, group) for s in shown.scaled for group in s.groups)
    return Table(title="Exchanges", columns=columns, rows=rows)


def _row(shown: ScalingData, scaled: ScalingCurve, group: ScalingGroup) -> tuple[Cell, ...]:
    devices, sync = group.key
    alone = sync == ALONE
    name = sync if not alone else "–" if devices == 1 else "each alone"
    head = (Cell(text=shown.name(scaled)), Cell(value=devices), Cell(text=name))
    figure = group.throughput
    if figure is None:
        return (*head, *[group.cell(None)] * 9)
    usual, beside = scaled.at(devices, USUAL), scaled.at(devices, ALONE)
    over = usual.throughput if usual and devices > 1 else None
    shares = _shares(group) if devices > 1 else None
    percents = [Cell(text="–")] * 2
    if shares is not None:
        percents = [Cell(value=100 * share, run_id=group.run_id) for share in shares]
    return (
        *head,
        group.cell(figure),
        _or_dash(group, ratio(figure, over) if over else None),
        _or_dash(group, efficiency(group, scaled.one) if scaled.one and devices > 1 else None),
        _or_dash(group, None if alone or beside is None else efficiency_alone(group, beside)),
        _median(group, "exchanged_bytes", 2**20),
        *percents,
        _median(group, "staleness", 1.0),
        _median(group, "peak_memory_bytes", 2**20),
    )


def _or_dash(group: ScalingGroup, figure: Figure | None) -> Cell:
    return Cell(text="–") if figure is None else group.cell(figure)


def _median(group: ScalingGroup, name: str, unit: float) -> Cell:
    value = group.median_of(name)
    return Cell(text="–") if value is None else Cell(value=value / unit, run_id=group.run_id)


EXPERIMENT = Experiment(
    name="strategies",
    question="Which way of training on several devices is fastest, and what does each cost?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    documents="001 figure 4, 002 section 3.2",
)
