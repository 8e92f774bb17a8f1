"""Findings, tables and chart of the networks of `cluster`: fat trees and dragonflies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cubemesh.errors import UsageError
from cubemesh.machines.topology import Design, Dragonfly, FatTree, lay_out
from cubemesh.machines.topology.interconnects import DragonflyShape
from cubemesh.papers.published import claims
from cubemesh.schema import Axis, Cell, Chart, Column, Finding, Line, Point, Table
from cubemesh.schema.published import cite
from cubemesh.units import format_number

GB = 1e9
PAPER = "002"
CITED = cite(PAPER)
PAPER_SYSTEMS = 124
"""Systems of its table 1."""
LEVELS = ("first", "second", "third")
Layout = FatTree | Dragonfly


def design_name(design: Design) -> str:
    """`4 × InfiniBand EDR`, with how far a tree is oversubscribed."""
    name = f"{design.ports_per_system} × {design.network.name}"
    if design.oversubscription > 1:
        name += f", {format_number(design.oversubscription)} : 1 oversubscribed"
    return name


def shape_names(designs: Iterable[Design]) -> str:
    """`fat trees`, `dragonflies`, or both."""
    kinds = {design.network.dragonfly is None for design in designs}
    return " and ".join(
        name for tree, name in ((True, "fat trees"), (False, "dragonflies")) if tree in kinds
    )


def tree(systems: int, design: Design) -> Layout | str:
    """The network of so many systems, or the reason why there is none."""
    try:
        return lay_out(systems, design)
    except UsageError as error:
        return str(error)


def comparison(systems: int, compared: Mapping[str, Layout | str]) -> Table:
    """A row for each network, with the figures of the paper where it has them."""
    published = _published() if systems == PAPER_SYSTEMS else {}
    columns = [
        Column(name="network"),
        Column(name="per system, bidirectional", unit="Gb/s"),
        Column(name="bisection, bidirectional", unit="GB/s", digits=4),
        Column(name="latency", unit="µs"),
    ]
    if published:
        columns.append(Column(name=CITED))
    rows = []
    for name, found in compared.items():
        if isinstance(found, str):
            cells = [Cell(text=name), *[Cell(reason=found)] * 3]
        else:
            system = Cell(value=found.system_gbit_per_s)
            cells = [Cell(text=name), system, *_bisection_and_latency(found)]
        if published:
            stated = published.get(name)
            cells.append(Cell(text=stated) if stated else Cell(reason="not in the paper"))
        rows.append(tuple(cells))
    return Table(title=f"{systems} systems, by network", columns=tuple(columns), rows=tuple(rows))


def _bisection_and_latency(found: Layout) -> tuple[Cell, Cell]:
    """In GB/s and µs."""
    return Cell(value=found.bisection_bytes_per_s / GB), Cell(value=found.latency_s * 1e6)


def _published() -> dict[str, str]:
    """Bisection and latency of the same networks in the paper's table 1."""
    values = {c.id: c.values[0] for c in claims() if c.document == PAPER and c.values}
    return {
        "4 × InfiniBand EDR": f"{format_number(values['002-9'], 4)} GB/s, {values['002-10']:g} µs",
        "2 × 10 Gb Ethernet": f"{format_number(values['002-8'])} GB/s, 5 µs",
    }


def sizes(system_counts: Sequence[int], design: Design, devices: int) -> Table:
    """A row for each number of systems."""
    trees = {n: tree(n, design) for n in system_counts}
    deepest = max((len(t.levels) for t in trees.values() if not isinstance(t, str)), default=1)
    shape = design.network.dragonfly
    leaf = "systems per leaf" if shape is None else "systems per router"
    columns = [Column(name="systems"), Column(name="devices"), Column(name=leaf)]
    for name in LEVELS[:deepest]:
        columns += [Column(name=f"{name} level"), Column(name=f"{name}-level ports used")]
    columns += [
        Column(name="bisection", unit="GB/s", digits=4),
        Column(name="latency", unit="µs"),
    ]
    rows = []
    for systems, found in trees.items():
        cells = [Cell(value=systems), Cell(value=systems * devices)]
        if isinstance(found, str):
            cells += [Cell(reason=found)] * len(columns[2:])
        else:
            each = design.per_leaf if shape is None else shape.systems_per_router
            cells.append(Cell(value=min(each, systems)))
            for level in found.levels:
                used = f"{level.ports_used} of {level.switch_ports}"
                cells += [Cell(value=level.switches), Cell(text=used)]
            cells += [Cell(text="–")] * (2 * (deepest - len(found.levels)))
            cells += _bisection_and_latency(found)
        rows.append(tuple(cells))
    title = (
        f"{design_name(design)} per system, {design.usable} of {design.switch_ports} switch ports "
        "used"
    )
    return Table(title=title, columns=tuple(columns), rows=tuple(rows))


def findings(laid_out: Sequence[Design], compared: Mapping[str, Layout | str]) -> list[Finding]:
    """Bisection bandwidth and latency of each network, and the size of a full two-level tree."""
    trees = {name: found for name, found in compared.items() if not isinstance(found, str)}
    findings = []
    for i, (name, found) in enumerate(trees.items()):
        bisection = found.bisection_bytes_per_s / GB
        text = (
            f"{found.systems} systems with {name}: bisection bandwidth "
            f"{format_number(bisection, 4)} GB/s (bidirectional), latency "
            f"{format_number(found.latency_s * 1e6)} µs"
        )
        if i:
            first = next(iter(trees.values())).bisection_bytes_per_s
            times = format_number(first / found.bisection_bytes_per_s)
            text += f"; {times} times less bandwidth than the first network"
        if found.taper > 1:
            text += (
                f"; a half of the systems can send {format_number(found.taper)} times as much "
                "as reaches the other half, which slows all-to-all traffic and not a ring"
            )
        findings.append(
            Finding(code="bisection-bandwidth", text=f"{text}.", value=bisection, unit="GB/s")
        )
    return findings + [_full(design) for design in laid_out]


