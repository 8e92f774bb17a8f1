"""A figure for every network and every variant (a framework, a precision): as a table, as bars, and
who is the fastest in each row.

What has no figure is a gap that says why, never a missing row or column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cubemesh.experiments.analysis.groups import Group, caveats, group_by
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, significance
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    Point,
    RunRecord,
    Table,
)
from cubemesh.units import format_list

CellKey = tuple[str, str]
"""(network, variant)."""
Found = tuple[Group[CellKey], Figure]
Reading = Callable[[Group[CellKey]], Figure | None]


@dataclass(frozen=True)
class Matrix:
    """Groups of records by network and variant."""

    groups: tuple[Group[CellKey], ...]
    row_name: str = "network"
    """What a row is called."""

    @classmethod
    def of(cls, records: Iterable[RunRecord], key: Callable[[RunRecord], CellKey]) -> Matrix:
        """The matrix of `records`; rows and columns stand in the order they first came."""
        return cls(tuple(group_by(records, key)))

    @property
    def networks(self) -> tuple[str, ...]:
        """Its rows."""
        return tuple(dict.fromkeys(g.key[0] for g in self.groups))

    @property
    def variants(self) -> tuple[str, ...]:
        """Its columns."""
        return tuple(dict.fromkeys(g.key[1] for g in self.groups))

    def at(self, network: str, variant: str) -> Group[CellKey] | None:
        """The records of one cell; None where nothing was asked for."""
        return next((g for g in self.groups if g.key == (network, variant)), None)

    def found(self, network: str, variant: str) -> Found | None:
        """The group of a cell with its throughput; None where there is none."""
        group = self.at(network, variant)
        figure = group.throughput if group else None
        return (group, figure) if group and figure else None

    def row(self, network: str) -> list[Found]:
        """The cells of a network that have a throughput, the fastest first."""
        found = [f for v in self.variants if (f := self.found(network, v)) is not None]
        return sorted(found, key=lambda pair: -pair[1].value)

    def ratios(
        self, over: str, under: str
    ) -> Iterator[tuple[str, Figure, tuple[Group[CellKey], ...]]]:
        """For each network that has both: throughput with variant `over` as a multiple of that with
        `under`, and the two groups."""
        for network in self.networks:
            a, b = self.found(network, over), self.found(network, under)
            if a and b:
                yield network, ratio(a[1], b[1]), (a[0], b[0])

    def gains(self, over: str, under: str) -> Finding | None:
        """What `over` gains on `under`, network by network: "it gains on a 2.00× (1.96–2.04); is
        level on b 1.01× (0.99–1.03)". Networks of which a run was disturbed are named and not
        compared; None where no network has both."""
        told: dict[str, list[str]] = {"gains on": [], "loses on": [], "is level on": []}
        disturbed: list[str] = []
        codes: list[str] = []
        for network, found, groups in self.ratios(over, under):
            if doubted := caveats(*groups):
                disturbed.append(network)
                codes += doubted
                continue
            words = {1: "gains on", -1: "loses on", 0: "is level on"}[significance(found)]
            told[words].append(f"{network} {format_ratio(found)}")
        parts = [f"{words} {format_list(where)}" for words, where in told.items() if where]
        if disturbed:
            parts.append(f"was not compared on {format_list(disturbed)}, where a run was disturbed")
        if not parts:
            return None
        text = f"{over} against {under}: it {'; '.join(parts)}."
        return Finding(text=text, caveats=tuple(dict.fromkeys(codes)))

    def table(self, title: str, unit: str, reading: Reading) -> Table:
        """A row a network, a column a variant; a gap has its reason in two words."""
        columns = (Column(name=self.row_name), *(Column(name=v, unit=unit) for v in self.variants))
        rows = tuple(
            (Cell(text=n), *(self._cell(self.at(n, v), reading) for v in self.variants))
            for n in self.networks
        )
        return Table(title=title, columns=columns, rows=rows)

    def chart(self, name: str, title: str, y: Axis, reading: Reading) -> tuple[Chart, ...]:
        """Bars: a group for each network, a bar for each variant; none where nothing was asked."""
        if not self.groups:
            return ()
        lines = tuple(
            Line(
                name=variant,
                points=tuple(
                    _point(group, reading)
                    for network in self.networks
                    if (group := self.at(network, variant)) is not None
                ),
            )
            for variant in self.variants
        )
        x = Axis(name=self.row_name, scale="category")
        return (Chart(name=name, title=title, kind="bar", x=x, y=y, lines=lines),)

    def gaps(self) -> Iterator[tuple[str, str, list[str]]]:
        """(variant, why, networks) of everything that has no figure, told once for each reason."""
        places: dict[CellKey, list[str]] = {}
        for group in self.groups:
            if group.throughput is None:
                places.setdefault((group.key[1], group.why), []).append(group.key[0])
        for (variant, why), networks in places.items():
            yield variant, why, list(dict.fromkeys(networks))

    @staticmethod
    def _cell(group: Group[CellKey] | None, reading: Reading) -> Cell:
        if group is None:
            return Cell(text="–")
        figure = reading(group)
        if figure is None:
            reason = "not known" if group.ok else group.ending
            return Cell(reason=reason, run_id=group.run_id)
        return group.cell(figure)


def _point(group: Group[CellKey], reading: Reading) -> Point:
    return group.point(group.key[0], reading(group))
