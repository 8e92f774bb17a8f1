"""Validation accuracy by batch size and learning rate, after a fixed number of epochs.

DGX-1 best practices [001], figure 1: LittleCNN on CIFAR-10, 30 epochs, RMSprop at 1e-4: 76 % at
batch size 16, 50 % at 2048. The same epochs at a larger batch size are fewer updates, so less is
learned. The default data are the handwritten digits that cubemesh includes; CIFAR-10 if its folder
is given. With several learning rates the answer is a grid of both, as Dell EMC 2016 [003] proposes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.answer import answer_of, failed_run
from cubemesh.experiments.analysis.groups import Group, group_by, throughput_unit, titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.analysis.trainings import (
    ACCURACY_NOTE,
    curve_line,
    training_of,
    update_count,
)
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
    RunRecord,
    RunSpec,
    Table,
    Train,
    Warning,
    warn,
)
from cubemesh.units import format_list

PAPER_NOTE = (
    "DGX-1 best practices [001], figure 1: 76 % at batch size 16 and 50 % at 2048 (LittleCNN, "
    "CIFAR-10, 30 epochs, one V100)."
)
PAPER_EPOCHS = 30
EPOCHS = {Scale.QUICK: 4, Scale.DEFAULT: 15, Scale.FULL: PAPER_EPOCHS}
BATCHES = {
    Scale.QUICK: (16, 64, 256),
    Scale.DEFAULT: (16, 64, 256, 1024),
    Scale.FULL: (16, 32, 64, 128, 256, 512, 1024),
}
ACCURACY = Axis(name="accuracy", unit="%")


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


Setting = tuple[int, float]
"""(global batch size, learning rate)."""
Groups = Sequence[Group[Setting]]


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, table and charts from the records of one `batch-accuracy`, by network."""
    return per_workload(
        records, lambda r: (training_of(r).network,), lambda own: _answer(settings, own)
    )


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    groups = sorted(group_by(records, _setting), key=lambda g: g.key)
    network = training_of(records[0]).network if records else settings.networks[0]
    name = f"batch-accuracy-{network}-{settings.data}"
    grid = len(settings.learning_rates) > 1
    what = "batch size and learning rate" if grid else "batch size"
    return answer_of(
        EXPERIMENT,
        titled(f"{network} on {settings.data}: accuracy by {what}", records),
        records,
        findings=(
            *(_grid_findings(groups) if grid else _findings(settings, groups)),
            *(failed_run(_name(g, grid).capitalize(), g) for g in groups if _accuracy(g) is None),
        ),
        tables=(_table(groups, grid),),
        charts=_grid_chart(groups, f"{name}-grid") if grid else _charts(network, groups, name),
        warnings=_reduced(records),
        notes=(ACCURACY_NOTE,) if grid else (ACCURACY_NOTE, PAPER_NOTE),
    )


def _setting(record: RunRecord) -> Setting:
    return record.spec.global_batch or 0, training_of(record).learning_rate


def _name(group: Group[Setting], grid: bool) -> str:
    rate = f" with learning rate {group.key[1]:g}" if grid else ""
    return f"batch size {group.key[0]}{rate}"


def _accuracy(group: Group[Setting]) -> Figure | None:
    """Accuracy in percent of the first good run: repeats have the same weights and order."""
    figure = group.ok[0].figures.get("accuracy") if group.ok else None
    return None if figure is None else figure.scaled(100, "%")


def _done(groups: Groups) -> list[tuple[Group[Setting], Figure]]:
    return [(g, a) for g in groups if (a := _accuracy(g)) is not None]


def _findings(settings: Settings, groups: Groups) -> Iterator[Finding]:
    """The highest accuracy, and the smallest batch size compared with the largest."""
    done = _done(groups)
    if not done:
        return
    best, top = max(done, key=lambda p: p[1].value)
    epochs = training_of(best.records[0]).epochs
    others = ", ".join(f"{g.key[0]}: {a.value:.1f} %" for g, a in done if g is not best)
    yield Finding.of(
        code="highest-accuracy",
        question="Which batch size reaches the highest accuracy?",
        text=f"Highest accuracy after {epochs} epochs of {settings.data}: {top.value:.1f} % of the "
        f"held-out samples at batch size {best.key[0]}{others and f' ({others})'}.",
        figure=top,
        unit="% top-1",
        caveats=best.caveats,
    )
    (small, a), (large, b) = done[0], done[-1]
    if small is large:
        return
    if a.low is not None and b.high is not None and b.high < a.low:
        updates = [f"{update_count(group.ok[0]):,}" for group in (large, small)]
        code, remedy = "lower-accuracy", "Raise the learning rate with the batch size."
        text = (
            f"The same {epochs} epochs reach a lower accuracy at batch size {large.key[0]} "
            f"({b.value:.1f} %) than at {small.key[0]} ({a.value:.1f} %): {updates[0]} instead of "
            f"{updates[1]} updates."
        )
    else:
        code, remedy = "equal-accuracy", ""
        text = (
            f"No significant difference after {epochs} epochs with {a.n} held-out samples: "
            f"{a.value:.1f} % at batch size {small.key[0]}, {b.value:.1f} % at {large.key[0]}."
        )
    yield Finding(
        code=code, text=text, value=b.value - a.value, unit="percentage points", remedy=remedy
    )


