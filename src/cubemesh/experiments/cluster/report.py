"""The findings, tables and chart of `cluster` that are about its fat trees."""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.experiments.cluster.designs import Settings, fabrics, named
from cubemesh.experiments.cluster.designs import tree as tree_of
from cubemesh.machines.topology import Design, FatTree, fat_tree
from cubemesh.papers.published import claims
from cubemesh.schema import Axis, Cell, Chart, Column, Finding, Line, Point, Table
from cubemesh.units import format_number

GB = 1e9
DOCUMENT = "002"
LEVELS = ("first", "second", "third")


def comparison(settings: Settings, compared: dict[str, FatTree | str]) -> Table:
    """The networks side by side, with the document's figures where it has them."""
    published = _published(settings)
    columns = [
        Column(name="network"),
        Column(name="one system, both ways", unit="Gb/s"),
        Column(name="bisection, both ways", unit="GB/s", digits=4),
        Column(name="latency", unit="µs"),
    ]
    if published:
        columns.append(Column(name=f"document {DOCUMENT}"))
    rows = []
    for name, tree in compared.items():
        if isinstance(tree, str):
            cells = [Cell(text=name), *(Cell(reason=tree) for _ in range(3))]
        else:
            cells = [
                Cell(text=name),
                Cell(value=tree.system_gbit_per_s),
                Cell(value=tree.bisection_bytes_per_s / GB),
                Cell(value=tree.latency_s * 1e6),
            ]
        if published:
            found = published.get(name)
            cells.append(Cell(text=found) if found else Cell(reason="not in the document"))
        rows.append(tuple(cells))
    title = f"{settings.compared_at} systems, by network"
    return Table(title=title, columns=tuple(columns), rows=tuple(rows))


def _published(settings: Settings) -> dict[str, str]:
    """What table 1 states of the same networks and as many systems."""
    if settings.compared_at != 124:
        return {}
    values = {c.id: c.values[0] for c in claims() if c.document == DOCUMENT and c.values}
    bisection, latency = "GB/s", "µs"
    return {
        "4 × InfiniBand EDR": (
            f"{format_number(values['002-9'], 4)} {bisection}, {values['002-10']:g} {latency}"
        ),
        "2 × 10 Gb Ethernet": f"{format_number(values['002-8'])} {bisection}, 5 {latency}",
    }


def sizes(settings: Settings, design: Design, devices: int) -> Table:
    """A row for each number of systems."""
    trees = {n: tree_of(n, design) for n in settings.system_counts}
    deepest = max((len(t.levels) for t in trees.values() if not isinstance(t, str)), default=1)
    columns = [Column(name="systems"), Column(name="devices"), Column(name="systems a leaf")]
    for name in LEVELS[:deepest]:
        columns += [Column(name=f"{name} level"), Column(name="ports used")]
    columns += [
        Column(name="bisection", unit="GB/s", digits=4),
        Column(name="latency", unit="µs"),
    ]
    rows = []
    for systems, tree in trees.items():
        cells = [Cell(value=systems), Cell(value=systems * devices)]
        if isinstance(tree, str):
            cells += [Cell(reason=tree) for _ in columns[2:]]
        else:
            cells.append(Cell(value=min(design.per_leaf, systems)))
            for level in tree.levels:
                used = f"{level.ports_used} of {level.switch_ports}"
                cells += [Cell(value=level.switches), Cell(text=used)]
            missing = 2 * (deepest - len(tree.levels))
            cells += [Cell(text="–") for _ in range(missing)]
            cells += [
                Cell(value=tree.bisection_bytes_per_s / GB),
                Cell(value=tree.latency_s * 1e6),
            ]
        rows.append(tuple(cells))
    title = (
        f"{named(design)} a system, {design.usable} of the {design.switch_ports} ports of a "
        "switch used"
    )
    return Table(title=title, columns=tuple(columns), rows=tuple(rows))


