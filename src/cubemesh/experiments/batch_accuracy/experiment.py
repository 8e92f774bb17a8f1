"""What validation accuracy is reached after a fixed number of epochs, by minibatch?

Document 001 figure 1: LittleCNN on CIFAR-10, 30 epochs, RMSprop at 1e-4: 76 % at minibatch 16, 50 %
at 2048. The same epochs at a larger minibatch are fewer updates of the weights, so less is learned.
The default data are the handwritten digits cubemesh carries; CIFAR-10 where its folder is given.
With several learning rates it becomes a grid (`accuracy_grid.py`), which document 003 wishes for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.experiments.analysis.groups import Group, group_by, titled
from cubemesh.experiments.analysis.per_workload import per_workload
from cubemesh.experiments.batch_accuracy import grid as accuracy_grid
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

ACCURACY_NOTE = (
    "Accuracy is top-1 on samples held out from training; ± is its 95 % binomial (Wilson) "
    "interval, which does not cover the luck of the initial weights."
)
DOCUMENT_EPOCHS = 30
EPOCHS = {Scale.QUICK: 4, Scale.DEFAULT: 15, Scale.FULL: DOCUMENT_EPOCHS}
BATCHES = {
    Scale.QUICK: (16, 64, 256),
    Scale.DEFAULT: (16, 64, 256, 1024),
    Scale.FULL: (16, 32, 64, 128, 256, 512, 1024),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `batch-accuracy` besides the fields of its specs."""

    networks: tuple[str, ...] = ("little-cnn",)
    """Networks to train; `cubemesh networks` lists them."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes; default: 16 to 1024, fewer with --quick."""
    epochs: int | None = None
    """Epochs of each training; none given is the document's 30, fewer without --full."""
    data: str = "digits"
    """What is learned: digits, or cifar-10 with data_path."""
    learning_rates: tuple[float, ...] = (1e-4,)
    """Learning rates at every batch size; default: the paper's."""


def plan(settings: Settings, context: Context) -> Plan:
    """One training a minibatch, or one for each of its learning rates."""
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
    one = _grid if len(settings.learning_rates) > 1 else _answer
    return per_workload(records, lambda r: (_work(r).network,), lambda own: one(settings, own))


def _named(settings: Settings, records: Sequence[RunRecord]) -> str:
    return _work(records[0]).network if records else settings.networks[0]


def _answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    groups, network = group_by(records, _batch), _named(settings, records)
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled(f"{network} on {settings.data}: accuracy against minibatch", records),
        findings=tuple(_findings(settings, groups)),
        tables=(_table(groups),),
        charts=tuple(_charts(network, settings.data, groups)),
        warnings=(*_reduced(groups), *(w for r in records for w in r.warnings)),
        run_ids=tuple(r.run_id for r in records),
        notes=(
            ACCURACY_NOTE,
            "Document 001 figure 1 saw 76 % at minibatch 16 and 50 % at 2048 (LittleCNN, CIFAR-10, "
            "30 epochs, one V100).",
        ),
    )


def _grid(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """The answer where several learning rates were gone through at every minibatch."""
    grid, network = accuracy_grid.grid(records), _named(settings, records)
    what = f"{network} on {settings.data}: accuracy against minibatch and learning rate"
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=titled(what, records),
        findings=tuple(accuracy_grid.findings(grid)),
        tables=(accuracy_grid.table(grid),),
        charts=accuracy_grid.chart(grid, f"batch-accuracy-{network}-{settings.data}-grid"),
        warnings=(
            *_reduced(group_by(records, _batch)),
            *(w for r in records for w in r.warnings),
        ),
        run_ids=tuple(r.run_id for r in records),
        notes=(ACCURACY_NOTE,),
    )


def _batch(record: RunRecord) -> int:
    """What all devices together take in a step."""
    return record.spec.global_batch or 0


def _work(record: RunRecord) -> Train:
    assert isinstance(record.spec.work, Train)
    return record.spec.work


def _accuracy(group: Group[int]) -> Figure | None:
    """Of the first good run: accuracies of repeats belong to the same weights and order."""
    return group.ok[0].figures.get("accuracy") if group.ok else None


def _findings(settings: Settings, groups: list[Group[int]]) -> Iterator[Finding]:
    done = [(g, a) for g in groups if (a := _accuracy(g)) is not None]
    if done:
        yield from _comparison(settings, done)
    for group in groups:
        if _accuracy(group) is None:
            yield Finding(text=f"Minibatch {group.key}: {group.why}.")