def _full(design: Design) -> Finding:
    """The largest two-level tree, or group of a dragonfly, and what one more system needs."""
    if design.network.dragonfly is not None:
        return _full_group(design, design.network.dragonfly)
    most = design.most_systems(2)
    full = lay_out(most, design)
    text = (
        f"With {design.usable} of {design.switch_ports} switch ports used, a two-level tree is "
        f"full at {most} systems: {_switches(full)}, {design.per_leaf} systems per leaf, "
        f"{_used(full)} ports used."
    )
    after = tree(most + 1, design)
    if isinstance(after, str):
        text += f" {after}"
    else:
        text += (
            f" One more system needs a third level ({_switches(after)}, {_used(after)} ports "
            f"used) or director switches with more ports ({CITED}, section 3.3)."
        )
    return Finding(code="full-two-level-tree", text=text, value=most, unit="systems")


def _full_group(design: Design, shape: DragonflyShape) -> Finding:
    """The systems of a group, and the global links that one more system needs."""
    most = shape.systems_per_group
    text = (
        f"A group of {design.network.name} is full at {most} systems on {shape.routers_per_group} "
        f"routers, with {shape.global_links} links to other groups."
    )
    after = tree(2 * most, design)
    if isinstance(after, Dragonfly):
        text += (
            f" Two full groups are joined by {after.links_between_groups} links: bisection "
            f"bandwidth {format_number(after.bisection_bytes_per_s / GB, 4)} GB/s (bidirectional), "
            f"latency {format_number(after.latency_s * 1e6)} µs."
        )
    return Finding(code="full-dragonfly-group", text=text, value=most, unit="systems")


def _switches(found: Layout) -> str:
    *others, last = [f"{x.switches} {x.name}-level" for x in found.levels]
    return f"{', '.join(others)} and {last} switches"


def _used(found: Layout) -> str:
    return ", ".join(f"{x.ports_used} of {x.switch_ports}" for x in found.levels)


def chart(system_counts: Sequence[int], designs: Mapping[str, Design]) -> Chart:
    """Bisection bandwidth over the number of systems."""
    lines = []
    for name, design in designs.items():
        points = []
        for systems in sorted(set(system_counts)):
            found = tree(systems, design)
            if isinstance(found, str):
                points.append(Point(x=systems, reason=found))
            else:
                points.append(Point(x=systems, y=found.bisection_bytes_per_s / GB))
        lines.append(Line(name=name, points=tuple(points), role="forecast"))
    return Chart(
        name="cluster-bisection",
        title="Bisection bandwidth by number of systems",
        kind="line",
        x=Axis(name="systems", scale="log2"),
        y=Axis(name="bisection, bidirectional", unit="GB/s", from_zero=True),
        lines=tuple(lines),
    )


def notes(design: Design, compared: Mapping[str, Layout | str]) -> tuple[str, ...]:
    """Formulas and sources."""
    network = design.network
    if network.dragonfly is not None:
        return (*_dragonfly_notes(design), _sources(compared))
    share = "½" if design.oversubscription == 1 else f"½ ÷ {design.oversubscription:g}"
    formula = (
        "Bisection = systems × ports × (in + out) ÷ 8 bit × ½ "
        f"({CITED}, table 1, note a); here systems × {design.ports_per_system} × "
        f"{2 * network.gbit_per_s:g} Gb/s ÷ 8 × {share}."
    )
    if network.hop_latency_s:
        latency = (
            f"Latency = {network.latency_s * 1e6:g} µs from system to system + "
            f"{network.hop_latency_s * 1e6:g} µs for each switch on the longest path (note b)."
        )
    else:
        latency = f"Latency = {network.latency_s * 1e6:g} µs, switches included."
    links = (
        "as many links up as down"
        if design.oversubscription == 1
        else f"a link up for every {design.oversubscription:g} links down"
    )
    return (
        formula,
        latency,
        f"Every leaf has {links}, spread evenly over the second level; all ports "
        f"of a system are on one leaf ({CITED}, section 3.3 and figure 8).",
        _sources(compared),
    )


def _sources(compared: Mapping[str, Layout | str]) -> str:
    networks = {
        t.design.network.name: t.design.network for t in compared.values() if not isinstance(t, str)
    }
    sources = "; ".join(f"{n.name}: {', '.join(n.sources)}" for n in networks.values())
    return f"Sources. {sources}."


def _dragonfly_notes(design: Design) -> tuple[str, ...]:
    network = design.network
    return (
        "Bisection = the smaller of systems × ports × (in + out) ÷ 8 bit × ½ and of the links that "
        "are cut: between groups half of them × the other half × links between two groups, within "
        "a group those of its rows and columns (J. Kim et al., ISCA 2008).",
        f"Latency = {network.latency_s * 1e6:g} µs from system to system + "
        f"{network.hop_latency_s * 1e6:g} µs for each router on the longest path, and that of a "
        "global link where one is crossed.",
        "Systems are placed on as few routers and groups as they fit, and only the links between "
        "those count.",
    )
