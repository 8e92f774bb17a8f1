"""The findings, the table and the charts of `power`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.power.pareto_front import (
    Key,
    PowerData,
    PowerPoint,
    measured,
    pareto_front,
)
from cubemesh.measure.energy.energy import INTEGRATED
from cubemesh.measure.energy.rapl import READABLE
from cubemesh.schema import Axis, Cell, Chart, Column, Finding, Line, Point, Table
from cubemesh.units import format_interval, format_list, format_number

PARTS = {"gpu_power_watts": "GPU", "cpu_package_watts": "CPU", "dram_watts": "DRAM"}
DOCUMENT_COST = 4.0
"""Percent of performance that document 004 let sampling cost."""


def findings(shown: PowerData) -> Iterator[Finding]:
    """The most sparing setting of each network, its front, what sampling cost, and what could not
    be measured."""
    card = True
    for network in shown.networks:
        for finding in _front_of(network, shown.of(network), card=card):
            card = False
            yield finding
    yield from _without_power(shown)
    yield from _agreement(shown)
    yield from _idle(shown)
    yield from _cost(shown)
    for group in shown.groups:
        if group.throughput is None:
            yield Finding(text=f"{group.key.network} at {group.key.words}: {group.why}.")


def _front_of(network: str, settings: Sequence[PowerPoint], *, card: bool) -> Iterator[Finding]:
    if not settings:
        return
    best = min(settings, key=lambda m: m.joules)
    fastest = max(settings, key=lambda m: m.throughput.value)
    yield Finding(
        question="What is trained for a watt?" if card else None,
        text=f"{network} takes the least energy at {best.group.key.words}: "
        f"{_number(best.joules)} J a sample ({_speed(best)} at {_number(best.watts)} W).",
        value=1 / best.joules if card else None,
        unit="samples/s per watt",
        caveats=best.group.caveats,
    )
    if fastest is not best:
        yield Finding(
            text=f"{network} is fastest at {fastest.group.key.words}, with {_speed(fastest)} at "
            f"{_number(fastest.watts)} W: {_number(fastest.joules / best.joules)} times the energy "
            "of a sample.",
            caveats=caveats(best.group, fastest.group),
        )
    if len(settings) > 1:
        yield Finding(text=_front_words(network, settings))


def _front_words(network: str, settings: Sequence[PowerPoint]) -> str:
    chosen: dict[str, list[str]] = {}
    for one in pareto_front(settings):
        chosen.setdefault(one.group.key.variant, []).append(str(one.group.key.batch))
    told = format_list(f"{v} at minibatch {format_list(batches)}" for v, batches in chosen.items())
    beaten = len(settings) - sum(map(len, chosen.values()))
    if not beaten:
        return f"{network}'s Pareto front is {told}: all of them."
    others = "the other" if beaten == 1 else f"each of the other {beaten}"
    return (
        f"{network}'s Pareto front is {told}; to {others} one of these is at least as fast for no "
        "more power."
    )


def _agreement(shown: PowerData) -> Iterator[Finding]:
    """Between the two ways to know a GPU's energy."""
    records = [r for m in shown.measured for r in m.group.ok]
    both = [(r.figure("gpu_energy_joules"), r.figure(INTEGRATED)) for r in records]
    shares = [abs(power / counter - 1) for counter, power in both if counter and power]
    if shares:
        yield Finding(
            text="The GPU's energy counter and its power, integrated over the readings, differ by "
            f"{100 * max(shares):.1f} % at the most; the figures use the counter."
        )


def _idle(shown: PowerData) -> Iterator[Finding]:
    idle = [v for m in shown.measured for r in m.group.ok if (v := r.figure("gpu_idle_watts"))]
    board = [v for m in shown.measured if (v := m.group.median_of("gpu_power_watts"))]
    if idle and board:
        yield Finding(
            text=f"The GPU drew {_number(min(idle))} W at the least before a run touched it: "
            f"{100 * min(idle) / max(board):.0f} % of the most it drew in training. The figures "
            "here include it."
        )


def _cost(shown: PowerData) -> Iterator[Finding]:
    costs = [v for g in shown.groups for r in g.ok if (v := r.figure("telemetry_cpu_percent"))]
    if costs:
        yield Finding(
            text=f"Sampling cost at most {_number(max(costs), 2)} % of a run's "
            f"processor time (document 004 let it cost {DOCUMENT_COST:.0f} % of the performance)."
        )


def _without_power(shown: PowerData) -> Iterator[Finding]:
    known = {m.group.key for m in shown.measured}
    lacking = [g for g in shown.groups if g.throughput is not None and g.key not in known]
    why: dict[str, list[Group[Key]]] = {}
    for group in lacking:
        reasons = [u.why for r in group.ok for u in r.unmeasured if u.what == "energy and power"]
        other = "not comparable: it covers other parts of the machine than the rest"
        none = "not measurable: the record has no power"
        usual = other if measured(group) else none
        why.setdefault(reasons[0] if reasons else usual, []).append(group)
    for reason, groups in why.items():
        everything = len(groups) == len(shown.groups)
        where = "here" if everything else f"of {format_list(_name(g) for g in groups)}"
        yield Finding(
            text=f"Power {where} is {reason}. Performance is shown without it.",
            remedy=remedy(reason),
        )


