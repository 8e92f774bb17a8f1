"""Throughput of frameworks in each precision on all devices, each at its own best batch size.

Figure 14 of the DGX-1 white paper [002]: ResNet-50 in several frameworks on eight GPUs, in mixed
and single precision, each at the minibatch that is fastest for it.

    search   one device; the batch size doubles until throughput gains less than 3 %, a run would
             take too long, or memory is full
    best     the batch size of the highest throughput
    devices  the network at the best batch size per device, on each number of devices

One batch size for all would favour the framework that it suits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of, cell_or_dash
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit, titled
from cubemesh.experiments.analysis.matrix import CellKey, Matrix, throughput
from cubemesh.experiments.analysis.ratios import format_ratio, plus_minus, ratio, verdicts
from cubemesh.experiments.core import cpu_defaults
from cubemesh.experiments.core.experiment import Context, Experiment, Plan
from cubemesh.experiments.minibatch.max_batch import may_double
from cubemesh.experiments.scaling.analysis import efficiency
from cubemesh.experiments.scaling.design import (
    NO_SYNC,
    PLACED,
    MultiDeviceSettings,
    device_counts,
    is_small,
    placement,
)
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Column,
    Figure,
    Finding,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
    TrainSteps,
    Warning,
)
from cubemesh.schema.spec import Device, Precision
from cubemesh.units import format_devices, format_list

NETWORK, SMALL_NETWORK = "resnet-50", "little-cnn"
BATCHES = (32, 64, 128, 256, 512, 1024)
"""Batch sizes per device of the search; an eighth of them on a CPU."""
MIN_GAIN = 0.03
"""Gain of throughput by a doubling below which the search ends."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `best-batch` besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to train; default: the paper's ResNet-50, on a CPU and with --quick little-cnn."""
    frameworks: tuple[str, ...] = ()
    """Frameworks to compare; default: all that train."""
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    """Precisions to train in; ratios are to the first."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes per device to choose from, all of which are measured. Default: doubles from 32 to
    1024 (on a CPU from 4 to 128) while throughput gains 3 % or more."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; one is always measured. Default: all of the machine, at most 8."""
    strategy: str = "all-reduce"
    """Gradient synchronization strategy of several devices."""
    device: Device = "auto"
    """Kind of device: a GPU (`cuda`) or a group of cores (`cpu`)."""
    threads: int = 1
    """Cores per device on a CPU."""

    def __post_init__(self) -> None:
        self.several()
        if not self.precisions:
            raise UsageError("precisions= has no value: name one, such as precisions=fp32.")

    def several(self) -> MultiDeviceSettings:
        """The settings of several devices, as other experiments have them."""
        return MultiDeviceSettings(
            strategies=(self.strategy,),
            devices=self.devices,
            device=self.device,
            threads=(self.threads,),
        )


class Setup(NamedTuple):
    """A network in a framework and a precision."""

    network: str
    framework: str
    precision: Precision

    @property
    def name(self) -> str:
        """`resnet-50, pytorch, bf16`."""
        return ", ".join(self)


def plan(settings: Settings, context: Context) -> Plan:
    """For each setup the search on one device, then its best batch size on several."""
    small = is_small(settings.device, context)
    networks = settings.networks or (SMALL_NETWORK if small else NETWORK,)
    counts = settings.devices or device_counts(settings.several(), context)[-1:]
    for network in dict.fromkeys(networks):
        for framework in dict.fromkeys(settings.frameworks or known()):
            for precision in dict.fromkeys(settings.precisions):
                setup = Setup(network, framework, precision)
                best = yield from _search(settings, setup, context)
                several = [n for n in sorted(set(counts)) if n > 1]
                if best is not None and several:
                    yield [_spec(settings, setup, best, n, context) for n in several]


def known() -> tuple[str, ...]:
    """Every framework that trains (not null)."""
    return tuple(n for n, line in FRAMEWORKS.items() if line.trains and not line.simulates)


def _search(
    settings: Settings, setup: Setup, context: Context
) -> Generator[Sequence[RunSpec], Sequence[RunRecord], int | None]:
    """The best batch size on one device; None where none was measured."""
    if settings.batch_sizes:
        named = sorted(set(settings.batch_sizes))
        records = yield [_spec(settings, setup, batch, 1, context) for batch in named]
        return _best(group_by(records, lambda r: r.spec.batch_per_device or 0))
    groups: list[Group[int]] = []
    for batch in dict.fromkeys(cpu_defaults.batch(b, context) for b in BATCHES):
        records = yield [_spec(settings, setup, batch, 1, context)]
        groups.append(Group(batch, tuple(records)))
        last = groups[-1].throughput
        before = groups[-2].throughput if len(groups) > 1 else None
        if last is None or not all(may_double(r, context.scale) for r in groups[-1].ok):
            break
        if before is not None and last.value < (1 + MIN_GAIN) * before.value:
            break
    return _best(groups)