def _comparison(settings: Settings, done: list[tuple[Group[int], Figure]]) -> Iterator[Finding]:
    best, top = max(done, key=lambda p: p[1].value)
    epochs = _work(best.records[0]).epochs
    yield Finding(
        question="Which minibatch learns?",
        text=f"After {epochs} epochs of {settings.data} minibatch {best.key} is right on "
        f"{100 * top.value:.1f} % of the held-out samples{_others(done, best)}.",
        value=100 * top.value,
        unit="% right",
        low=None if top.low is None else 100 * top.low,
        high=None if top.high is None else 100 * top.high,
        caveats=best.caveats,
    )
    (small, a), (large, b) = done[0], done[-1]
    if small.key == large.key:
        return
    if a.low is not None and b.high is not None and b.high < a.low:
        text = (
            f"The same {epochs} epochs teach less at minibatch {large.key} ({100 * b.value:.1f} %) "
            f"than at {small.key} ({100 * a.value:.1f} %): {_updates(large):,} updates of the "
            f"weights against {_updates(small):,}."
        )
        remedy = "Raise the learning rate with the minibatch."
    else:
        remedy = ""
        text = (
            f"After {epochs} epochs the minibatch makes no difference that {a.n} held-out samples "
            f"can show: {100 * a.value:.1f} % at {small.key}, {100 * b.value:.1f} % at {large.key}."
        )
    yield Finding(text=text, remedy=remedy)


def _others(done: list[tuple[Group[int], Figure]], best: Group[int]) -> str:
    others = [f"{g.key}: {100 * a.value:.1f} %" for g, a in done if g.key != best.key]
    return f" ({', '.join(others)})" if others else ""


def _updates(group: Group[int]) -> int:
    """Every step of training, the first one too, which is timed apart. (In fp16 a step whose
    gradients overflow updates nothing, and is counted all the same.)"""
    return sum(w.steps for w in group.ok[0].windows if w.phase != "evaluate")


def _table(groups: list[Group[int]]) -> Table:
    columns = (
        Column(name="minibatch"),
        Column(name="accuracy", unit="%"),
        Column(name="validation loss"),
        Column(name="updates", digits=12),
        Column(name="samples/s"),
        Column(name="wall time", unit="s"),
    )
    return Table(title="After the last epoch", columns=columns, rows=tuple(map(_row, groups)))


def _row(group: Group[int]) -> tuple[Cell, ...]:
    name, figure = Cell(text=str(group.key), run_id=group.run_id), _accuracy(group)
    if figure is None:
        return (name, *[group.cell(None)] * 5)
    low, high = figure.low, figure.high
    accuracy = Cell(
        value=100 * figure.value,
        low=None if low is None else 100 * low,
        high=None if high is None else 100 * high,
        run_id=group.run_id,
    )
    return (
        name,
        accuracy,
        Cell(value=group.median_of("validation_loss")),
        Cell(value=_updates(group)),
        group.cell(group.throughput),
        Cell(value=group.median_of("wall_s")),
    )


def _charts(network: str, data: str, groups: list[Group[int]]) -> Iterator[Chart]:
    if not groups:
        return
    yield Chart(
        name=f"batch-accuracy-{network}-{data}",
        title="Validation accuracy by minibatch",
        kind="line",
        x=Axis(name="minibatch", scale="log2"),
        y=Axis(name="accuracy", unit="%"),
        lines=(Line(name=network, points=tuple(map(_point, groups))),),
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


def _point(group: Group[int]) -> Point:
    figure = _accuracy(group)
    if figure is None:
        return group.point(group.key, None)
    return Point(
        x=group.key,
        y=100 * figure.value,
        low=None if figure.low is None else 100 * figure.low,
        high=None if figure.high is None else 100 * figure.high,
        run_id=group.run_id,
    )


def _curve(group: Group[int]) -> Line | None:
    for record in group.ok:
        for curve in record.curves:
            if curve.name == "validation_accuracy":
                pairs = zip(curve.x, curve.y, strict=True)
                points = tuple(Point(x=x, y=100 * y, run_id=record.run_id) for x, y in pairs)
                return Line(name=f"minibatch {group.key}", points=points)
    return None


def _reduced(groups: list[Group[int]]) -> Iterator[Warning]:
    if groups and (epochs := _work(groups[0].records[0]).epochs) < DOCUMENT_EPOCHS:
        yield warn(
            "reduced",
            f"These are {epochs} epochs; the document trains for {DOCUMENT_EPOCHS}.",
            "Use --full, or --set epochs=30.",
        )


EXPERIMENT = Experiment(
    name="batch-accuracy",
    question="What validation accuracy is reached after a fixed number of epochs, by minibatch?",
    settings=Settings,
    works=(Train,),
    varies={
        "network": "networks",
        "batch_per_device": "batch_sizes",
        "learning_rate": "learning_rates",
    },
    plan=plan,
    answer=answer,
    documents="001 figure 1",
)
