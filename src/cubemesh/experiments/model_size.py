"""Model size: throughput and device utilization of small and deep networks.

DGX-1 best practices [001], figure 3: LittleCNN, ResNet-50 and VGG-16 on images of 224 × 224, batch
size 32, 30 epochs of 1,024 synthetic images generated on the host and copied every step: 442, 192
and 156 images/s at a GPU utilization of 82, 88 and 92 %. At least 80 % counts as full. Training
steps are timed on such images, with --full as many as in the paper's 30 epochs, and utilization is
sampled twice per second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.answer import answer_of, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit, titled
from cubemesh.experiments.analysis.per_workload import batch_size, per_workload
from cubemesh.experiments.analysis.ratios import plus_minus
from cubemesh.experiments.analysis.utilization_columns import (
    NOTE,
    ceiling_specs,
    known_figures,
    utilization_cells,
    utilization_columns,
)
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.minibatch.input_bound import (
    BUSY_PERCENT,
    UTILIZATION_NOTE,
    DataLocations,
    device_utilization,
    input_bound_findings,
    programs_by_location,
    speed_cells,
    speed_columns,
)
from cubemesh.networks import build_for, rate_unit
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    NetworkWork,
    Point,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
)
from cubemesh.units import format_list

NETWORKS = ("little-cnn", "resnet-50", "vgg16")
SIDE = 224
BATCH = 32
STEPS = 30 * 1024 // BATCH
"""30 epochs of 1,024 images."""
SECONDS = {Scale.QUICK: 3.0, Scale.DEFAULT: 10.0, Scale.FULL: 10.0}
"""Measuring time; utilization is sampled twice per second."""

Key = tuple[str, str]
"""(network, host or device)."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `model-size` besides the fields of its specs."""

    networks: tuple[str, ...] = NETWORKS
    """Networks to train, from small to large."""
    image_size: int | None = None
    """Image size in pixels; default: the paper's 224, on a CPU a third of it."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: the paper's 32, on a CPU an eighth of it."""
    data_location: DataLocations = "host"
    """Location of the data: host (every batch is copied, as in the paper), device, or both."""
    ceiling: bool = True
    """Also measure the fastest matrix product and copy, as ceilings of the steps."""


