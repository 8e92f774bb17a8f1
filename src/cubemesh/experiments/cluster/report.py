"""Findings, tables and chart of the fat trees of `cluster`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cubemesh.errors import UsageError
from cubemesh.machines.topology import Design, FatTree, fat_tree
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


def design_name(design: Design) -> str:
    """`4 × InfiniBand EDR`."""
    return f"{design.ports_per_system} × {design.network.name}"


def tree(systems: int, design: Design) -> FatTree | str:
    """The fat tree, or the reason why there is none."""
    try:
        return fat_tree(systems, design)
    except UsageError as error:
        return str(error)


def comparison(systems: int, compared: Mapping[str, FatTree | str]) -> Table:
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


def _bisection_and_latency(found: FatTree) -> tuple[Cell, Cell]:
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
    columns = [Column(name="systems"), Column(name="devices"), Column(name="systems per leaf")]
    for name in LEVELS[:deepest]:
        columns += [Column(name=f"{name} level"), Column(name="ports used")]
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
            cells.append(Cell(value=min(design.per_leaf, systems)))
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


def findings(laid_out: Sequence[Design], compared: Mapping[str, FatTree | str]) -> list[Finding]:
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
        findings.append(
            Finding(code="bisection-bandwidth", text=f"{text}.", value=bisection, unit="GB/s")
        )
    return findings + [_full(design) for design in laid_out]


def _full(design: Design) -> Finding:
    """The largest two-level tree, and what one more system needs."""
    most = design.most_systems(2)
    full = fat_tree(most, design)
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


def _switches(found: FatTree) -> str:
    *others, last = [f"{x.switches} {x.name}-level" for x in found.levels]
    return f"{', '.join(others)} and {last} switches"


def _used(found: FatTree) -> str:
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


def notes(design: Design, compared: Mapping[str, FatTree | str]) -> tuple[str, ...]:
    """Formulas and sources."""
    network = design.network
    formula = (
        "Bisection = systems × ports × (in + out) ÷ 8 bit × ½ "
        f"({CITED}, table 1, note a); here systems × {design.ports_per_system} × "
        f"{2 * network.gbit_per_s:g} Gb/s ÷ 8 × ½."
    )
    if network.hop_latency_s:
        latency = (
            f"Latency = {network.latency_s * 1e6:g} µs from system to system + "
            f"{network.hop_latency_s * 1e6:g} µs for each switch on the longest path (note b)."
        )
    else:
        latency = f"Latency = {network.latency_s * 1e6:g} µs, switches included."
    networks = [t.design.network for t in compared.values() if not isinstance(t, str)]
    sources = "; ".join(f"{n.name}: {', '.join(n.sources)}" for n in networks)
    return (
        formula,
        latency,
        "Every leaf has as many links up as down, spread evenly over the second level; all ports "
        f"of a system are on one leaf ({CITED}, section 3.3 and figure 8).",
        f"Sources. {sources}.",
    )
