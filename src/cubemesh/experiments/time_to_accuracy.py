"""Time to accuracy: time and energy of a training to a target accuracy, by number of devices.

Dell EMC 2016 [003] gives training time next to images per second: 90 epochs of 1.2 million images
in under a day on four P100. Faster steps on more devices need not reach an accuracy earlier,
because a larger global batch size makes fewer updates per epoch. Each number of devices trains to a
target validation accuracy, with the learning rate scaled by the number of devices. A device of a
CPU has the same number of cores alone and among several (scaling/design.py).

With several strategies the same devices train with each. An asynchronous strategy applies stale
gradients, which may take more epochs to an accuracy (Addfor 2016 [001]); it makes an update for the
gradient of each device, so its learning rate is not scaled. Time to accuracy lasts
from the first step to the end of the evaluation that reached it; its energy is the mean power of
the measured steps times that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit, titled
from cubemesh.experiments.analysis.per_workload import per_workload, training_workload
from cubemesh.experiments.analysis.trainings import training_of, training_s
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.experiments.scaling.design import NO_SYNC, PLACED, on_cpu, placement
from cubemesh.experiments.scaling.report import projection_cell
from cubemesh.measure.energy.energy import WHAT as ENERGY
from cubemesh.networks.own_input import is_imagenet
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    Point,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
    Train,
)
from cubemesh.schema.spec import Device
from cubemesh.schema.work import RateScaling
from cubemesh.statistics import median
from cubemesh.units import format_devices, format_number, format_quantity, format_seconds

EPOCHS = {Scale.QUICK: 5, Scale.DEFAULT: 30, Scale.FULL: 90}
TARGETS = {Scale.QUICK: 0.8, Scale.DEFAULT: 0.95, Scale.FULL: 0.95}
NO_ENERGY = "not measurable"
NOTES = (
    "Time to accuracy lasts from the first step to the end of the evaluation that reached it; "
    "evaluations come once per epoch. Energy is the mean power of the measured steps times that.",
    "Days are those of 90 epochs of 1.28 million samples at the measured throughput (Dell EMC 2016 "
    "[003]: under a day for four P100, over a week for a CPU).",
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `time-to-accuracy` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """Networks to train; `cubemesh networks` lists them."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; default: every power of two up to all GPUs, or all cores."""
    batch_sizes: tuple[int, ...] = (32,)
    """Batch sizes per device."""
    target_accuracy: float | None = None
    """Target accuracy, 0 to 1; default: 0.95, with --quick 0.8."""
    epochs: int | None = None
    """Maximum number of epochs; default: 30, with --quick 5, with --full 90."""
    data: str = "digits"
    """Data set: digits, or cifar-10 with data_path."""
    learning_rate: float = 1e-3
    """Learning rate for one device (RMSprop)."""
    rate_scaling: RateScaling = "linear"
    """linear: times the number of devices, except with asynchronous strategies, which make an
    update for each device; none: the same on any number of devices."""
    strategies: tuple[str, ...] = ("all-reduce",)
    """Gradient synchronization strategies of several devices, as in
    strategies=all-reduce,asynchronous."""
    device: Device = "auto"
    """Kind of device: GPU (cuda) or group of cores (cpu)."""
    threads: tuple[int, ...] = (1,)
    """Cores of each device on a CPU."""

    def __post_init__(self) -> None:
        if NO_SYNC in self.strategies or not self.strategies:
            raise UsageError(
                "strategies=none trains without synchronization, so there is no accuracy of all "
                "devices. Name strategies that synchronize, such as all-reduce or asynchronous."
            )
        for name in self.strategies:
            strategy(name)


class TrainedOn(NamedTuple):
    """What trained: a point of the answer."""

    devices: int
    sync: str

    def words(self, *, several: bool) -> str:
        """`2 devices`, or with several strategies `2 devices, asynchronous`."""
        named = several and self.devices > 1
        return (
            f"{format_devices(self.devices)}, {self.sync}"
            if named
            else format_devices(self.devices)
        )