def remedy(reason: str) -> str:
    """What to do so that power can be measured, by the reason why it cannot."""
    if "only root" in reason:
        return f"Let everyone read RAPL's counters until the next start: {READABLE}"
    if "are needed" in reason:
        return "Measure longer: set seconds=10 or more."
    if "clock of its own" in reason:
        return "Take a framework that computes."
    return (
        "Run it where a sensor can be read: on an NVIDIA GPU, or on the machine itself rather than "
        "a virtual machine, with RAPL (docs/power.md)."
    )


def table(shown: PowerData) -> Table:
    """A row a setting; the columns of power only where some power is known."""
    found = {m.group.key: m for m in shown.measured}
    parts = {
        name: words
        for name, words in PARTS.items()
        if any(m.group.median_of(name) is not None for m in shown.measured)
    }
    columns = [
        Column(name="network"),
        Column(name="minibatch"),
        Column(name="setting"),
        Column(name="samples/s"),
    ]
    if found:
        columns.append(Column(name="power", unit="W"))
        if len(parts) > 1:
            columns += [Column(name=words, unit="W") for words in parts.values()]
        columns += [
            Column(name="energy", unit="J/sample"),
            Column(name="samples/s per watt"),
            Column(name="front"),
        ]
    rows = []
    for group in shown.groups:
        key = group.key
        row = [
            Cell(text=key.network, run_id=group.run_id),
            Cell(text=str(key.batch)),
            Cell(text=key.variant),
            group.cell(group.throughput),
        ]
        if found:
            row += _power_cells(group, found.get(key), parts if len(parts) > 1 else {}, shown)
        rows.append(tuple(row))
    return Table(title="", columns=tuple(columns), rows=tuple(rows))


def _power_cells(
    group: Group[Key], one: PowerPoint | None, parts: dict[str, str], shown: PowerData
) -> list[Cell]:
    if one is None:
        why = group.ending if group.throughput is None else "not measurable"
        return [Cell(reason=why, run_id=group.run_id)] * (4 + len(parts))
    return [
        Cell(value=one.watts, run_id=group.run_id),
        *(Cell(value=group.median_of(name), reason="not measurable") for name in parts),
        Cell(value=one.joules),
        Cell(value=1 / one.joules),
        Cell(text="on it" if group.key in shown.on_front else "–"),
    ]


def charts(shown: PowerData) -> Iterator[Chart]:
    """Performance against power, network by network; bars of performance where none is known."""
    for network in shown.networks:
        settings = shown.of(network)
        if settings:
            yield _scatter(network, settings)
        elif any(g.throughput for g in shown.groups if g.key.network == network):
            yield _bars(network, [g for g in shown.groups if g.key.network == network])


def _scatter(network: str, settings: Sequence[PowerPoint]) -> Chart:
    variants = dict.fromkeys(m.group.key.variant for m in settings)
    lines = [
        Line(
            name=variant,
            points=tuple(_point(m) for m in settings if m.group.key.variant == variant),
        )
        for variant in variants
    ]
    best = pareto_front(settings)
    if len(best) > 1:
        points = tuple(Point(x=round(m.watts, 2), y=m.throughput.value) for m in best)
        lines.insert(0, Line(name="Pareto front", points=points, role="reference"))
    return Chart(
        name=f"power-{network}",
        title=f"{network}: samples/s against power, by minibatch",
        kind="scatter",
        x=Axis(name="power", unit="W"),
        y=Axis(name="throughput", unit="samples/s"),
        lines=tuple(lines),
    )


def _point(one: PowerPoint) -> Point:
    figure = one.throughput
    return Point(
        x=round(one.watts, 2),
        y=figure.value,
        low=figure.low,
        high=figure.high,
        run_id=one.group.run_id,
        label=str(one.group.key.batch),
    )


def _bars(network: str, groups: Sequence[Group[Key]]) -> Chart:
    variants = dict.fromkeys(g.key.variant for g in groups)
    return Chart(
        name=f"power-{network}",
        title=f"{network}: samples/s by minibatch (power is not measurable here)",
        kind="bar",
        x=Axis(name="minibatch", scale="category"),
        y=Axis(name="throughput", unit="samples/s", from_zero=True),
        lines=tuple(
            Line(
                name=variant,
                points=tuple(
                    g.point(str(g.key.batch), g.throughput)
                    for g in groups
                    if g.key.variant == variant
                ),
            )
            for variant in variants
        ),
    )


def notes(shown: PowerData) -> Iterator[str]:
    """What the power is of, and how it was found."""
    if not shown.measured:
        return
    yield f"Power is that of {shown.measured[0].covered}."
    yield (
        "Power is the energy of the measured windows over their seconds; joules of a sample and "
        "samples/s per watt follow from it, and have no interval, because windows are shorter than "
        "power sensors take (docs/power.md). A setting is on the Pareto front where no other is at "
        "least as fast for as little power."
    )
    yield (
        "Document 004 figures 16 to 19 compare the boards of one to eight P100 with the packages "
        "and DRAM of KNL. No power limit and no clock was set here."
    )


def _speed(one: PowerPoint) -> str:
    figure = one.throughput
    return f"{format_interval(figure.value, figure.low, figure.high)} samples/s"


def _name(group: Group[Key]) -> str:
    return f"{group.key.network} at {group.key.words}"


def _number(value: float, digits: int = 3) -> str:
    return format_number(value, digits)
