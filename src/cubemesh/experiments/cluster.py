"""What does a cluster of so many systems need, what crosses its middle, and how far is it across?

Nothing is measured: a fat tree is laid out for each number of systems and each network
(machines/topology/fat_tree.py, which has the formulas and their sources). Document 002, table 1 and
figure 8: 124 systems with four EDR ports, on leaves of four systems and as many links up as down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.base import Context, Experiment, Plan
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.topology import NETWORKS, Design, FatTree, fat_tree
from cubemesh.model import (
    Answer,
    Axis,
    Cell,
    Chart,
    Column,
    Finding,
    Line,
    Point,
    RunRecord,
    Table,
)
from cubemesh.results.published import claims
from cubemesh.units import format_number

GB = 1e9
DOCUMENT = "002"
LEVELS = ("first", "second", "third")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set in `cluster`."""

    system: str = "dgx1-v100"
    """What is joined: a system of the catalogue, or a machine file. It tells the devices."""
    systems: tuple[int, ...] = (16, 32, 64, 124, 128, 129, 144, 145)
    """How many of them."""
    fabrics: tuple[str, ...] = ("edr:4", "10gbe:2")
    """Networks to compare, each with its ports of one system; the first is laid out in full."""
    switch_ports: int | None = None
    """Ports of one switch of the first network; unset, those of its usual switch."""
    ports_used: tuple[int, ...] = (32, 36)
    """Ports used at most of a switch of the first network, one design each."""
    compared_at: int = 124
    """Systems at which the networks are compared."""

    def __post_init__(self) -> None:
        if not self.systems or not self.fabrics:
            raise UsageError("systems and fabrics need one entry each at least.")
        for count in (*self.systems, self.compared_at):
            if count < 1:
                raise UsageError(f"{count} systems: a cluster needs 1 or more.")
        for text in self.fabrics:
            fabric(text)
        designs(self)


def fabric(text: str, *, switch_ports: int | None = None, used: int | None = None) -> Design:
    """The design of "edr:4": a network, and its ports of each system; UsageError for others."""
    name, _, ports = text.strip().partition(":")
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS, "Write it with its ports: edr:4.")
    if not ports.isdecimal() or not 1 <= int(ports[:4]) <= 64:
        raise UsageError(
            f"fabrics={text}: after the network stand its ports of one system, 1 to 64, as in "
            f"{name}:4."
        )
    network = NETWORKS[name]
    return Design(
        network=network,
        ports_per_system=int(ports),
        switch_ports=switch_ports or network.switch_ports,
        ports_used=used,
    )


def designs(settings: Settings) -> tuple[Design, ...]:
    """The designs of the first network: one for each number of ports that may be used."""
    first = settings.fabrics[0]
    whole = fabric(first, switch_ports=settings.switch_ports)
    used = [n for n in settings.ports_used if n <= whole.switch_ports] or [whole.switch_ports]
    return tuple(
        fabric(first, switch_ports=settings.switch_ports, used=n) for n in dict.fromkeys(used)
    )


def plan(settings: Settings, context: Context) -> Plan:
    """Nothing is measured; that the system is known is checked before anything else."""
    load_system(settings.system)
    yield from ()


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the settings alone."""
    system = load_system(settings.system)
    laid_out = designs(settings)
    compared = {_named(d): _tree(settings.compared_at, d) for d in _fabrics(settings)}
    return Answer(
        experiment=EXPERIMENT.name,
        question=EXPERIMENT.question,
        title=f"Clusters of {system.title} on fat trees",
        findings=tuple(_findings(settings, laid_out, compared)),
        tables=(
            _comparison(settings, compared),
            *(_sizes(settings, design, system.devices) for design in laid_out),
        ),
        charts=(_chart(settings),),
        notes=_notes(laid_out[0], compared),
    )


def _fabrics(settings: Settings) -> list[Design]:
    """The designs that are compared: of the first network the one with the fewest ports used."""
    return [designs(settings)[0], *(fabric(text) for text in settings.fabrics[1:])]


def _named(design: Design) -> str:
    return f"{design.ports_per_system} × {design.network.name}"


def _tree(systems: int, design: Design) -> FatTree | str:
    """The fat tree, or why there is none."""
    try:
        return fat_tree(systems, design)
    except UsageError as error:
        return str(error)


def _comparison(settings: Settings, compared: dict[str, FatTree | str]) -> Table:
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


def _sizes(settings: Settings, design: Design, devices: int) -> Table:
    """A row for each number of systems."""
    trees = {n: _tree(n, design) for n in settings.systems}
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
        f"{_named(design)} a system, {design.usable} of the {design.switch_ports} ports of a "
        "switch used"
    )
    return Table(title=title, columns=tuple(columns), rows=tuple(rows))


def _findings(
    settings: Settings, laid_out: Sequence[Design], compared: dict[str, FatTree | str]
) -> list[Finding]:
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
    after = _tree(most + 1, design)
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


def _chart(settings: Settings) -> Chart:
    counts = sorted(set(settings.systems))
    lines = []
    for design in _fabrics(settings):
        points = []
        for systems in counts:
            tree = _tree(systems, design)
            if isinstance(tree, str):
                points.append(Point(x=systems, reason=tree))
            else:
                points.append(Point(x=systems, y=tree.bisection_bytes_per_s / GB))
        lines.append(Line(name=_named(design), points=tuple(points), role="forecast"))
    return Chart(
        name="cluster-bisection",
        title="Bisection bandwidth by number of systems",
        kind="line",
        x=Axis(name="systems", scale="log2"),
        y=Axis(name="bisection, both ways", unit="GB/s", from_zero=True),
        lines=tuple(lines),
    )


def _notes(design: Design, compared: dict[str, FatTree | str]) -> tuple[str, ...]:
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


EXPERIMENT = Experiment(
    name="cluster",
    question="What does a cluster of so many systems need, and what crosses its middle?",
    settings=Settings,
    works=(),
    varies={},
    plan=plan,
    answer=answer,
    measures=False,
    documents="002 table 1 and figure 8",
)