def findings(
    settings: Settings, laid_out: Sequence[Design], compared: dict[str, FatTree | str]
) -> list[Finding]:
    """Bisection and latency of each network, and when its levels are full."""
    trees = {name: tree for name, tree in compared.items() if not isinstance(tree, str)}
    findings = []
    for i, (name, tree) in enumerate(trees.items()):
        bisection = tree.bisection_bytes_per_s / GB
        text = (
            f"{tree.systems} systems with {name} have a bisection of {format_number(bisection, 4)} "
            f"GB/s (both ways added) and are {format_number(tree.latency_s * 1e6)} µs across"
        )
        if i:
            times = next(iter(trees.values())).bisection_bytes_per_s / tree.bisection_bytes_per_s
            text += f": {format_number(times)} times less than the first network's"
        findings.append(Finding(text=f"{text}."))
    findings += [Finding(text=_full(design)) for design in laid_out]
    return findings


def _full(design: Design) -> str:
    """When two levels are full, and what the next system needs."""
    most = design.most_systems(2)
    full = fat_tree(most, design)
    text = (
        f"With {design.usable} of {design.switch_ports} ports used, two levels are full at {most} "
        f"systems: {_switches(full)}, {design.per_leaf} systems on a leaf, "
        f"{_used(full)} ports used."
    )
    after = tree_of(most + 1, design)
    if isinstance(after, str):
        return f"{text} {after}"
    return (
        f"{text} The next system needs a third level: {_switches(after)}, {_used(after)} ports "
        "used; or director-class switches, with more ports, on the second (document 002, 3.3)."
    )


def _switches(tree: FatTree) -> str:
    *others, last = [f"{x.switches} {x.name}-level" for x in tree.levels]
    return f"{', '.join(others)} and {last} switches"


def _used(tree: FatTree) -> str:
    return ", ".join(f"{x.ports_used} of {x.switch_ports}" for x in tree.levels)


def chart(settings: Settings) -> Chart:
    """Bisection over the number of systems."""
    counts = sorted(set(settings.system_counts))
    lines = []
    for design in fabrics(settings):
        points = []
        for systems in counts:
            tree = tree_of(systems, design)
            if isinstance(tree, str):
                points.append(Point(x=systems, reason=tree))
            else:
                points.append(Point(x=systems, y=tree.bisection_bytes_per_s / GB))
        lines.append(Line(name=named(design), points=tuple(points), role="forecast"))
    return Chart(
        name="cluster-bisection",
        title="Bisection bandwidth by number of systems",
        kind="line",
        x=Axis(name="systems", scale="log2"),
        y=Axis(name="bisection, both ways", unit="GB/s", from_zero=True),
        lines=tuple(lines),
    )


def notes(design: Design, compared: dict[str, FatTree | str]) -> tuple[str, ...]:
    """Formulas and sources."""
    network = design.network
    coding = "" if network.coding == 1 else " × 64/66"
    formula = (
        "Bisection = systems × ports × (in + out) × coding ÷ 8 bit × ½ (document 002, table 1, "
        f"note a); here systems × {design.ports_per_system} × {2 * network.gbit_per_s:g} Gb/s"
        f"{coding} ÷ 8 × ½."
    )
    if network.hop_latency_s:
        latency = (
            f"Latency = {network.latency_s * 1e6:g} µs from system to system + "
            f"{network.hop_latency_s * 1e6:g} µs for each switch on the longest way (note b)."
        )
    else:
        latency = f"Latency = {network.latency_s * 1e6:g} µs, switches included."
    networks = [t.design.network for t in compared.values() if not isinstance(t, str)]
    sources = "; ".join(f"{n.name}: {', '.join(n.sources)}" for n in networks)
    return (
        formula,
        latency,
        "Every leaf has as many links up as down, spread evenly over the second level; all ports "
        "of a system are on one leaf (document 002, section 3.3 and figure 8).",
        f"Sources. {sources}.",
    )
