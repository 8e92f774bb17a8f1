"""Which minibatch and learning rate together learn best? Trainings over a grid of both.

Document 003 wishes for it: batch size and learning rate against speed and accuracy. The same epochs
everywhere; what diverged is a gap of the grid that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    RunRecord,
    Table,
    Train,
)
from cubemesh.units import format_list

Spot = tuple[int, float]
"""(minibatch, learning rate)."""
Grid = list[Group[Spot]]


def grid(records: Sequence[RunRecord]) -> Grid:
    """The trainings of each minibatch and learning rate."""
    return sorted(group_by(records, _spot), key=lambda g: g.key)


def _spot(record: RunRecord) -> Spot:
    work = record.spec.work
    assert isinstance(work, Train)
    return work.batch_per_device, work.learning_rate


def accuracy(group: Group[Spot]) -> Figure | None:
    """Percent right on what was held out, of the first good run."""
    figure = group.ok[0].figures.get("accuracy") if group.ok else None
    if figure is None:
        return None
    return Figure(
        value=100 * figure.value,
        unit="%",
        low=None if figure.low is None else 100 * figure.low,
        high=None if figure.high is None else 100 * figure.high,
        n=figure.n,
    )


def findings(found: Grid) -> Iterator[Finding]:
    """The best spot, the best learning rate of each minibatch, and what came to nothing."""
    done = [(g, a) for g in found if (a := accuracy(g)) is not None]
    if done:
        best, top = max(done, key=lambda p: p[1].value)
        batch, rate = best.key
        equal = [g for g, a in done if g is not best and _overlap(a, top)]
        others = (
            f"; {format_list(map(_name, equal))} cannot be told from it by {top.n} samples"
            if 0 < len(equal) <= 3
            else f"; {len(equal)} others cannot be told from it by {top.n} samples"
            if equal
            else ""
        )
        yield Finding(
            question="Which minibatch and learning rate learn best?",
            text=f"Minibatch {batch} with a learning rate of {rate:g} is right on "
            f"{top.value:.1f} % of the held-out samples{others}.",
            value=top.value,
            unit="% right",
            low=top.low,
            high=top.high,
        )
        told = []
        for batch in dict.fromkeys(g.key[0] for g, _ in done):
            winner, figure = max(
                ((g, a) for g, a in done if g.key[0] == batch), key=lambda p: p[1].value
            )
            told.append(f"{winner.key[1]:g} at minibatch {batch} ({figure.value:.1f} %)")
        if len(told) > 1:
            yield Finding(text=f"The best learning rate is {format_list(told)}.")
    for group in found:
        if accuracy(group) is None:
            yield Finding(text=f"{_name(group)[0].upper()}{_name(group)[1:]}: {group.why}.")


def _overlap(a: Figure, b: Figure) -> bool:
    return a.high is not None and b.low is not None and a.high >= b.low


def _name(group: Group[Spot]) -> str:
    return f"minibatch {group.key[0]} with {group.key[1]:g}"


def table(found: Grid) -> Table:
    """A row a spot: accuracy, loss and speed."""
    columns = (
        Column(name="minibatch"),
        Column(name="learning rate"),
        Column(name="accuracy", unit="%"),
        Column(name="validation loss"),
        Column(name="samples/s"),
        Column(name="wall time", unit="s"),
    )
    return Table(title="After the last epoch", columns=columns, rows=tuple(map(_row, found)))


def _row(group: Group[Spot]) -> tuple[Cell, ...]:
    figure = accuracy(group)
    name = Cell(text=str(group.key[0]), run_id=group.run_id), Cell(text=f"{group.key[1]:g}")
    if figure is None:
        return (*name, *[group.cell(None)] * 4)
    return (
        *name,
        group.cell(figure),
        Cell(value=group.median_of("validation_loss")),
        group.cell(group.throughput),
        Cell(value=group.median_of("wall_s")),
    )


def chart(found: Grid, name: str) -> tuple[Chart, ...]:
    """The grid as a heat map: minibatch to the right, learning rate upwards."""
    if not found:
        return ()
    rates = sorted({g.key[1] for g in found})
    return (
        Chart(
            name=name,
            title="Validation accuracy by minibatch and learning rate",
            kind="heat",
            x=Axis(name="minibatch", scale="category"),
            y=Axis(name="accuracy", unit="%"),
            rows="learning rate",
            lines=tuple(
                Line(
                    name=f"{rate:g}",
                    points=tuple(g.point(g.key[0], accuracy(g)) for g in found if g.key[1] == rate),
                )
                for rate in rates
            ),
        ),
    )
