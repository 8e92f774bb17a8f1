"""Validation accuracy by batch size and learning rate, after a fixed number of epochs.

DGX-1 best practices [001], figure 1: LittleCNN on CIFAR-10, 30 epochs, RMSprop at 1e-4: 76 % at
batch size 16, 50 % at 2048. The same epochs at a larger batch size are fewer updates, so less is
learned. The default data are the handwritten digits that cubemesh includes; CIFAR-10 if its folder
is given. With several learning rates the answer is a grid of both, as Dell EMC 2016 [003] proposes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cubemesh.experiments.analysis.answer import answer_of, failed_run
from cubemesh.experiments.analysis.groups import Group, group_by, titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.analysis.ratios import scaled
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    Point,
    RunRecord,
    RunSpec,
    Table,
    Train,
    Warning,
    warn,
)
from cubemesh.units import format_list

ACCURACY_NOTE = (
    "Accuracy is top-1 on samples held out from training; ± is its 95 % binomial (Wilson) "
    "interval, which does not include the variation over seeds."
)
PAPER_EPOCHS = 30
EPOCHS = {Scale.QUICK: 4, Scale.DEFAULT: 15, Scale.FULL: PAPER_EPOCHS}
BATCHES = {
    Scale.QUICK: (16, 64, 256),
    Scale.DEFAULT: (16, 64, 256, 1024),
    Scale.FULL: (16, 32, 64, 128, 256, 512, 1024),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `batch-accuracy` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """Networks to train; `cubemesh networks` lists them."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: 16 to 1024, fewer with --quick."""
    epochs: int | None = None
    """Epochs of each training; default: the paper's 30, fewer without --full."""
    data: str = "digits"
    """Data set: digits, or cifar-10 with data_path."""
    learning_rates: tuple[float, ...] = (1e-4,)
    """Learning rates at every batch size; with several, the answer is a grid."""


