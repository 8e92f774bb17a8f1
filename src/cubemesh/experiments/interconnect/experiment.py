"""Cost of the link between devices, by network and by the hidden size of a translator.

From the papers 002 (figures 5 to 7: NVLink and PCIe, Inception-v3 and translators of 512 to 2048),
003 (InfiniBand and Ethernet) and 004 (a slow link slows networks with many parameters, not those
with few). The same devices train the same network over each link:

    auto             the library's choice: peer-to-peer over NVLink if there is any
    shared-memory    through host memory: NCCL with peer-to-peer disabled
    network          through sockets or InfiniBand, on one host too: shared memory disabled as well
    INTERFACE        the name of a network interface that every host has

The last is for devices on several hosts (`hosts=a,b`), whose links may be shaped. Each row has the
transport that the ranks report. With `scaling` one device and all numbers of devices are measured,
and each link has a curve of throughput by devices (curves.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cubemesh.experiments.analysis.answer import answer_of, cell_or_dash, failed_run
from cubemesh.experiments.analysis.groups import Group, caveats, throughput_unit, titled
from cubemesh.experiments.analysis.matrix import CellKey, Matrix, throughput
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, verdicts
from cubemesh.experiments.core import cpu_defaults
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.interconnect.curves import (
    LinkCurves,
    curve_charts,
    curve_findings,
    curve_tables,
    link_curves,
)
from cubemesh.experiments.scaling.analysis import profiled_record
from cubemesh.experiments.scaling.design import (
    NO_SYNC,
    VARIES,
    MultiDeviceSettings,
    device_counts,
    is_small,
    on_cpu,
    placement,
)
from cubemesh.frameworks import entry
from cubemesh.measure.attribution.attribution import COMMUNICATION
from cubemesh.measure.attribution.bottlenecks import mean_parts
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
from cubemesh.units import format_devices, format_list


class LinkCase(NamedTuple):
    """A network, its batch size per device, and the hidden size of a translator."""

    network: str
    batch: int
    hidden: int | None = None
    image_size: int | None = None
    """Height and width in pixels; None is the network's own."""


PUBLISHED = (
    LinkCase("inception-v3", 128),
    LinkCase("alexnet", 256),
    LinkCase("googlenet", 256),
    LinkCase("translator", 256, 512),
    LinkCase("translator", 128, 1024),
    LinkCase("translator", 64, 2048),
)
KNOWN = (
    *PUBLISHED,
    LinkCase("translator-plain", 256, 512),
    LinkCase("translator-plain", 128, 1024),
    LinkCase("translator-plain", 64, 2048),
)
"""The papers', and the translator of figure 15 of 002 with the attention of Caffe2."""
CPU_HIDDEN_DIVISOR = 4
"""Divisor of the papers' hidden sizes on a CPU, as of `seq2seq`."""
SMALL = (LinkCase("little-cnn", 64), LinkCase("cifarnet", 64))
GPU_LINKS = ("auto", "shared-memory", "network")


@dataclass(frozen=True, kw_only=True)
class Settings(MultiDeviceSettings):
    """Settings of `interconnect` besides the fields of its specs."""

    links: tuple[str, ...] = ()
    """Links to compare with the first: auto, shared-memory, network, or names of interfaces.
    Default: the first three on GPUs; auto on a CPU."""
    devices: tuple[int, ...] = ()
    """Numbers of devices. Default: all of the machine, at most 8."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes per device, for every network. Default: the papers'."""
    hidden_sizes: tuple[int, ...] = ()
    """Hidden sizes of the translators. Default: those of the paper 002, a quarter on a CPU."""
    scaling: bool = False
    """Whether to measure one device and all numbers of devices (those of `devices`; default: 1, 2,
    4 and 8, as there are) for a curve over each link."""


