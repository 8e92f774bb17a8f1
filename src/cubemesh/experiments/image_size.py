"""Image size: its effect on throughput by batch size, and on device utilization.

DGX-1 best practices [001], figure 2: LittleCNN on synthetic images of 224 × 224 at batch size 16 to
256, compared with the 32 × 32 of CIFAR-10: at 224, batch size 64 is only 1.3 times as fast as 16
(2.8 times at 32), and the GPU is busy for over 70 % of the time from the start. Training steps are
timed at each image and batch size; the default list of an image size ends where a run would take
too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.answer import answer_of, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, verdicts
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.minibatch.input_bound import (
    UTILIZATION_NOTE,
    DataLocations,
    device_utilization,
    input_bound_findings,
    programs_by_location,
    speed_cells,
    speed_columns,
    utilization_cell,
)
from cubemesh.experiments.minibatch.max_batch import may_double
from cubemesh.networks import entry
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    NetworkWork,
    Point,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
    Warning,
)

SMALL, LARGE = 32, 224
BATCHES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `image-size` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """Networks to train; `cubemesh networks` lists them."""
    image_sizes: tuple[int, ...] = ()
    """Image sizes in pixels; default: the paper's 32 and 224, on a CPU 32 and 80."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: the paper's 16 to 256, as far as this machine gets in reasonable
    time."""
    data_location: DataLocations = "host"
    """Location of the data: host (every batch is copied, as in the paper), device, or both."""


Key = tuple[int, int, str]
"""(image size, batch size, host or device)."""


def plan(settings: Settings, context: Context) -> Plan:
    """By network and image size, from the smallest batch size up."""
    for network in dict.fromkeys(settings.networks):
        yield from _network_plan(settings, context, network)


def _network_plan(settings: Settings, context: Context, network: str) -> Plan:
    for size in sorted(set(settings.image_sizes or default_sizes(network, context))):
        batches = sorted(set(settings.batch_sizes or BATCHES))
        records: Sequence[RunRecord] = ()
        for batch in batches:
            if not settings.batch_sizes and not all(may_double(r, context.scale) for r in records):
                break
            records = yield [
                RunSpec(
                    work=TrainSteps(network=network, batch_per_device=batch, image_size=size),
                    program=program,
                    budget=context.budget,
                )
                for program in programs_by_location(settings.data_location)
            ]


def default_sizes(network: str, context: Context) -> tuple[int, ...]:
    """The paper's two image sizes, at least the network's smallest."""
    large = reduction.image_size(network, context, LARGE) or LARGE
    return tuple(dict.fromkeys((max(SMALL, entry(network).smallest_image_size), large)))


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `image-size`, by network."""
    return per_workload(records, lambda r: (_network(r),), lambda own: _answer(settings, own))


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    groups = group_by(records, _key)
    network = _network(records[0]) if records else settings.networks[0]
    return answer_of(
        EXPERIMENT,
        titled(f"{network} by image size and batch size", records),
        records,
        findings=_findings(network, groups),
        tables=(_table(groups),),
        charts=_charts(network, groups),
        warnings=_reduced(settings, groups),
        notes=(
            UTILIZATION_NOTE,
            "DGX-1 best practices [001], figure 2: batch size 64 has 1.3 times the throughput of "
            "16 at 224 pixels (2.8 times at CIFAR-10's 32), with over 70 % GPU utilization.",
        ),
    )


def _network(record: RunRecord) -> str:
    assert isinstance(record.spec.work, NetworkWork)
    return record.spec.work.network


def _key(record: RunRecord) -> Key:
    work = record.spec.work
    assert isinstance(work, NetworkWork)
    size = entry(work.network).image_size if work.image_size is None else work.image_size
    return size, work.batch_per_device, record.spec.program.data_location


def _curves(groups: list[Group[Key]]) -> dict[tuple[int, str], list[Group[Key]]]:
    """Groups of each (image size, host or device), by batch size."""
    curves: dict[tuple[int, str], list[Group[Key]]] = {}
    for group in sorted(groups, key=lambda g: g.key[1]):
        curves.setdefault((group.key[0], group.key[2]), []).append(group)
    return curves