def _best(groups: Sequence[Group[int]]) -> int | None:
    """The batch size of the highest throughput."""
    found = [(f.value, g.key) for g in groups if (f := g.throughput) is not None]
    return max(found)[1] if found else None


def _spec(settings: Settings, setup: Setup, batch: int, devices: int, context: Context) -> RunSpec:
    framework = setup.framework
    return RunSpec(
        work=TrainSteps(
            network=setup.network,
            batch_per_device=batch,
            image_size=cpu_defaults.image_size(setup.network, context),
        ),
        placement=placement(settings.device, settings.threads, devices, context),
        program=ProgramSettings(
            framework=framework,
            precision=setup.precision,
            layout=entry(framework).layout,
            sync=settings.strategy if devices > 1 else NO_SYNC,
        ),
        budget=context.budget,
    )


@dataclass(frozen=True, kw_only=True)
class BestBatch:
    """What was measured of one setup."""

    setup: Setup
    search: tuple[Group[int], ...]
    """On one device, by batch size."""
    several: tuple[Group[int], ...]
    """At the best batch size, by number of devices."""

    @property
    def one(self) -> Group[int] | None:
        """The best of the search; None where nothing was measured."""
        best = _best(self.search)
        return next((g for g in self.search if g.key == best), None)

    @property
    def points(self) -> list[tuple[int, Group[int]]]:
        """(devices, runs) at the best batch size, one device first; where nothing was measured the
        first runs, which have the reason."""
        one = self.one or self.search[0]
        return [(1, one), *((g.key, g) for g in self.several)]

    @property
    def last(self) -> tuple[int, Group[int]]:
        """The point on the most devices."""
        return self.points[-1]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and charts from the records of one `best-batch`."""
    found = [_measured(g) for g in group_by(records, _setup)]
    found = [one for one in found if one.search]
    unit = throughput_unit(records)
    matrix = _matrix(found)
    return answer_of(
        EXPERIMENT,
        titled("Frameworks and precisions, each at its best batch size", records),
        records,
        findings=_findings(settings, found, matrix),
        tables=(_table(settings, found, unit), _search_table(found, unit)) if found else (),
        charts=matrix.chart(
            "best-batch",
            "Throughput at the best batch size, by framework and precision",
            Axis(name="throughput", unit=unit, from_zero=True),
            throughput,
        ),
        warnings=_reduced(settings, records),
        notes=(
            "The batch size is searched on one device, by framework and precision, and used on "
            "each of several: on them another may be faster.",
            "In bf16 and fp16 weights and their update stay in fp32 (mixed precision).",
        ),
    )


def _setup(record: RunRecord) -> Setup:
    assert isinstance(record.spec.work, TrainSteps)
    program = record.spec.program
    return Setup(record.spec.work.network, program.framework, program.precision)


def _measured(group: Group[Setup]) -> BestBatch:
    single = [r for r in group.records if r.spec.placement.devices == 1]
    several = [r for r in group.records if r.spec.placement.devices > 1]
    search = group_by(single, lambda r: r.spec.batch_per_device or 0)
    by_devices = group_by(several, lambda r: r.spec.placement.devices)
    return BestBatch(
        setup=group.key,
        search=tuple(sorted(search, key=lambda g: g.key)),
        several=tuple(sorted(by_devices, key=lambda g: g.key)),
    )


def _matrix(found: Sequence[BestBatch]) -> Matrix:
    """Throughput on the most devices: rows are networks and frameworks, columns precisions."""
    networks = {one.setup.network for one in found}
    groups = []
    for one in found:
        network, framework, precision = one.setup
        row = framework if len(networks) == 1 else f"{network}, {framework}"
        groups.append(Group((row, str(precision)), one.last[1].records))
    return Matrix(tuple(groups), row_name="framework")


def _findings(settings: Settings, found: Sequence[BestBatch], matrix: Matrix) -> Iterator[Finding]:
    for network in dict.fromkeys(one.setup.network for one in found):
        yield from _fastest([one for one in found if one.setup.network == network])
    first = settings.precisions[0]
    for precision in matrix.variants:
        if precision != first and (gain := matrix.gains(precision, first)):
            yield gain
    reasons: dict[str, list[str]] = {}
    for one in found:
        for devices, group in one.points:
            if group.throughput is None:
                where = f"{one.setup.name} on {format_devices(devices)}"
                reasons.setdefault(group.why, []).append(where)
    for why, places in reasons.items():
        yield Finding(code="failed-run", text=f"{format_list(places)}: {why}.")


def _fastest(found: Sequence[BestBatch]) -> Iterator[Finding]:
    """The fastest setup of a network on the most devices, and the next."""
    most = max(one.last[0] for one in found)
    ranked = [
        (figure.value, one, group, figure)
        for one in found
        if one.last[0] == most
        and (group := one.last[1]) is not None
        and (figure := group.throughput) is not None
    ]
    if not ranked:
        return
    ranked.sort(key=lambda item: -item[0])
    _, best, group, figure = ranked[0]
    text = (
        f"{best.setup.network} on {format_devices(most)}: {best.setup.framework} in "
        f"{best.setup.precision} is fastest, {plus_minus(figure)} {throughput_unit(group.records)} "
        f"at batch size {group.records[0].spec.batch_per_device} per device"
    )
    noise = group.caveats
    if len(ranked) > 1:
        _, second, other, slower = ranked[1]
        found_ratio = ratio(figure, slower)
        (verdict,) = verdicts([found_ratio])
        text += (
            f"; {format_ratio(found_ratio)} the speed of {second.setup.framework} in "
            f"{second.setup.precision} at {other.records[0].spec.batch_per_device}"
        )
        if verdict.sign <= 0:
            text += f", without a significant difference ({verdict.unseen})"
        noise = caveats(group, other)
    yield Finding.of(
        code="fastest-at-best-batch",
        question="Which framework trains fastest at its best batch size?",
        text=f"{text}.",
        figure=figure,
        unit=throughput_unit(group.records),
        caveats=noise,
    )


def _table(settings: Settings, found: Sequence[BestBatch], unit: str) -> Table:
    """A row for each setup and number of devices."""
    first = settings.precisions[0]
    bases = {
        (one.setup.network, one.setup.framework, devices): group.throughput
        for one in found
        if one.setup.precision == first
        for devices, group in one.points
    }
    rows = []
    for one in found:
        network, framework, precision = one.setup
        for devices, group in one.points:
            base = bases.get((network, framework, devices)) if precision != first else None
            head = (
                Cell(text=network, run_id=group.run_id),
                Cell(text=framework),
                Cell(text=precision),
                Cell(value=devices),
            )
            rows.append((*head, *_cells(one, devices, group, base)))
    return Table(
        title="Each at its best batch size",
        columns=(
            Column(name="network"),
            Column(name="framework"),
            Column(name="precision"),
            Column(name="devices"),
            Column(name="batch size per device"),
            Column(name="throughput", unit=unit),
            Column(name="speed-up", unit="x"),
            Column(name="efficiency", unit="%"),
            Column(name=f"vs {first}", unit="x"),
            Column(name="memory", unit="MiB"),
        ),
        rows=tuple(rows),
    )


def _cells(
    one: BestBatch, devices: int, group: Group[int], base: Figure | None
) -> tuple[Cell, ...]:
    figure = group.throughput
    if figure is None:
        return tuple([group.cell(None)] * 6)
    single, reached = one.one, None
    if devices > 1 and single is not None:
        reached = efficiency(group, single)
    memory = group.median_of("peak_memory_bytes")
    times = None if reached is None else reached.scaled(devices / 100, "x")
    return (
        Cell(value=group.records[0].spec.batch_per_device),
        group.cell(figure),
        cell_or_dash(times, group.run_id),
        cell_or_dash(reached, group.run_id),
        cell_or_dash(None if base is None else replace(ratio(figure, base), unit="x")),
        cell_or_dash(None if memory is None else memory / 2**20, group.run_id),
    )


def _search_table(found: Sequence[BestBatch], unit: str) -> Table:
    """Throughput of one device at each batch size that was tried."""
    sizes = sorted({g.key for one in found for g in one.search})
    groups = [
        Group[CellKey]((one.setup.name, str(size)), group.records)
        for size in sizes
        for one in found
        for group in one.search
        if group.key == size
    ]
    matrix = Matrix(tuple(groups), row_name="network, framework, precision")
    return matrix.table(f"Search of the batch size on one device, {unit}", "", throughput)


def _reduced(settings: Settings, records: Sequence[RunRecord]) -> tuple[Warning, ...]:
    networks = {r.spec.work.network for r in records if isinstance(r.spec.work, TrainSteps)}
    if not records or settings.networks or NETWORK in networks:
        return ()
    rule = f"On a CPU and with --quick {SMALL_NETWORK} replaces it, unless --full is given."
    return cpu_defaults.reduced([f"without {NETWORK}"], rule)


EXPERIMENT = Experiment(
    name="best-batch",
    question="How fast does each framework train in each precision, at its best batch size?",
    settings=Settings,
    works=(TrainSteps,),
    varies={
        "network": "networks",
        "framework": "frameworks",
        "precision": "precisions",
        "batch_per_device": "batch_sizes",
        "sync": "strategy",
        **PLACED,
    },
    plan=plan,
    answer=answer,
    grows=True,
    papers="[002], figure 14",
)