def plan(settings: Settings, context: Context) -> Plan:
    """Each network over each link."""
    counts = settings.devices or device_counts(settings, context)[-1:]
    if settings.scaling:
        counts = device_counts(settings, context)
    links = settings.links or (("auto",) if on_cpu(settings.device, context) else GPU_LINKS)
    strategies = dict.fromkeys(settings.strategies)
    places = [
        (replace(placement(settings.device, threads, devices, context), link=link), sync)
        for threads in dict.fromkeys(settings.threads)
        for sync in strategies
        for devices in dict.fromkeys(counts)
        for link in dict.fromkeys(links)
        if devices > 1 or not settings.scaling
    ]
    if settings.scaling:
        single = [
            (placement(settings.device, threads, 1, context), NO_SYNC)
            for threads in dict.fromkeys(settings.threads)
        ]
        places = single + places
    yield [
        RunSpec(
            work=TrainSteps(
                network=case.network,
                batch_per_device=case.batch,
                image_size=case.image_size,
                hidden=case.hidden,
            ),
            placement=place,
            program=ProgramSettings(framework=framework, layout=entry(framework).layout, sync=sync),
            budget=replace(
                context.budget,
                attribution=settings.attribution
                and entry(framework).profiles
                and strategy(sync).profiled,
            ),
        )
        for case in cases(settings, context)
        for framework in dict.fromkeys(settings.frameworks)
        for place, sync in places
    ]


def cases(settings: Settings, context: Context) -> list[LinkCase]:
    """The given networks and batch sizes; by default the papers', or small networks if those would
    take too long."""
    defaults = SMALL if is_small(settings.device, context) else PUBLISHED
    found = []
    for network in dict.fromkeys(settings.networks or (case.network for case in defaults)):
        own = [c for c in defaults if c.network == network]
        if not own:
            known = [c for c in KNOWN if c.network == network] or [LinkCase(network, 64)]
            own = [_reduced(c, context) for c in known]
        if settings.hidden_sizes and entry_of(network).hidden:
            least = min(own, key=lambda c: c.batch)
            named = {c.hidden: c for c in own}
            own = [named.get(h, least._replace(hidden=h)) for h in settings.hidden_sizes]
        if settings.batch_sizes:
            own = [c._replace(batch=batch) for c in own for batch in settings.batch_sizes]
        found += own
    return list(dict.fromkeys(found))


