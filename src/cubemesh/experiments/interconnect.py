"""What does the link between devices cost, by network and by the width of a translator?

Documents 002 (figures 5 to 7: NVLink against PCIe, Inception-v3 and translators of 512 to 2048),
003 (InfiniBand against Ethernet) and 004 (a network of many parameters suffers from a slow link,
one of few does not). The same devices train the same network over each link:

    auto             what the library takes by itself: peer-to-peer over NVLink, where there is any
    shared-memory    through the host's memory: NCCL with peer-to-peer switched off
    network          through sockets or InfiniBand, on one host too: shared memory off as well
    INTERFACE        a network interface that every host has, by its name

The last is for devices on several hosts (`hosts=a,b`), whose links may be shaped. What was really
used is in each row, as each rank tells it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cubemesh.experiments.analysis.groups import Group, caveats, titled
from cubemesh.experiments.analysis.matrix import CellKey, Matrix
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, significance
from cubemesh.experiments.core.cpu_defaults import batch as reduced_batch
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.scaling.analysis import VARIES
from cubemesh.experiments.scaling.design import (
    ScalingSettings,
    device_counts,
    is_small,
    on_cpu,
    placement,
)
from cubemesh.experiments.scaling.losses import mean_parts, profiled_record
from cubemesh.frameworks import entry
from cubemesh.measure.attribution.attribution import COMMUNICATION
from cubemesh.networks import entry as entry_of
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Column,
    Figure,
    Finding,
    NetworkWork,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
)
from cubemesh.units import format_list


class LinkCase(NamedTuple):
    """A network, what each device takes, and the width of one that has it."""

    network: str
    batch: int
    hidden: int | None = None


DOCUMENTED = (
    LinkCase("inception-v3", 128),
    LinkCase("alexnet", 256),
    LinkCase("googlenet", 256),
    LinkCase("translator", 256, 512),
    LinkCase("translator", 128, 1024),
    LinkCase("translator", 64, 2048),
)
SMALL = (LinkCase("little-cnn", 64), LinkCase("cifarnet", 64))
GPU_LINKS = ("auto", "shared-memory", "network")


@dataclass(frozen=True, kw_only=True)
class Settings(ScalingSettings):
    """What can be set in `interconnect` besides the fields of its specs."""

    strategies: tuple[str, ...] = ("all-reduce",)
    """The exchange; the first alone is taken."""
    links: tuple[str, ...] = ()
    """Links to compare, the first is what the others are held against: auto, shared-memory,
    network, or names of interfaces. None given is the three of GPUs; auto alone on a CPU."""
    devices: tuple[int, ...] = ()
    """How many devices; none given is as many as there are, 8 at most. The largest is taken."""
    batch_sizes: tuple[int, ...] = ()
    """The minibatch of a device, for every network; none given is the documents' of each."""
    hidden_sizes: tuple[int, ...] = ()
    """Widths of the translators; none given is document 002's."""
    independent: bool = False
    """Not measured here: weak-scaling does."""


def plan(settings: Settings, context: Context) -> Plan:
    """Each network over each link."""
    devices = device_counts(settings, context)[-1]
    framework, sync = settings.frameworks[0], settings.strategies[0]
    where = placement(settings, devices, context)
    apart = settings.attribution and entry(framework).profiles and strategy(sync).profiled
    links = settings.links or (("auto",) if on_cpu(settings, context) else GPU_LINKS)
    yield [
        RunSpec(
            work=TrainSteps(network=want.network, batch_per_device=want.batch, hidden=want.hidden),
            placement=replace(where, link=link),
            program=ProgramSettings(framework=framework, layout=entry(framework).layout, sync=sync),
            budget=replace(context.budget, attribution=apart),
        )
        for want in wanted(settings, context)
        for link in dict.fromkeys(links)
    ]