def plan(settings: Settings, context: Context) -> Plan:
    """A run per network, two with data on host and device."""
    batches = settings.batch_sizes or (reduction.batch(BATCH, context),)
    budget = replace(
        context.budget,
        steps=STEPS if context.scale is Scale.FULL else context.budget.steps,
        seconds=SECONDS[context.scale],
    )
    first = ceiling_specs(context.budget) if settings.ceiling else []
    yield first + [
        RunSpec(
            work=TrainSteps(
                network=network,
                batch_per_device=batch,
                image_size=settings.image_size or reduction.image_size(network, context, SIDE),
            ),
            program=program,
            budget=budget,
        )
        for batch in dict.fromkeys(batches)
        for network in dict.fromkeys(settings.networks)
        for program in programs_by_location(settings.data_location)
    ]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `model-size`, by batch size."""
    steps = [r for r in records if isinstance(r.spec.work, NetworkWork)]
    others = [r for r in records if not isinstance(r.spec.work, NetworkWork)]
    return per_workload(
        steps,
        batch_size,
        lambda own: _answer(settings, own, [*others, *own]),
    )


def _answer(settings: Settings, steps: Sequence[RunRecord], records: Sequence[RunRecord]) -> Answer:
    groups = group_by(steps, _key)
    at = f", {batch_size(steps[0])[0]}" if steps else ""
    return answer_of(
        EXPERIMENT,
        titled(f"Small and deep networks{at}", steps),
        records,
        findings=_findings(groups),
        tables=(_table(groups),),
        charts=_charts(groups),
        warnings=reduction.reductions(
            steps,
            batch_per_device=BATCH,
            steps=0,
            image_size=SIDE,
            missing=[n for n in NETWORKS if n not in settings.networks],
        ),
        notes=(
            *([NOTE] if known_figures(groups) else []),
            UTILIZATION_NOTE,
            "DGX-1 best practices [001], figure 3 (one V100, Keras, images of 224 pixels copied "
            "every step): 442, 192 and 156 images/s at 82, 88 and 92 % for LittleCNN, ResNet-50 "
            "and VGG-16.",
        ),
    )


def _key(record: RunRecord) -> Key:
    assert isinstance(record.spec.work, NetworkWork)
    return record.spec.work.network, record.spec.program.data_location


def _findings(groups: list[Group[Key]]) -> Iterator[Finding]:
    done = [(g, f) for g in groups if (f := g.throughput) is not None]
    location = "host" if any(g.key[1] == "host" for g, _ in done) else "device"
    busy = [
        (g, u) for g, _ in done if g.key[1] == location and (u := device_utilization(g)) is not None
    ]
    if busy:
        kind = busy[0][1][0]
        full = [f"{g.key[0]} ({u:.0f} %)" for g, (_, u) in busy if u >= BUSY_PERCENT]
        less = [f"{g.key[0]} ({u:.0f} %)" for g, (_, u) in busy if u < BUSY_PERCENT]
        parts = [f"reached by {format_list(full)}"] if full else []
        if less:
            parts.append(f"not reached by {format_list(less)}")
        lowest = min(u for _, (_, u) in busy)
        yield Finding(
            code="device-utilization",
            question=f"How high is {kind} utilization?",
            text=f"{kind} utilization of {BUSY_PERCENT:.0f} % or more (full): {'; '.join(parts)}.",
            value=lowest,
            unit="% lowest",
            caveats=caveats(*(g for g, _ in busy)),
        )
    for group, figure in done:
        unit = rate_unit(group.key[0])
        yield Finding.of(
            code="throughput",
            text=f"{_name(group)} trains at {plus_minus(figure)} {unit}.",
            figure=figure,
            unit=unit,
            caveats=group.caveats,
        )
    places = {g.key: g for g in groups}
    for network in dict.fromkeys(g.key[0] for g in groups):
        host, device = places.get((network, "host")), places.get((network, "device"))
        if host and device:
            where, *_ = batch_size(host.records[0])
            yield from input_bound_findings(network, [(where, host, device)])
    for group in groups:
        if group.throughput is None:
            yield failed_run(_name(group), group)


def _name(group: Group[Key]) -> str:
    network, location = group.key
    return network if location == "host" else f"{network} (data on the device)"


def _table(groups: list[Group[Key]]) -> Table:
    shares = known_figures(groups)
    columns = (
        Column(name="network"),
        Column(name="data on"),
        Column(name="parameters", digits=12),
        *speed_columns(groups),
        *utilization_columns(shares),
    )
    return Table(title="", columns=columns, rows=tuple(_row(g, shares) for g in groups))


def _row(group: Group[Key], shares: list[str]) -> tuple[Cell, ...]:
    work = group.records[0].spec.work
    assert isinstance(work, NetworkWork)
    count = build_for(work).parameter_count
    return (
        Cell(text=group.key[0], run_id=group.run_id),
        Cell(text=group.key[1]),
        Cell(value=count),
        *speed_cells(group),
        *utilization_cells(group, shares),
    )


def _charts(groups: list[Group[Key]]) -> Iterator[Chart]:
    if not groups:
        return
    unit = throughput_unit(r for g in groups for r in g.records)
    location = list(dict.fromkeys(g.key[1] for g in groups))
    yield Chart(
        name="model-size",
        title=f"{unit} by network",
        kind="bar",
        x=Axis(name="network", scale="category"),
        y=Axis(name="throughput", unit=unit, from_zero=True),
        lines=tuple(
            Line(
                name=f"data on the {on}",
                points=tuple(g.point(g.key[0], g.throughput) for g in groups if g.key[1] == on),
            )
            for on in location
        ),
    )
    for quantity, ending, unit in (
        ("utilization", "_utilization_percent", "%"),
        ("power", "_power_watts", "W"),
    ):
        lines = tuple(line for g in groups if (line := _over_time(g, ending)) is not None)
        if lines:
            yield Chart(
                name=f"model-size-{quantity}",
                title=f"{quantity.capitalize()} over time",
                kind="line",
                x=Axis(name="training time", unit="s"),
                y=Axis(name=quantity, unit=unit, from_zero=True),
                lines=lines,
            )


def _over_time(group: Group[Key], ending: str) -> Line | None:
    for record in group.ok:
        for curve in record.curves:
            if curve.name.endswith(ending) and curve.x:
                pairs = zip(curve.x, curve.y, strict=True)
                points = tuple(
                    Point(x=round(x, 2), y=round(y, 1), run_id=record.run_id) for x, y in pairs
                )
                return Line(name=_name(group), points=points)
    return None


EXPERIMENT = Experiment(
    name="model-size",
    question="What device utilization do small and deep networks reach?",
    settings=Settings,
    works=(TrainSteps,),
    varies={"network": "networks", "batch_per_device": "batch_sizes"},
    plan=plan,
    answer=answer,
    papers="[001], figure 3",
)