def _findings(network: str, groups: list[Group[Key]]) -> Iterator[Finding]:
    curves = _curves(groups)
    places = {g.key: g for g in groups}
    for (size, location), curve in curves.items():
        done = [(g, f) for g in curve if (f := g.throughput) is not None]
        where = f"{size} pixels" + (", data on the device" if location == "device" else "")
        if len(done) > 1:
            yield from _growth(where, done)
        busy = [(g.key[1], *found) for g, _ in done if (found := device_utilization(g)) is not None]
        if busy:
            low, high = min(busy, key=lambda b: b[2]), max(busy, key=lambda b: b[2])
            yield Finding(
                code="device-utilization",
                value=high[2],
                unit="%",
                text=f"{where}: {low[1]} utilization is {low[2]:.0f} % at batch size {low[0]}"
                + (f" and {high[2]:.0f} % at {high[0]}." if high[0] != low[0] else "."),
                caveats=caveats(*(g for g, _ in done)),
            )
    pairs = [
        (f"{size} pixels, batch size {batch}", group, places[size, batch, "device"])
        for (size, batch, location), group in places.items()
        if location == "host" and (size, batch, "device") in places
    ]
    yield from input_bound_findings(network, pairs)
    for group in groups:
        if group.throughput is None:
            size, batch, _ = group.key
            yield failed_run(f"{size} pixels, batch size {batch}", group)


def _growth(where: str, done: list[tuple[Group[Key], Figure]]) -> Iterator[Finding]:
    (first, slow), (last, fast) = done[0], max(done, key=lambda p: p[1].value)
    found = ratio(fast, slow)
    if noise := caveats(first, last):
        yield Finding(
            code="noisy-runs",
            text=f"{where}: not compared, because a run at batch size {first.key[1]} or "
            f"{last.key[1]} is noisy.",
            caveats=noise,
        )
        return
    verdict = verdicts([found])[0]
    if verdict.sign > 0:
        code = "throughput-growth"
        text = (
            f"{where}: batch size {last.key[1]} trains {format_ratio(found)} as many images/s as "
            f"{first.key[1]}."
        )
    else:
        code = "flat-throughput"
        text = (
            f"{where}: throughput does not grow significantly with the batch size above "
            f"{first.key[1]}; {verdict.unseen}."
        )
    yield Finding.of(code=code, text=text, figure=found, unit="×")


def _table(groups: list[Group[Key]]) -> Table:
    columns = (
        Column(name="image size", unit="pixels"),
        Column(name="batch size"),
        Column(name="data on"),
        *speed_columns(groups),
    )
    return Table(title="", columns=columns, rows=tuple(map(_row, groups)))


def _row(group: Group[Key]) -> tuple[Cell, ...]:
    size, batch, location = group.key
    return (
        Cell(text=str(size), run_id=group.run_id),
        Cell(text=str(batch)),
        Cell(text=location),
        *speed_cells(group),
    )


def _charts(network: str, groups: list[Group[Key]]) -> Iterator[Chart]:
    curves = _curves(groups)
    if not curves:
        return
    x = Axis(name="batch size", scale="log2")
    yield Chart(
        name=f"image-size-{network}",
        title=f"{network}: images/s by image size and batch size",
        kind="line",
        x=x,
        y=Axis(name="throughput", unit="images/s", from_zero=True),
        lines=tuple(
            Line(
                name=_line_name(key, curves),
                points=tuple(g.point(g.key[1], g.throughput) for g in curve),
            )
            for key, curve in curves.items()
        ),
    )
    if any(device_utilization(g) for g in groups):
        yield Chart(
            name=f"image-size-{network}-utilization",
            title=f"{network}: utilization by image size and batch size",
            kind="line",
            x=x,
            y=Axis(name="utilization", unit="%", from_zero=True),
            lines=tuple(
                Line(name=_line_name(key, curves), points=tuple(map(_busy_point, curve)))
                for key, curve in curves.items()
            ),
        )


def _line_name(key: tuple[int, str], curves: dict[tuple[int, str], list[Group[Key]]]) -> str:
    size, location = key
    several = len({on for _, on in curves}) > 1
    return f"{size} × {size}" + (f", data on the {location}" if several else "")


def _busy_point(group: Group[Key]) -> Point:
    cell = utilization_cell(group)
    return Point(x=group.key[1], y=cell.value, reason=cell.reason, run_id=group.run_id)


def _reduced(settings: Settings, groups: list[Group[Key]]) -> tuple[Warning, ...]:
    less = []
    sizes = {g.key[0] for g in groups}
    if groups and not settings.image_sizes and LARGE not in sizes:
        less.append(f"images of {max(sizes)} pixels instead of {LARGE}")
    for size in sorted(sizes):
        last = max(g.key[1] for g in groups if g.key[0] == size)
        if not settings.batch_sizes and last < BATCHES[-1]:
            less.append(f"batch sizes up to {last} instead of {BATCHES[-1]} at {size} pixels")
    return reduction.reduced(less)


EXPERIMENT = Experiment(
    name="image-size",
    question="How do throughput and utilization depend on the image size?",
    settings=Settings,
    works=(TrainSteps,),
    varies={"network": "networks", "batch_per_device": "batch_sizes", "image_size": "image_sizes"},
    plan=plan,
    grows=True,
    answer=answer,
    papers="[001], figure 2",
)
