"""The table and the charts of `seq2seq`, and how its points are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cubemesh.experiments.analysis.groups import Group
from cubemesh.schema import Axis, Cell, Chart, Column, Figure, Line, Point, Table

NETWORKS: dict[str, str] = {"mlp": "translator", "plain": "translator-plain"}


class Key(NamedTuple):
    """What one point of the answer was measured at."""

    attention: str
    width: int
    precision: str
    batch: int

    @property
    def network(self) -> str:
        """Its name in the table of networks."""
        return NETWORKS[self.attention]


Groups = Sequence[Group[Key]]
"""Groups of records by what they were measured at, by width and minibatch."""


def tokens(group: Group[Key]) -> Figure | None:
    """Tokens a second: those of a sentence, in the mean over the data, times sentences a second."""
    rate = group.throughput
    if rate is None:
        return None
    first = group.ok[0].figures
    if "tokens_per_s" not in first:
        return None
    each = first["tokens_per_s"].value / first["throughput_per_s"].value
    return Figure(
        value=rate.value * each,
        unit="tokens/s",
        low=None if rate.low is None else rate.low * each,
        high=None if rate.high is None else rate.high * each,
        n=rate.n,
    )


def curves(groups: Groups) -> dict[Key, list[Group[Key]]]:
    """The groups of each attention, width and precision (with minibatch 0), by minibatch."""
    found: dict[Key, list[Group[Key]]] = {}
    for group in groups:
        found.setdefault(group.key._replace(batch=0), []).append(group)
    return found


def values_of(groups: Groups, field: str) -> list[Any]:
    """The values that one field of the keys takes, in the order they first came."""
    return list(dict.fromkeys(getattr(g.key, field) for g in groups))


def name_of(key: Key, precision: bool) -> str:
    """`mlp attention, 512 wide`; with its precision, where that is not the only one."""
    told = f", {key.precision}" if precision else ""
    return f"{key.attention} attention, {key.width} wide{told}"


def table(groups: Groups) -> Table:
    """A row a point, curve by curve; the reason where there is no figure."""
    columns = (
        Column(name="attention"),
        Column(name="width"),
        Column(name="precision"),
        Column(name="minibatch"),
        Column(name="sentences/s"),
        Column(name="tokens/s"),
        Column(name="step", unit="ms"),
        Column(name="memory", unit="MiB"),
    )
    ordered = [group for curve in curves(groups).values() for group in curve]
    return Table(title="", columns=columns, rows=tuple(map(_row, ordered)))


def _row(group: Group[Key]) -> tuple[Cell, ...]:
    key, held, rate = group.key, group.median_of("peak_memory_bytes"), tokens(group)
    memory = Figure(value=held / 2**20, unit="MiB") if held else None
    missing = None if group.throughput is None else Cell(reason="not known")
    return (
        Cell(text=key.attention, run_id=group.run_id),
        Cell(text=str(key.width)),
        Cell(text=key.precision),
        Cell(text=str(key.batch)),
        group.cell(group.throughput),
        group.cell(rate) if rate or missing is None else missing,
        group.cell(group.step_ms),
        group.cell(memory) if memory or missing is None else missing,
    )


def charts(groups: Groups) -> Iterator[Chart]:
    """Tokens/s by minibatch, and by width where there are several; none where nothing was asked."""
    lines = curves(groups)
    if not lines:
        return
    several = len(values_of(groups, "precision")) > 1
    y = Axis(name="throughput", unit="tokens/s", from_zero=True)
    yield Chart(
        name="seq2seq",
        title="tokens/s by minibatch",
        kind="line",
        x=Axis(name="minibatch", scale="log2"),
        y=y,
        lines=tuple(
            Line(
                name=name_of(key, several),
                points=tuple(g.point(g.key.batch, tokens(g)) for g in curve),
            )
            for key, curve in lines.items()
        ),
    )
    shared = set.intersection(*({g.key.batch for g in c if g.ok} for c in lines.values()))
    if shared and len(values_of(groups, "width")) > 1:
        yield _by_width(groups, max(shared), several, y)


def _by_width(groups: Groups, batch: int, several: bool, y: Axis) -> Chart:
    """At the largest minibatch that all of them ran."""
    lines: dict[str, list[Point]] = {}
    for group in groups:
        if group.key.batch == batch:
            told = f", {group.key.precision}" if several else ""
            name = f"{group.key.attention} attention{told}"
            lines.setdefault(name, []).append(group.point(group.key.width, tokens(group)))
    return Chart(
        name="seq2seq-width",
        title=f"tokens/s by width, minibatch {batch}",
        kind="line",
        x=Axis(name="width", scale="log2"),
        y=y,
        lines=tuple(Line(name=name, points=tuple(points)) for name, points in lines.items()),
    )