def _reduced(case: LinkCase, context: Context) -> LinkCase:
    """A case of the papers, smaller on a CPU."""
    hidden = case.hidden
    if hidden is not None and cpu_defaults.is_reduced(context):
        hidden //= CPU_HIDDEN_DIVISOR
    return LinkCase(
        case.network,
        cpu_defaults.batch(case.batch, context),
        hidden,
        cpu_defaults.image_size(case.network, context) if hidden is None else None,
    )


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `interconnect`."""
    trained = [r for r in records if isinstance(r.spec.work, TrainSteps)]
    curves = link_curves(trained) if settings.scaling else []
    own = [r for r in trained if r.spec.placement.devices > 1 or not settings.scaling]
    matrix = Matrix.of(own, _key_of(own))
    y = Axis(name="throughput", unit=throughput_unit(own), from_zero=True)
    return answer_of(
        EXPERIMENT,
        titled("Links between devices", records),
        records,
        findings=(*_findings(matrix), *curve_findings(curves), *_failed_alone(curves)),
        tables=(*((_table(matrix),) if matrix.groups else ()), *curve_tables(curves)),
        charts=(
            *curve_charts(curves),
            *matrix.chart("interconnect", "Throughput by network and link", y, throughput),
            *matrix.chart(
                "interconnect-waits",
                "Communication wait by network and link",
                Axis(name="fraction of the step", unit="%", from_zero=True),
                _waiting,
            ),
        ),
        notes=(
            "The transport is what the ranks report. ‘Communicated’ is what a rank passes to its "
            "strategy in a step, and per sample: the more, the more a network depends on the link.",
        ),
    )


def _failed_alone(curves: Sequence[LinkCurves]) -> Iterator[Finding]:
    """The reasons for missing points on one device."""
    failed = {c.one.run_id: c for c in curves if c.one.throughput is None}
    for found in failed.values():
        yield failed_run(f"{found.name} on one device", found.one)


def _key_of(records: Sequence[RunRecord]) -> Callable[[RunRecord], CellKey]:
    """(network, batch size and what else differs among the records; link) of a record."""

    def setup(record: RunRecord) -> tuple[str, str, str, str]:
        spec = record.spec
        return (
            spec.program.framework,
            spec.program.sync,
            f"{spec.placement.threads} threads",
            format_devices(spec.placement.devices),
        )

    varies = [len(set(values)) > 1 for values in zip(*map(setup, records), strict=True)]

    def key(record: RunRecord) -> CellKey:
        work = record.spec.work
        assert isinstance(work, NetworkWork)
        words = [work.network]
        words += [f"hidden size {work.hidden}"] if work.hidden else []
        words += [str(work.batch_per_device)]
        words += [word for word, varied in zip(setup(record), varies, strict=True) if varied]
        return ", ".join(words), record.spec.placement.link

    return key


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
        ratios = [(found, network, own) for network, found, own in matrix.ratios(links[0], link)]
        if ratios:
            yield _cost(links[0], link, ratios)
    if len(links) == 1:
        yield Finding(
            code="single-link",
            text=f"Only one link was measured, {links[0]}: no comparison.",
            remedy="On GPUs name links=auto,shared-memory,network; between hosts, their "
            "interfaces: --set hosts=a,b --set links=eth0,eth1.",
        )
    for link, why, networks in matrix.gaps():
        yield Finding(code="failed-run", text=f"{link}, {format_list(networks)}: {why}.")


def _cost(
    first: str, other: str, ratios: list[tuple[Figure, str, tuple[Group[CellKey], ...]]]
) -> Finding:
    """The speed-up of each network by the first link, the largest first."""
    ratios = sorted(ratios, key=lambda r: -r[0].value)
    found, network, _ = ratios[0]
    verdict = verdicts([f for f, *_ in ratios])[0]
    sign = verdict.sign
    unseen = "" if sign else f", without a significant difference ({verdict.unseen})"
    others = "; ".join(f"{name} {format_ratio(f)}" for f, name, _ in ratios[1:])
    return Finding.of(
        code="link-cost",
        question="What does the link cost?",
        text=f"{network} trains {format_ratio(found)} as fast over {first} as over {other}"
        f"{f' ({others})' if others else ''}{unseen}.",
        figure=found,
        unit="× the speed",
        caveats=caveats(*(g for *_, own in ratios for g in own)),
        remedy="" if sign <= 0 else f"Train {network} over {first}.",
    )


def _table(matrix: Matrix) -> Table:
    columns = (
        Column(name="network, batch size"),
        Column(name="link"),
        Column(name="devices"),
        Column(name="transport"),
        Column(
            name="throughput", unit=throughput_unit(r for g in matrix.groups for r in g.records)
        ),
        Column(name="vs first link", unit="x"),
        Column(name="communication wait", unit="%"),
        Column(name="communicated", unit="MiB/step"),
        Column(name="communicated per sample", unit="MiB"),
    )
    rows = tuple(_row(matrix, group) for group in matrix.groups)
    return Table(title="Links", columns=columns, rows=rows)


def _row(matrix: Matrix, group: Group[CellKey]) -> tuple[Cell, ...]:
    network, link = group.key
    record = group.records[0]
    transports = dict.fromkeys(
        " through ".join(filter(None, (rank.transport, rank.interface)))
        for r in group.ok
        for rank in r.ranks
    )
    head = (
        Cell(text=network, run_id=group.run_id),
        Cell(text=link),
        Cell(value=record.spec.placement.devices),
        Cell(text=", ".join(filter(None, transports)) or "unknown"),
    )
    figure = group.throughput
    if figure is None:
        return (*head[:3], *[group.cell(None)] * 6)
    first = matrix.found(network, matrix.variants[0])
    waits, size = _waiting(group), group.median_of("exchanged_bytes")
    communicated = size and size / 2**20
    return (
        *head,
        group.cell(figure),
        group.cell(ratio(figure, first[1])) if first else Cell(text="–"),
        group.cell(waits) if waits else Cell(text="–"),
        cell_or_dash(communicated),
        cell_or_dash(communicated and communicated / (record.spec.batch_per_device or 1)),
    )


EXPERIMENT = Experiment(
    name="interconnect",
    question="What does the link between devices cost, by network?",
    settings=Settings,
    works=(TrainSteps,),
    varies=VARIES | {"batch_per_device": "batch_sizes", "hidden": "hidden_sizes", "link": "links"},
    plan=plan,
    answer=answer,
    papers="[002], figures 5 to 7 and 15, [003], [004]",
)