def _grid_findings(groups: Groups) -> Iterator[Finding]:
    """The best point, and the best learning rate at each batch size."""
    done = _done(groups)
    if not done:
        return
    best, top = max(done, key=lambda p: p[1].value)
    equal = [_name(g, True) for g, a in done if g is not best and _overlap(a, top)]
    names = format_list(equal) if 0 < len(equal) <= 3 else f"{len(equal)} others"
    rest = f"; no significant difference from {names}" if equal else ""
    yield Finding.of(
        code="highest-accuracy",
        question="Which batch size and learning rate reach the highest accuracy?",
        text=f"Highest accuracy: {top.value:.1f} % of the held-out samples at {_name(best, True)}"
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


def _overlap(a: Figure, b: Figure) -> bool:
    return a.high is not None and b.low is not None and a.high >= b.low


def _table(groups: Groups, grid: bool) -> Table:
    columns = (
        Column(name="batch size"),
        *((Column(name="learning rate"),) if grid else ()),
        Column(name="accuracy", unit="%"),
        Column(name="validation loss"),
        Column(name="updates", digits=12),
        Column(name=throughput_unit(r for g in groups for r in g.records)),
        Column(name="wall time", unit="s"),
    )
    rows = tuple(
        (
            Cell(text=str(group.key[0]), run_id=group.run_id),
            *((Cell(text=f"{group.key[1]:g}"),) if grid else ()),
            *_cells(group),
        )
        for group in groups
    )
    return Table(title="After the last epoch", columns=columns, rows=rows)


def _cells(group: Group[Setting]) -> tuple[Cell, ...]:
    """Accuracy, loss, number of updates, throughput and wall time; gaps without an accuracy."""
    figure = _accuracy(group)
    if figure is None:
        return (group.cell(None),) * 5
    return (
        group.cell(figure),
        Cell(value=group.median_of("validation_loss")),
        Cell(value=update_count(group.ok[0])),
        group.cell(group.throughput),
        Cell(value=group.median_of("wall_s")),
    )


def _charts(network: str, groups: Groups, name: str) -> Iterator[Chart]:
    if not groups:
        return
    points = tuple(g.point(g.key[0], _accuracy(g)) for g in groups)
    yield Chart(
        name=name,
        title="Validation accuracy by batch size",
        kind="line",
        x=Axis(name="batch size", scale="log2"),
        y=ACCURACY,
        lines=(Line(name=network, points=points),),
    )
    curves = tuple(
        curve_line(f"batch size {g.key[0]}", g.ok[0], curve, 100)
        for g in groups
        if g.ok and (curve := g.ok[0].curve("validation_accuracy")) is not None
    )
    if curves:
        yield Chart(
            name=f"{name}-epochs",
            title="Validation accuracy by epoch",
            kind="line",
            x=Axis(name="epoch"),
            y=ACCURACY,
            lines=curves,
        )


def _grid_chart(groups: Groups, name: str) -> Iterator[Chart]:
    """A heat map: batch size to the right, learning rate upwards."""
    if not groups:
        return
    yield Chart(
        name=name,
        title="Validation accuracy by batch size and learning rate",
        kind="heat",
        x=Axis(name="batch size", scale="category"),
        y=ACCURACY,
        rows="learning rate",
        lines=tuple(
            Line(
                name=f"{rate:g}",
                points=tuple(g.point(g.key[0], _accuracy(g)) for g in groups if g.key[1] == rate),
            )
            for rate in sorted({g.key[1] for g in groups})
        ),
    )


def _reduced(records: Sequence[RunRecord]) -> Iterator[Warning]:
    if records and (epochs := training_of(records[0]).epochs) < PAPER_EPOCHS:
        yield warn(
            "reduced",
            f"{epochs} epochs; the paper trains for {PAPER_EPOCHS}.",
            "Use --full, or set epochs=30.",
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