def plan(settings: Settings, context: Context) -> Plan:
    """One training for each network, learning rate and batch size."""
    epochs = EPOCHS[context.scale] if settings.epochs is None else settings.epochs
    yield [
        RunSpec(
            work=Train(
                network=network,
                batch_per_device=batch,
                data=settings.data,
                epochs=epochs,
                optimizer="rmsprop",
                learning_rate=rate,
            ),
            budget=context.budget,
        )
        for network in dict.fromkeys(settings.networks)
        for rate in sorted(set(settings.learning_rates))
        for batch in sorted(set(settings.batch_sizes or BATCHES[context.scale]))
    ]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `batch-accuracy`, by network."""
    one = _grid if len(settings.learning_rates) > 1 else _by_batch_size
    return per_workload(records, lambda r: (_work(r).network,), lambda own: one(settings, own))


def _by_batch_size(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    groups, network = group_by(records, _batch), _network(settings, records)
    return answer_of(
        EXPERIMENT,
        titled(f"{network} on {settings.data}: accuracy by batch size", records),
        records,
        findings=_findings(settings, groups),
        tables=(_table(groups),),
        charts=_charts(network, settings.data, groups),
        warnings=_reduced(records),
        notes=(
            ACCURACY_NOTE,
            "DGX-1 best practices [001], figure 1: 76 % at batch size 16 and 50 % at 2048 "
            "(LittleCNN, CIFAR-10, 30 epochs, one V100).",
        ),
    )


def _batch(record: RunRecord) -> int:
    """The global batch size."""
    return record.spec.global_batch or 0


def _work(record: RunRecord) -> Train:
    assert isinstance(record.spec.work, Train)
    return record.spec.work


def _network(settings: Settings, records: Sequence[RunRecord]) -> str:
    return _work(records[0]).network if records else settings.networks[0]


def _accuracy(group: Group[Any]) -> Figure | None:
    """Accuracy in percent of the first good run: repeats have the same weights and order."""
    figure = group.ok[0].figures.get("accuracy") if group.ok else None
    return None if figure is None else scaled(figure, 100, "%")


def _findings(settings: Settings, groups: list[Group[int]]) -> Iterator[Finding]:
    done = [(g, a) for g in groups if (a := _accuracy(g)) is not None]
    if done:
        yield from _comparison(settings, done)
    for group in groups:
        if _accuracy(group) is None:
            yield failed_run(f"Batch size {group.key}", group)


def _comparison(settings: Settings, done: list[tuple[Group[int], Figure]]) -> Iterator[Finding]:
    best, top = max(done, key=lambda p: p[1].value)
    epochs = _work(best.records[0]).epochs
    others = ", ".join(f"{g.key}: {a.value:.1f} %" for g, a in done if g.key != best.key)
    yield Finding.of(
        code="highest-accuracy",
        question="Which batch size reaches the highest accuracy?",
        text=f"Highest accuracy after {epochs} epochs of {settings.data}: {top.value:.1f} % of the "
        f"held-out samples at batch size {best.key}{others and f' ({others})'}.",
        figure=top,
        unit="% top-1",
        caveats=best.caveats,
    )
    (small, a), (large, b) = done[0], done[-1]
    if small.key == large.key:
        return
    if a.low is not None and b.high is not None and b.high < a.low:
        yield Finding(
            code="lower-accuracy",
            text=f"The same {epochs} epochs reach a lower accuracy at batch size {large.key} "
            f"({b.value:.1f} %) than at {small.key} ({a.value:.1f} %): {_updates(large):,} instead "
            f"of {_updates(small):,} updates.",
            value=b.value - a.value,
            unit="percentage points",
            remedy="Raise the learning rate with the batch size.",
        )
    else:
        yield Finding(
            code="equal-accuracy",
            text=f"No significant difference after {epochs} epochs with {a.n} held-out samples: "
            f"{a.value:.1f} % at batch size {small.key}, {b.value:.1f} % at {large.key}.",
            value=b.value - a.value,
            unit="percentage points",
        )


def _updates(group: Group[int]) -> int:
    """Number of training steps, with the first one, which is timed separately. (A step in fp16
    with overflowing gradients counts, although it updates nothing.)"""
    return updates(group.ok[0])


def _table(groups: list[Group[int]]) -> Table:
    columns = (
        Column(name="batch size"),
        Column(name="accuracy", unit="%"),
        Column(name="validation loss"),
        Column(name="updates", digits=12),
        Column(name="samples/s"),
        Column(name="wall time", unit="s"),
    )
    rows = tuple(
        (
            Cell(text=str(group.key), run_id=group.run_id),
            *_cells(group, updates=True),
        )
        for group in groups
    )
    return Table(title="After the last epoch", columns=columns, rows=rows)


def _cells(group: Group[Any], *, updates: bool = False) -> tuple[Cell, ...]:
    """Accuracy, loss, number of updates, throughput and wall time; gaps without an accuracy."""
    figure = _accuracy(group)
    if figure is None:
        return (group.cell(None),) * (5 if updates else 4)
    return (
        group.cell(figure),
        Cell(value=group.median_of("validation_loss")),
        *((Cell(value=_updates(group)),) if updates else ()),
        group.cell(group.throughput),
        Cell(value=group.median_of("wall_s")),
    )


def _charts(network: str, data: str, groups: list[Group[int]]) -> Iterator[Chart]:
    if not groups:
        return
    points = tuple(g.point(g.key, _accuracy(g)) for g in groups)
    yield Chart(
        name=f"batch-accuracy-{network}-{data}",
        title="Validation accuracy by batch size",
        kind="line",
        x=Axis(name="batch size", scale="log2"),
        y=Axis(name="accuracy", unit="%"),
        lines=(Line(name=network, points=points),),
    )
    curves = tuple(c for g in groups if (c := _curve(g)) is not None)
    if curves:
        yield Chart(
            name=f"batch-accuracy-{network}-{data}-epochs",
            title="Validation accuracy by epoch",
            kind="line",
            x=Axis(name="epoch"),
            y=Axis(name="accuracy", unit="%"),
            lines=curves,
        )


def _curve(group: Group[int]) -> Line | None:
    for record in group.ok:
        if curve := record.curve("validation_accuracy"):
            pairs = zip(curve.x, curve.y, strict=True)
            points = tuple(Point(x=x, y=100 * y, run_id=record.run_id) for x, y in pairs)
            return Line(name=f"batch size {group.key}", points=points)
    return None


def _reduced(records: Sequence[RunRecord]) -> Iterator[Warning]:
    if records and (epochs := _work(records[0]).epochs) < PAPER_EPOCHS:
        yield warn(
            "reduced",
            f"{epochs} epochs; the paper trains for {PAPER_EPOCHS}.",
            "Use --full, or --set epochs=30.",
        )


GridPoint = tuple[int, float]
"""(batch size per device, learning rate)."""


def _grid(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """The answer with several learning rates at every batch size."""
    groups = sorted(group_by(records, _grid_point), key=lambda g: g.key)
    network = _network(settings, records)
    what = f"{network} on {settings.data}: accuracy by batch size and learning rate"
    return answer_of(
        EXPERIMENT,
        titled(what, records),
        records,
        findings=_grid_findings(groups),
        tables=(_grid_table(groups),),
        charts=_grid_chart(groups, f"batch-accuracy-{network}-{settings.data}-grid"),
        warnings=_reduced(records),
        notes=(ACCURACY_NOTE,),
    )


def _grid_point(record: RunRecord) -> GridPoint:
    return _work(record).batch_per_device, _work(record).learning_rate


def _grid_findings(groups: Sequence[Group[GridPoint]]) -> Iterator[Finding]:
    """The best point, the best learning rate at each batch size, and failed runs."""
    done = [(g, a) for g in groups if (a := _accuracy(g)) is not None]
    if done:
        best, top = max(done, key=lambda p: p[1].value)
        equal = [g for g, a in done if g is not best and _overlap(a, top)]
        names = format_list(map(_name, equal)) if 0 < len(equal) <= 3 else f"{len(equal)} others"
        rest = f"; no significant difference from {names}" if equal else ""
        yield Finding.of(
            code="highest-accuracy",
            question="Which batch size and learning rate reach the highest accuracy?",
            text=f"Highest accuracy: {top.value:.1f} % of the held-out samples at {_name(best)}"
            f"{rest}.",
            figure=top,
            unit="% top-1",
        )
        rates = []
        for batch in dict.fromkeys(g.key[0] for g, _ in done):
            own = ((g, a) for g, a in done if g.key[0] == batch)
            group, figure = max(own, key=lambda p: p[1].value)
            rates.append(f"{group.key[1]:g} at batch size {batch} ({figure.value:.1f} %)")
        if len(rates) > 1:
            yield Finding(
                code="best-learning-rates", text=f"Best learning rates: {format_list(rates)}."
            )
    for group in groups:
        if _accuracy(group) is None:
            name = _name(group)
            yield failed_run(f"{name[0].upper()}{name[1:]}", group)


def _overlap(a: Figure, b: Figure) -> bool:
    return a.high is not None and b.low is not None and a.high >= b.low


def _name(group: Group[GridPoint]) -> str:
    return f"batch size {group.key[0]} with learning rate {group.key[1]:g}"


def _grid_table(groups: Sequence[Group[GridPoint]]) -> Table:
    columns = (
        Column(name="batch size"),
        Column(name="learning rate"),
        Column(name="accuracy", unit="%"),
        Column(name="validation loss"),
        Column(name="samples/s"),
        Column(name="wall time", unit="s"),
    )
    rows = tuple(
        (Cell(text=str(g.key[0]), run_id=g.run_id), Cell(text=f"{g.key[1]:g}"), *_cells(g))
        for g in groups
    )
    return Table(title="After the last epoch", columns=columns, rows=rows)


def _grid_chart(groups: Sequence[Group[GridPoint]], name: str) -> tuple[Chart, ...]:
    """A heat map: batch size to the right, learning rate upwards."""
    if not groups:
        return ()
    lines = tuple(
        Line(
            name=f"{rate:g}",
            points=tuple(g.point(g.key[0], _accuracy(g)) for g in groups if g.key[1] == rate),
        )
        for rate in sorted({g.key[1] for g in groups})
    )
    return (
        Chart(
            name=name,
            title="Validation accuracy by batch size and learning rate",
            kind="heat",
            x=Axis(name="batch size", scale="category"),
            y=Axis(name="accuracy", unit="%"),
            rows="learning rate",
            lines=lines,
        ),
    )


EXPERIMENT = Experiment(
    name="batch-accuracy",
    question="What accuracy is reached after a fixed number of epochs, by batch size?",
    settings=Settings,
    works=(Train,),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "learning_rate": "learning_rates",
    },
    plan=plan,
    answer=answer,
    papers="[001], figure 1",
)