def wanted(settings: Settings, context: Context) -> list[LinkCase]:
    """The networks named, at the minibatches named; else the documents', the small ones where these
    would take too long."""
    usual = SMALL if is_small(settings, context) else DOCUMENTED
    found = []
    for network in dict.fromkeys(settings.networks or (want.network for want in usual)):
        own = [w for w in usual if w.network == network]
        if not own:
            known = [w for w in DOCUMENTED if w.network == network] or [LinkCase(network, 64)]
            own = [w._replace(batch=reduced_batch(w.batch, context)) for w in known]
        if settings.hidden_sizes and entry_of(network).hidden:
            least = min(w.batch for w in own)
            own = [LinkCase(network, least, width) for width in settings.hidden_sizes]
        if settings.batch_sizes:
            own = [w._replace(batch=batch) for w in own for batch in settings.batch_sizes]
        found += own
    return list(dict.fromkeys(found))


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `interconnect`."""
    matrix = Matrix.of((r for r in records if isinstance(r.spec.work, TrainSteps)), _key)
    y = Axis(name="throughput", unit="samples/s", from_zero=True)
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled("Links between devices", records),
        findings=tuple(_findings(matrix)),
        tables=(_table(matrix),) if matrix.groups else (),
        charts=(
            *matrix.chart("interconnect", "Samples/s by network and link", y, _rate),
            *matrix.chart(
                "interconnect-waits",
                "Share of a step that waits for the exchange, by network and link",
                Axis(name="of the step", unit="%", from_zero=True),
                _waiting,
            ),
        ),
        warnings=tuple(w for r in records for w in r.warnings),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            "Went over is what the ranks say they used. Handed over is what a rank gives its "
            "exchange in a step, and beside it what that is for each sample: the more, the more a "
            "network depends on the link.",
        ),
    )


def _key(record: RunRecord) -> CellKey:
    work = record.spec.work
    assert isinstance(work, NetworkWork)
    width = f", {work.hidden} wide" if work.hidden else ""
    return f"{work.network}{width}, {work.batch_per_device}", record.spec.placement.link


def _rate(group: Group[CellKey]) -> Figure | None:
    return group.throughput


def _waiting(group: Group[CellKey]) -> Figure | None:
    """Exposed communication in percent of the step, the mean over the ranks."""
    record = profiled_record(group)
    if record is None:
        return None
    parts = mean_parts(record)
    share = parts.get(COMMUNICATION, 0.0) / math.fsum(parts.values())
    return Figure(value=100 * share, unit="%")


def _findings(matrix: Matrix) -> Iterator[Finding]:
    links = matrix.variants
    for link in links[1:]:
        told = [
            (found, network, groups) for network, found, groups in matrix.ratios(links[0], link)
        ]
        if told:
            yield _gains(links[0], link, told)
    if len(links) == 1:
        yield Finding(
            text=f"One link was measured, {links[0]}, so nothing is compared.",
            remedy="On GPUs name links=auto,shared-memory,network; between hosts, their "
            "interfaces: --set hosts=a,b --set links=eth0,eth1.",
        )
    for link, why, networks in matrix.gaps():
        yield Finding(text=f"{link}, {format_list(networks)}: {why}.")


def _gains(
    best: str, other: str, told: list[tuple[Figure, str, tuple[Group[CellKey], ...]]]
) -> Finding:
    """Who gains most by the first link, in order."""
    told = sorted(told, key=lambda t: -t[0].value)
    found, network, _ = told[0]
    surely = "" if significance(found) else ", but not surely: the intervals hold 1"
    each = format_list(f"{name} {format_ratio(f)}" for f, name, _ in told)
    differs = f" {network} gains most{surely}." if len(told) > 1 else ""
    return Finding(
        question="What does the link cost?",
        text=f"{best} over {other}: {each}.{differs}",
        value=found.value,
        unit="× the speed",
        low=found.low,
        high=found.high,
        caveats=caveats(*(g for *_, own in told for g in own)),
        remedy="" if significance(found) <= 0 else f"Keep {network} on {best}.",
    )


def _table(matrix: Matrix) -> Table:
    columns = (
        Column(name="network, minibatch"),
        Column(name="link"),
        Column(name="devices"),
        Column(name="went over"),
        Column(name="samples/s"),
        Column(name="of the first link", unit="x"),
        Column(name="waits for exchange", unit="%"),
        Column(name="handed over", unit="MiB a step"),
        Column(name="of a sample", unit="MiB"),
    )
    rows = tuple(_row(matrix, group) for group in matrix.groups)
    return Table(title="Links", columns=columns, rows=rows)


def _row(matrix: Matrix, group: Group[CellKey]) -> tuple[Cell, ...]:
    network, link = group.key
    record = group.records[0]
    ways = dict.fromkeys(
        " through ".join(filter(None, (rank.transport, rank.interface)))
        for r in group.ok
        for rank in r.ranks
    )
    head = (
        Cell(text=network, run_id=group.run_id),
        Cell(text=link),
        Cell(value=record.spec.placement.devices),
        Cell(text=", ".join(filter(None, ways)) or "not known"),
    )
    figure = group.throughput
    if figure is None:
        return (*head[:3], *[group.cell(None)] * 6)
    first = matrix.found(network, matrix.variants[0])
    waits, handed = _waiting(group), group.median_of("exchanged_bytes")
    return (
        *head,
        group.cell(figure),
        group.cell(ratio(figure, first[1])) if first else Cell(text="–"),
        group.cell(waits) if waits else Cell(text="–"),
        _mebibytes(handed),
        _mebibytes(handed and handed / (record.spec.batch_per_device or 1)),
    )


def _mebibytes(size: float | None) -> Cell:
    return Cell(text="–") if size is None else Cell(value=size / 2**20)


EXPERIMENT = Experiment(
    name="interconnect",
    question="What does the link between devices cost, by network?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "batch_sizes", "hidden": "hidden_sizes", "link": "links"},
    plan=plan,
    answer=answer,
    documents="002 figures 5 to 7, 003, 004",
)
