"""Table and charts of `seq2seq`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cubemesh.experiments.analysis.groups import Group
from cubemesh.schema import Axis, Cell, Chart, Column, Figure, Line, Point, Table

NETWORKS: dict[str, str] = {
    "mlp": "translator",
    "plain": "translator-plain",
    "input-feeding": "translator-2x",
}


class TranslatorSetting(NamedTuple):
    """Setting of one point."""

    attention: str
    hidden: int
    precision: str
    batch: int

    @property
    def network(self) -> str:
        """Name of the network."""
        return NETWORKS[self.attention]


Groups = Sequence[Group[TranslatorSetting]]
"""Groups of records by setting, sorted by hidden size and batch size."""


def tokens(group: Group[TranslatorSetting]) -> Figure | None:
    """Tokens/s: mean tokens per sentence times sentences/s."""
    rate = group.throughput
    if rate is None:
        return None
    first = group.ok[0].figures
    if "tokens_per_s" not in first:
        return None
    each = first["tokens_per_s"].value / first["throughput_per_s"].value
    return rate.scaled(each, "tokens/s")


def curves(groups: Groups) -> dict[TranslatorSetting, list[Group[TranslatorSetting]]]:
    """Groups of each attention, hidden size and precision (batch size 0), by batch size."""
    found: dict[TranslatorSetting, list[Group[TranslatorSetting]]] = {}
    for group in groups:
        found.setdefault(group.key._replace(batch=0), []).append(group)
    return found


def values_of(groups: Groups, field: str) -> list[Any]:
    """Distinct values of one field of the keys, in order."""
    return list(dict.fromkeys(getattr(g.key, field) for g in groups))


def name_of(key: TranslatorSetting, precision: bool) -> str:
    """`mlp attention, hidden size 512`, with its precision if there are several."""
    suffix = f", {key.precision}" if precision else ""
    return f"{key.attention} attention, hidden size {key.hidden}{suffix}"


def table(groups: Groups) -> Table:
    """A row per point, curve by curve."""
    columns = (
        Column(name="attention"),
        Column(name="hidden size"),
        Column(name="precision"),
        Column(name="batch size"),
        Column(name="sentences/s"),
        Column(name="tokens/s"),
        Column(name="step", unit="ms"),
        Column(name="memory", unit="MiB"),
    )
    ordered = [group for curve in curves(groups).values() for group in curve]
    return Table(title="", columns=columns, rows=tuple(map(_row, ordered)))


def _row(group: Group[TranslatorSetting]) -> tuple[Cell, ...]:
    key, memory_bytes, rate = group.key, group.median_of("peak_memory_bytes"), tokens(group)
    memory = Figure(value=memory_bytes / 2**20, unit="MiB") if memory_bytes else None
    missing = None if group.throughput is None else Cell(reason="unknown")
    return (
        Cell(text=key.attention, run_id=group.run_id),
        Cell(text=str(key.hidden)),
        Cell(text=key.precision),
        Cell(text=str(key.batch)),
        group.cell(group.throughput),
        group.cell(rate) if rate or missing is None else missing,
        group.cell(group.step_ms),
        group.cell(memory) if memory or missing is None else missing,
    )


def charts(groups: Groups) -> Iterator[Chart]:
    """Tokens/s by batch size, and by hidden size if there are several."""
    lines = curves(groups)
    if not lines:
        return
    several = len(values_of(groups, "precision")) > 1
    y = Axis(name="throughput", unit="tokens/s", from_zero=True)
    yield Chart(
        name="seq2seq",
        title="tokens/s by batch size",
        kind="line",
        x=Axis(name="batch size", scale="log2"),
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
    if shared and len(values_of(groups, "hidden")) > 1:
        yield _by_hidden_size(groups, max(shared), several, y)


def _by_hidden_size(groups: Groups, batch: int, several: bool, y: Axis) -> Chart:
    """At the largest batch size that all of them ran."""
    lines: dict[str, list[Point]] = {}
    for group in groups:
        if group.key.batch == batch:
            suffix = f", {group.key.precision}" if several else ""
            name = f"{group.key.attention} attention{suffix}"
            lines.setdefault(name, []).append(group.point(group.key.hidden, tokens(group)))
    return Chart(
        name="seq2seq-hidden-size",
        title=f"tokens/s by hidden size, batch size {batch}",
        kind="line",
        x=Axis(name="hidden size", scale="log2"),
        y=y,
        lines=tuple(Line(name=name, points=tuple(points)) for name, points in lines.items()),
    )
