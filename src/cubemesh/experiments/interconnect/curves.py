"""Throughput by number of devices over each link: curves that share their point on one device.

Figures 5 and 6 of the DGX-1 white paper [002]: 1, 2, 4 and 8 GPUs over PCIe and over NVLink, and
the speed-up of each over one GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cubemesh.experiments.analysis.answer import cell_or_dash
from cubemesh.experiments.analysis.groups import Group, caveats, group_by, throughput_unit
from cubemesh.experiments.analysis.ratios import format_ratio, ratio
from cubemesh.experiments.scaling.analysis import efficiency
from cubemesh.networks import rate_unit
from cubemesh.schema import (
    Axis,
    Cell,
    Chart,
    Column,
    Figure,
    Finding,
    Line,
    NetworkWork,
    Point,
    RunRecord,
    Table,
)
from cubemesh.units import format_list


class SetupKey(NamedTuple):
    """What is the same along the curves of one setup."""

    network: str
    hidden: int | None
    batch: int
    """Batch size per device."""
    image_size: int | None
    framework: str
    threads: int | None
    sync: str

    @property
    def single(self) -> SetupKey:
        """The key of its run on one device, which has no synchronization."""
        return self._replace(sync="")


PointKey = tuple[str, int]
"""(link, number of devices)."""


@dataclass(frozen=True, kw_only=True)
class LinkCurves:
    """The curves of one setup, over every link."""

    name: str
    key: SetupKey
    one: Group[PointKey]
    """On one device."""
    groups: tuple[Group[PointKey], ...]
    """On several, by link."""

    @property
    def links(self) -> tuple[str, ...]:
        """The links, in order of first occurrence."""
        return tuple(dict.fromkeys(g.key[0] for g in self.groups))

    def over(self, link: str) -> list[Group[PointKey]]:
        """The points over a link, by number of devices."""
        return sorted((g for g in self.groups if g.key[0] == link), key=lambda g: g.key[1])

    def at(self, link: str, devices: int) -> Group[PointKey] | None:
        """One point."""
        return next((g for g in self.groups if g.key == (link, devices)), None)


def setup_key(record: RunRecord) -> SetupKey:
    """The setup of a record."""
    work, spec = record.spec.work, record.spec
    assert isinstance(work, NetworkWork)
    return SetupKey(
        network=work.network,
        hidden=work.hidden,
        batch=work.batch_per_device,
        image_size=work.image_size,
        framework=spec.program.framework,
        threads=spec.placement.threads,
        sync=spec.program.sync,
    )


def link_curves(records: Sequence[RunRecord]) -> list[LinkCurves]:
    """The curves of all setups that were measured on one device and on several."""
    single = {
        g.key: _one_device(g.records)
        for g in group_by(
            (r for r in records if r.spec.placement.devices == 1), lambda r: setup_key(r).single
        )
    }
    several = group_by((r for r in records if r.spec.placement.devices > 1), setup_key)
    found = [g for g in several if g.key.single in single]
    keys = [g.key for g in found]
    return [
        LinkCurves(
            name=_name(g.key, keys),
            key=g.key,
            one=single[g.key.single],
            groups=tuple(group_by(g.records, _point_key)),
        )
        for g in found
    ]


def _one_device(records: Sequence[RunRecord]) -> Group[PointKey]:
    """The runs of one device as a point; they use no link."""
    return Group(("", 1), tuple(records))


def _point_key(record: RunRecord) -> PointKey:
    place = record.spec.placement
    return place.link, place.devices


def _name(key: SetupKey, keys: Sequence[SetupKey]) -> str:
    """Network, width and batch size, and what else differs among the setups."""
    words = [key.network]
    words += [f"hidden size {key.hidden}"] if key.hidden else []
    words.append(str(key.batch))
    varying = (
        (key.framework, {k.framework for k in keys}),
        (key.sync, {k.sync for k in keys}),
        (f"{key.threads} threads", {k.threads for k in keys}),
    )
    words += [word for word, values in varying if len(values) > 1]
    return ", ".join(words)


def speed_up(group: Group[PointKey], one: Group[PointKey]) -> Figure | None:
    """Throughput of several devices as a multiple of that of one."""
    if group.throughput is None or one.throughput is None:
        return None
    return replace(ratio(group.throughput, one.throughput), unit="x")


def curve_findings(found: Sequence[LinkCurves]) -> Iterator[Finding]:
    """For each setup the speed-up of the most devices over each link."""
    for curves in found:
        devices = max(g.key[1] for g in curves.groups)
        ends = [
            (link, group, figure)
            for link in curves.links
            if (group := curves.at(link, devices)) is not None
            and (figure := speed_up(group, curves.one)) is not None
        ]
        if not ends:
            continue
        words = [f"{format_ratio(figure)} as fast over {link}" for link, _, figure in ends]
        yield Finding.of(
            code="link-scaling",
            text=f"{curves.name}: compared with one device, {devices} devices train "
            f"{format_list(words)}.",
            figure=ends[0][2],
            unit=f"× one device: {ends[0][0]}",
            caveats=caveats(curves.one, *(group for _, group, _ in ends)),
        )


def curve_tables(found: Sequence[LinkCurves]) -> Iterator[Table]:
    """A row for each number of devices over each link."""
    if not found:
        return
    groups = [g for curves in found for g in (curves.one, *curves.groups)]
    rows = []
    for curves in found:
        rows.append(_row(curves, curves.one))
        rows += [_row(curves, group) for link in curves.links for group in curves.over(link)]
    yield Table(
        title="Throughput by devices over each link",
        columns=(
            Column(name="network, batch size"),
            Column(name="link"),
            Column(name="devices"),
            Column(name="throughput", unit=throughput_unit(r for g in groups for r in g.records)),
            Column(name="speed-up", unit="x"),
            Column(name="efficiency", unit="%"),
            Column(name="vs first link", unit="x"),
        ),
        rows=tuple(rows),
    )


def _row(curves: LinkCurves, group: Group[PointKey]) -> tuple[Cell, ...]:
    link, devices = group.key
    head = (
        Cell(text=curves.name, run_id=group.run_id),
        Cell(text=link or "–"),
        Cell(value=devices),
    )
    if group.throughput is None:
        return (*head, *[group.cell(None)] * 4)
    if devices == 1:
        return (*head, group.cell(group.throughput), *[cell_or_dash(None)] * 3)
    first = curves.at(curves.links[0], devices)
    over = first.throughput if first is not None else None
    return (
        *head,
        group.cell(group.throughput),
        cell_or_dash(speed_up(group, curves.one), group.run_id),
        cell_or_dash(efficiency(group, curves.one), group.run_id),
        cell_or_dash(over and ratio(group.throughput, over), group.run_id),
    )


def curve_charts(found: Sequence[LinkCurves]) -> Iterator[Chart]:
    """Throughput by devices, a line for each link; all begin at one device."""
    for number, curves in enumerate(found):
        one = curves.one
        lines = [
            Line(
                name=link,
                points=tuple(g.point(g.key[1], g.throughput) for g in (one, *curves.over(link))),
            )
            for link in curves.links
        ]
        if one.throughput is not None:
            counts = sorted({1, *(g.key[1] for g in curves.groups)})
            ideal = tuple(Point(x=n, y=n * one.throughput.value) for n in counts)
            lines.append(Line(name="ideal: N times one device", points=ideal, role="reference"))
        yield Chart(
            name=f"interconnect-{curves.key.network}-{number + 1}",
            title=f"{curves.name}: throughput by devices over each link",
            kind="line",
            x=Axis(name="devices", scale="log2"),
            y=Axis(name="throughput", unit=rate_unit(curves.key.network), from_zero=True),
            lines=tuple(lines),
        )
