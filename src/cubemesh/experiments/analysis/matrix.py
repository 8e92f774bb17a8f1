"""Matrix of throughputs by network and variant (a framework, a precision): table, bars, ratios.

A missing figure is a gap with its reason, not a missing row or column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cubemesh.experiments.analysis.groups import Group, caveats, group_by
from cubemesh.experiments.analysis.ratios import format_ratio, ratio, verdicts
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


def throughput(group: Group[CellKey]) -> Figure | None:
    """The reading of a matrix of throughputs."""
    return group.throughput


@dataclass(frozen=True)
class Matrix:
    """Groups of records by network and variant."""

    groups: tuple[Group[CellKey], ...]
    row_name: str = "network"
    """What a row is called."""

    @classmethod
    def of(cls, records: Iterable[RunRecord], key: Callable[[RunRecord], CellKey]) -> Matrix:
        """The matrix of `records`; rows and columns in order of first occurrence."""
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
        """The records of one cell; None if it was not requested."""
        return next((g for g in self.groups if g.key == (network, variant)), None)

    def found(self, network: str, variant: str) -> Found | None:
        """The group of a cell with its throughput; None without one."""
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
        """The speed-up of `over` over `under` by network: "faster on a 2.00 ± 0.04×; no
        significant difference on b 1.01 ± 0.02×". Noisy runs are not compared; None if no
        network has both."""
        words = {1: "faster on", -1: "slower on", 0: "no significant difference on"}
        networks: dict[str, list[str]] = {word: [] for word in words.values()}
        noisy: list[str] = []
        codes: list[str] = []
        compared: list[tuple[str, Figure]] = []
        for network, found, groups in self.ratios(over, under):
            if noise := caveats(*groups):
                noisy.append(network)
                codes += noise
                continue
            compared.append((network, found))
        judged = verdicts([found for _, found in compared])
        for (network, found), verdict in zip(compared, judged, strict=True):
            open_ = "" if verdict.sign else f" ({verdict.unseen})"
            networks[words[verdict.sign]].append(f"{network} {format_ratio(found)}{open_}")
        parts = [f"{word} {format_list(where)}" for word, where in networks.items() if where]
        if noisy:
            parts.append(f"not compared on {format_list(noisy)}, where a run was noisy")
        if not parts:
            return None
        return Finding(
            code="throughput-ratio",
            text=f"{over} over {under}: {'; '.join(parts)}.",
            caveats=tuple(dict.fromkeys(codes)),
        )

    def table(self, title: str, unit: str, reading: Reading) -> Table:
        """A row for each network, a column for each variant; gaps have a short reason."""
        columns = (Column(name=self.row_name), *(Column(name=v, unit=unit) for v in self.variants))
        rows = tuple(
            (Cell(text=n), *(self._cell(self.at(n, v), reading) for v in self.variants))
            for n in self.networks
        )
        return Table(title=title, columns=columns, rows=rows)

    def chart(self, name: str, title: str, y: Axis, reading: Reading) -> tuple[Chart, ...]:
        """Bars: a group for each network, a bar for each variant; none for an empty matrix."""
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
        """(variant, reason, networks) of all gaps, once for each reason."""
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
            reason = "unknown" if group.ok else group.ending
            return Cell(reason=reason, run_id=group.run_id)
        return group.cell(figure)


def _point(group: Group[CellKey], reading: Reading) -> Point:
    return group.point(group.key[0], reading(group))