TrainedGroup = Group[TrainedOn]


def plan(settings: Settings, context: Context) -> Plan:
    """One training for each number of devices."""
    target = (
        TARGETS[context.scale] if settings.target_accuracy is None else settings.target_accuracy
    )
    yield [
        RunSpec(
            work=Train(
                network=network,
                batch_per_device=batch,
                data=settings.data,
                epochs=settings.epochs or EPOCHS[context.scale],
                optimizer="rmsprop",
                learning_rate=settings.learning_rate,
                rate_scaling=settings.rate_scaling
                if devices > 1 and not strategy(sync).free_running
                else "none",
                target_accuracy=target,
            ),
            placement=placement(settings.device, threads, devices, context),
            program=ProgramSettings(sync=sync),
            budget=context.budget,
        )
        for network in dict.fromkeys(settings.networks)
        for batch in dict.fromkeys(settings.batch_sizes)
        for threads in dict.fromkeys(settings.threads)
        for devices in _counts(settings, context, threads)
        for sync in (dict.fromkeys(settings.strategies) if devices > 1 else (NO_SYNC,))
    ]


def _counts(settings: Settings, context: Context, threads: int) -> Sequence[int]:
    if settings.devices:
        return sorted(set(settings.devices))
    machine = context.machine
    cores = int(machine.cpu.usable_cores or 1) // max(1, threads)
    most = max(1, cores) if on_cpu(settings.device, context) else len(machine.gpus)
    return [2**n for n in range(most.bit_length()) if 2**n <= most]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and chart from the records of one `time-to-accuracy`, by workload."""
    return per_workload(records, training_workload, lambda own: _answer(settings, own))


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    network = training_workload(records[0])[0] if records else settings.networks[0]
    groups = sorted(group_by(records, trained_on), key=lambda g: g.key.devices)
    return answer_of(
        EXPERIMENT,
        titled(f"{network} on {settings.data}: time to accuracy", records),
        records,
        findings=_findings(groups),
        tables=(_table(groups),) if groups else (),
        charts=_charts(groups, f"time-to-accuracy-{network}-{settings.data}"),
        notes=NOTES,
    )


def trained_on(record: RunRecord) -> TrainedOn:
    """The point that a record belongs to."""
    devices = record.spec.placement.devices
    return TrainedOn(devices, record.spec.program.sync if devices > 1 else NO_SYNC)


def _several(groups: Sequence[TrainedGroup]) -> bool:
    """Whether the answer has to name strategies."""
    return len({g.key.sync for g in groups if g.key.devices > 1}) > 1


def _target(group: TrainedGroup) -> float:
    target = training_of(group.records[0]).target_accuracy
    assert target is not None, "the plan sets it"
    return target


def _reached(group: TrainedGroup) -> list[RunRecord]:
    """Trainings that reached the target."""
    return [r for r in group.ok if r.figures["accuracy"].value >= _target(group)]


def _time_s(group: TrainedGroup) -> float | None:
    """Time to accuracy, the median over the runs; None if the target was not reached."""
    times = [training_s(r) for r in _reached(group)]
    return median(times) if times else None


def _joules(group: TrainedGroup) -> float | None:
    spent = [
        watts * training_s(r)
        for r in _reached(group)
        if (watts := r.figure("mean_power_watts")) is not None
    ]
    return median(spent) if spent else None


def _missing(group: TrainedGroup) -> str:
    """Why there is no time to accuracy."""
    if not group.ok:
        return group.why
    reached = 100 * group.ok[0].figures["accuracy"].value
    return (
        f"{100 * _target(group):g} % was not reached: {reached:.1f} % after {_epochs_text(group)}"
    )


def _epochs(group: TrainedGroup) -> int:
    return round(group.median_of("epochs_trained") or 0)


def _epochs_text(group: TrainedGroup) -> str:
    return f"{_epochs(group)} {'epoch' if _epochs(group) == 1 else 'epochs'}"


def _findings(groups: Sequence[TrainedGroup]) -> Iterator[Finding]:
    timed = [(group, time_s) for group in groups if (time_s := _time_s(group)) is not None]
    several = _several(groups)
    if timed:
        best, least_s = min(timed, key=lambda pair: pair[1])
        joules = _joules(best)
        energy = f" and {format_quantity(joules, 'J')}" if joules is not None else ""
        yield Finding(
            code="time-to-accuracy",
            question="How long does it take to reach the target accuracy?",
            text=f"Shortest time to {100 * _target(best):g} %: {format_seconds(least_s)}{energy} "
            f"on {best.key.words(several=several)}, after {_epochs_text(best)}.",
            value=least_s,
            unit="s",
            caveats=best.caveats,
        )
    for group, time_s in timed[1:]:
        yield _speed_up(*timed[0], group, time_s, several=several)
    yield from _asynchronous(groups)
    for group in groups:
        if _time_s(group) is None:
            yield Finding(
                code="failed-run" if not group.ok else "target-missed",
                text=f"{group.key.words(several=several)}: {_missing(group)}.",
            )
    reached = [r for group in groups if _joules(group) is None for r in _reached(group)]
    for why in dict.fromkeys(u.why for r in reached for u in r.unmeasured if u.what == ENERGY):
        yield Finding(code="unknown-energy", text=f"Energy is {why}.")


def _speed_up(
    one: TrainedGroup, one_s: float, many: TrainedGroup, many_s: float, *, several: bool
) -> Finding:
    rates = [g.throughput for g in (one, many)]
    devices = f"{many.key.words(several=several)} over {one.key.words(several=several)}"
    text = f"Speed-up of {devices}: {format_quantity(one_s / many_s, '×')}"
    if rates[0] is not None and rates[1] is not None:
        text += (
            f", with {format_quantity(rates[1].value / rates[0].value, '×')} the throughput and "
            f"{_epochs_text(many)} instead of {_epochs(one)}"
        )
    return Finding(
        code="speed-up",
        text=f"{text}.",
        value=one_s / many_s,
        unit="×",
        caveats=caveats(one, many),
    )


def asynchronous_pairs(
    groups: Sequence[TrainedGroup],
) -> Iterator[tuple[TrainedGroup, TrainedGroup]]:
    """(asynchronous, synchronous) on the same devices, where the synchronous one reached the
    target."""
    for stale in groups:
        if stale.key.devices < 2 or not strategy(stale.key.sync).free_running or not stale.ok:
            continue
        same = [g for g in groups if g.key.devices == stale.key.devices]
        for other in same:
            if strategy(other.key.sync).same_weights and _time_s(other) is not None:
                yield stale, other


def epochs_ratio(stale: TrainedGroup, other: TrainedGroup) -> float:
    """Epochs to the accuracy over those of another strategy; of a training that missed it, those
    that it made, so that the ratio is at least this."""
    return _epochs(stale) / max(1, _epochs(other))


def reached_target(group: TrainedGroup) -> bool:
    """Whether a training of the group reached the accuracy."""
    return bool(_reached(group))


def _asynchronous(groups: Sequence[TrainedGroup]) -> Iterator[Finding]:
    """Epochs and time of each asynchronous training over the synchronous one on as many devices."""
    for stale, other in asynchronous_pairs(groups):
        ratio, other_s = epochs_ratio(stale, other), _time_s(other)
        assert other_s is not None
        stale_s, target = _time_s(stale), f"{100 * _target(stale):g} %"
        staleness = stale.median_of("staleness")
        mean = f" with a mean staleness of {format_number(staleness)}" if staleness else ""
        text = f"{format_devices(stale.key.devices)} to {target}: {stale.key.sync}{mean} "
        if stale_s is None:
            text += f"did not reach it in {_epochs_text(stale)}, "
        else:
            text += f"takes {_epochs_text(stale)} and {format_seconds(stale_s)}, "
        text += f"{other.key.sync} {_epochs_text(other)} and {format_seconds(other_s)}: "
        least = "at least " if stale_s is None else ""
        text += f"{least}{format_quantity(ratio, '×')} the epochs"
        if stale_s is not None:
            text += f" and {format_quantity(stale_s / other_s, '×')} the time"
        yield Finding(
            code="asynchronous-epochs",
            text=f"{text}.",
            value=ratio,
            unit="× the epochs",
            caveats=caveats(stale, other),
        )


def _table(groups: Sequence[TrainedGroup]) -> Table:
    energy = any(_joules(group) is not None for group in groups)
    projected = any(is_imagenet(group.records[0].spec.work) for group in groups)
    several = _several(groups)
    columns = (
        Column(name="devices"),
        *([Column(name="strategy")] if several else []),
        Column(name="global batch size"),
        Column(name="time to accuracy", unit="s"),
        *([Column(name="energy", unit="J")] if energy else []),
        Column(name="epochs"),
        Column(name="accuracy", unit="%"),
        Column(name=throughput_unit(r for g in groups for r in g.records)),
        Column(name="wall time", unit="s"),
        *([Column(name="90 epochs", unit="days")] if projected else []),
    )
    rows = tuple(
        _row(group, energy=energy, projected=projected, several=several) for group in groups
    )
    return Table(title="Time to accuracy", columns=columns, rows=rows)


def _row(group: TrainedGroup, *, energy: bool, projected: bool, several: bool) -> tuple[Cell, ...]:
    head = (
        Cell(value=group.key.devices, run_id=group.run_id),
        *([Cell(text=group.key.sync)] if several else []),
        Cell(value=group.records[0].spec.global_batch),
    )
    if not group.ok:
        return (*head, *[group.cell(None)] * (5 + energy + projected))
    time_s, joules = _time_s(group), _joules(group)
    why = _missing(group) if time_s is None else NO_ENERGY
    return (
        *head,
        Cell(reason=why) if time_s is None else Cell(value=time_s, run_id=group.run_id),
        *([Cell(reason=why) if joules is None else Cell(value=joules)] if energy else []),
        Cell(value=_epochs(group)),
        Cell(value=100 * group.ok[0].figures["accuracy"].value),
        group.cell(group.throughput),
        Cell(value=group.median_of("wall_s")),
        *([projection_cell(group)] if projected else []),
    )


def _charts(groups: Sequence[TrainedGroup], name: str) -> Iterator[Chart]:
    lines = tuple(_curve(g, several=_several(groups)) for g in groups if g.ok)
    if lines:
        yield Chart(
            name=name,
            title="Accuracy by time",
            kind="line",
            x=Axis(name="time", unit="s"),
            y=Axis(name="accuracy", unit="%"),
            lines=lines,
        )


def _curve(group: TrainedGroup, *, several: bool) -> Line:
    record = group.ok[0]
    own = [w for w in record.windows if w.rank == 0]
    began_s = min(w.start_s for w in own)
    ends = [w.start_s + w.elapsed_s - began_s for w in own if w.phase == "evaluate"]
    curve = record.curve("validation_accuracy")
    pairs = zip(ends, curve.y, strict=False) if curve else ()
    points = tuple(Point(x=x, y=100 * y, run_id=record.run_id) for x, y in pairs)
    return Line(name=group.key.words(several=several), points=points)


EXPERIMENT = Experiment(
    name="time-to-accuracy",
    question="How long does training to an accuracy take, by number of devices?",
    settings=Settings,
    works=(Train,),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "sync": "strategies",
        **PLACED,
    },
    plan=plan,
    answer=answer,
    papers="[003], figure 6 and its text, [001], stale gradients",
)
