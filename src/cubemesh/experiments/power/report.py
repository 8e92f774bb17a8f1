"""Findings, table and charts of `power`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cubemesh.experiments.analysis.answer import failed_run
from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.power.pareto_front import (
    PowerData,
    PowerPoint,
    PowerSetting,
    measured,
    pareto_front,
)
from cubemesh.measure.energy.energy import INTEGRATED
from cubemesh.measure.energy.rapl import READABLE
from cubemesh.networks import rate_unit
from cubemesh.schema import Axis, Cell, Chart, Column, Finding, Line, Point, Table
from cubemesh.units import format_devices, format_list, format_number

PARTS = {"gpu_power_watts": "GPU", "cpu_package_watts": "CPU", "dram_watts": "DRAM"}
PAPER_COST = 4.0
"""Cost of sampling in Gawande et al. 2018 [004], in percent of performance."""


def findings(data: PowerData) -> Iterator[Finding]:
    """The most efficient setting of each network, its Pareto front, the cost of sampling, and what
    could not be measured."""
    for number, network in enumerate(n for n in data.networks if data.of(n)):
        yield from _front_of(network, data.of(network), card=number == 0)
    yield from _over_devices(data)
    yield from _without_power(data)
    yield from _agreement(data)
    yield from _idle(data)
    yield from _cost(data)
    for group in data.groups:
        if group.throughput is None:
            yield failed_run(group.key.name, group)


def _front_of(network: str, settings: Sequence[PowerPoint], *, card: bool) -> Iterator[Finding]:
    best = min(settings, key=lambda m: m.joules)
    fastest = max(settings, key=lambda m: m.throughput.value)
    yield Finding(
        code="lowest-energy",
        question="Which setting takes the least energy per sample?" if card else None,
        text=f"{network} takes the least energy at {best.group.key.words}: "
        f"{format_number(best.joules)} J/sample ({best.words}).",
        value=1 / best.joules if card else None,
        unit="samples/J",
        caveats=best.group.caveats,
    )
    if fastest is not best:
        yield Finding(
            code="fastest-setting",
            text=f"{network} is fastest at {fastest.group.key.words}: {fastest.words}, "
            f"{format_number(fastest.joules / best.joules)} times the energy per sample.",
            value=fastest.joules / best.joules,
            unit="× the energy",
            caveats=caveats(best.group, fastest.group),
        )
    if len(settings) > 1:
        yield Finding(
            code="pareto-front",
            text=_front_text(network, settings),
            value=len(pareto_front(settings)),
            unit=f"of {len(settings)} settings",
        )


def _front_text(network: str, settings: Sequence[PowerPoint]) -> str:
    chosen: dict[str, list[str]] = {}
    for one in pareto_front(settings):
        chosen.setdefault(one.group.key.variant, []).append(str(one.group.key.batch))
    front = format_list(
        f"{v} at batch size {format_list(batches)}" for v, batches in chosen.items()
    )
    others = len(settings) - sum(map(len, chosen.values()))
    rest = f"{others} other settings are" if others > 1 else "the other setting is"
    return f"Pareto front of {network}: {front}" + (f"; {rest} not on it." if others else " (all).")


def _over_devices(data: PowerData) -> Iterator[Finding]:
    """Throughput and energy per sample on the most devices, against one, of each curve."""
    points = {m.group.key: m for m in data.measured}
    for key, one in points.items():
        same = [m for k, m in points.items() if k.curve == key and k.devices > 1]
        if key.devices > 1 or not same:
            continue
        most = max(same, key=lambda m: m.group.key.devices)
        faster = most.throughput.value / one.throughput.value
        gain = one.joules / most.joules
        text = (
            f"{key.name}: {format_devices(most.group.key.devices)} train "
            f"{format_number(faster)} times as many samples per second as one for "
            f"{format_number(most.watts / one.watts)} times the power, so "
            f"{format_number(gain)} times the samples per joule."
        )
        yield Finding(
            code="power-scaling",
            text=text,
            value=gain,
            unit="× the samples/J of 1 device",
            caveats=caveats(one.group, most.group),
        )


def _agreement(data: PowerData) -> Iterator[Finding]:
    """Agreement of the GPU's energy counter with its integrated power."""
    records = [r for m in data.measured for r in m.group.ok]
    both = [(r.figure("gpu_energy_joules"), r.figure(INTEGRATED)) for r in records]
    shares = [abs(power / counter - 1) for counter, power in both if counter and power]
    if shares:
        yield Finding(
            code="energy-agreement",
            text="The GPU's energy counter and its power integrated over the readings differ by at "
            f"most {100 * max(shares):.1f} %; the figures use the counter.",
            value=100 * max(shares),
            unit="%",
        )


def _idle(data: PowerData) -> Iterator[Finding]:
    idle = [v for m in data.measured for r in m.group.ok if (v := r.figure("gpu_idle_watts"))]
    board = [v for m in data.measured if (v := m.group.median_of("gpu_power_watts"))]
    if idle and board:
        yield Finding(
            code="idle-power",
            text=f"Idle power of the GPU before a run: {format_number(min(idle))} W, "
            f"{100 * min(idle) / max(board):.0f} % of the highest power in training. The figures "
            "include it.",
            value=min(idle),
            unit="W",
        )


def _cost(data: PowerData) -> Iterator[Finding]:
    costs = [v for g in data.groups for r in g.ok if (v := r.figure("telemetry_cpu_percent"))]
    if costs:
        yield Finding(
            code="sampling-cost",
            text=f"Sampling takes at most {format_number(max(costs), 2)} % of a run's CPU time "
            f"(Gawande et al. 2018 [004]: {PAPER_COST:.0f} % of performance).",
            value=max(costs),
            unit="% of CPU time",
        )


def _without_power(data: PowerData) -> Iterator[Finding]:
    known = {m.group.key for m in data.measured}
    lacking = [g for g in data.groups if g.throughput is not None and g.key not in known]
    why: dict[str, list[Group[PowerSetting]]] = {}
    for group in lacking:
        reasons = [u.why for r in group.ok for u in r.unmeasured if u.what == "energy and power"]
        other = "not comparable: it covers different parts of the machine"
        none = "not measurable: the record has no power"
        usual = other if measured(group) else none
        why.setdefault(reasons[0] if reasons else usual, []).append(group)
    for reason, groups in why.items():
        everything = len(groups) == len(data.groups)
        where = "" if everything else f" of {format_list(g.key.name for g in groups)}"
        yield Finding(
            code="unknown-power",
            text=f"Power{where} is {reason}. Throughput is shown without it.",
            remedy=remedy(reason),
        )


def remedy(reason: str) -> str:
    """How to make power measurable, by the reason why it is not."""
    if "only root" in reason:
        return f"Make RAPL's counters readable until the next boot: {READABLE}"
    if "are needed" in reason:
        return "Measure longer: set seconds=10 or more."
    if "clock of its own" in reason:
        return "Use a framework that computes."
    return (
        "Run it where a sensor can be read: on an NVIDIA GPU, or with RAPL outside a virtual "
        "machine (docs/power.md)."
    )


def table(data: PowerData) -> Table:
    """A row per setting; columns of power only if some power is known."""
    found = {m.group.key: m for m in data.measured}
    parts = {
        name: words
        for name, words in PARTS.items()
        if any(m.group.median_of(name) is not None for m in data.measured)
    }
    columns = [
        Column(name="network"),
        Column(name="batch size"),
        Column(name="setting"),
    ]
    several = data.counts[-1:] > (1,)
    if several:
        columns.append(Column(name="devices"))
    columns.append(Column(name=rate_unit(*data.networks)))
    if several:
        columns.append(Column(name="efficiency", unit="%"))
    if found:
        columns.append(Column(name="power", unit="W"))
        if len(parts) > 1:
            columns += [Column(name=words, unit="W") for words in parts.values()]
        columns += [
            Column(name="energy", unit="J/sample"),
            Column(name="samples/J"),
            Column(name="Pareto front"),
        ]
    rows = []
    for group in data.groups:
        key = group.key
        row = [
            Cell(text=key.network, run_id=group.run_id),
            Cell(text=str(key.batch)),
            Cell(text=key.curve.variant),
        ]
        if several:
            row.append(Cell(value=key.devices))
        row.append(group.cell(group.throughput))
        if several:
            row.append(_efficiency_cell(data, group))
        if found:
            row += _power_cells(group, found.get(key), parts if len(parts) > 1 else {}, data)
        rows.append(tuple(row))
    return Table(title="", columns=tuple(columns), rows=tuple(rows))


def _efficiency_cell(data: PowerData, group: Group[PowerSetting]) -> Cell:
    if group.key.devices == 1:
        return Cell(text="–")
    figure = data.efficiency(group)
    if figure is None:
        return Cell(reason=group.why if group.throughput is None else "no run on one device")
    return Cell.of(figure, run_id=group.run_id)


def _power_cells(
    group: Group[PowerSetting], one: PowerPoint | None, parts: dict[str, str], data: PowerData
) -> list[Cell]:
    other = measured(group) if one is None else None
    if other is not None:
        return [
            Cell(value=other.watts, run_id=group.run_id),
            *(Cell(value=group.median_of(name), reason="not measurable") for name in parts),
            Cell(value=other.joules),
            Cell(value=1 / other.joules),
            Cell(reason="it covers other parts of the machine"),
        ]
    if one is None:
        why = group.ending if group.throughput is None else "not measurable"
        return [Cell(reason=why, run_id=group.run_id)] * (4 + len(parts))
    return [
        Cell(value=one.watts, run_id=group.run_id),
        *(Cell(value=group.median_of(name), reason="not measurable") for name in parts),
        Cell(value=one.joules),
        Cell(value=1 / one.joules),
        Cell(text="yes" if group.key in data.on_front else "–"),
    ]


def charts(data: PowerData) -> Iterator[Chart]:
    """Throughput over power for each network; bars of throughput if power is unknown."""
    for network in data.networks:
        settings = data.of(network)
        if settings:
            yield _scatter(network, settings)
        elif any(g.throughput for g in data.groups if g.key.network == network):
            yield _bars(network, [g for g in data.groups if g.key.network == network])


def _scatter(network: str, settings: Sequence[PowerPoint]) -> Chart:
    several = any(m.group.key.devices > 1 for m in settings)
    names = {m.group.key: _line_name(m.group.key, several=several) for m in settings}
    lines = [
        Line(
            name=name,
            points=tuple(
                _point(m, several=several) for m in settings if names[m.group.key] == name
            ),
        )
        for name in dict.fromkeys(names.values())
    ]
    best = pareto_front(settings)
    if len(best) > 1:
        points = tuple(Point(x=round(m.watts, 2), y=m.throughput.value) for m in best)
        lines.insert(0, Line(name="Pareto front", points=points, role="reference"))
    return Chart(
        name=f"power-{network}",
        title=f"{network}: {rate_unit(network)} over power, by "
        f"{'number of devices' if several else 'batch size'}",
        kind="scatter",
        x=Axis(name="power", unit="W"),
        y=Axis(name="throughput", unit=rate_unit(network)),
        lines=tuple(lines),
    )


def _line_name(key: PowerSetting, *, several: bool) -> str:
    """Points of a line differ in the number of devices, or else in the batch size."""
    return key.curve.words if several else key.variant


def _point(one: PowerPoint, *, several: bool) -> Point:
    point, key = one.group.point(round(one.watts, 2), one.throughput), one.group.key
    return replace(point, label=str(key.devices if several else key.batch))


def _bars(network: str, groups: Sequence[Group[PowerSetting]]) -> Chart:
    variants = dict.fromkeys(g.key.variant for g in groups)
    return Chart(
        name=f"power-{network}",
        title=f"{network}: {rate_unit(network)} by batch size (power is not measurable here)",
        kind="bar",
        x=Axis(name="batch size", scale="category"),
        y=Axis(name="throughput", unit=rate_unit(network), from_zero=True),
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


def notes(data: PowerData) -> Iterator[str]:
    """What the power covers, and how it is measured."""
    if not data.measured:
        return
    yield f"Power covers {data.measured[0].covered}."
    if data.counts[-1] > 1:
        yield (
            "On several devices power is the sum over their boards, or that of the packages and "
            "DRAM of their hosts, and efficiency is the throughput of N devices over N times that "
            "of one."
        )
    yield (
        "Power is the energy of the measured windows over their duration; J/sample and samples/J "
        "follow from it, without an interval, because windows are shorter than the update interval "
        "of power sensors (docs/power.md). A setting is on the Pareto front if no other is at "
        "least as fast for no more power."
    )
    yield (
        "Gawande et al. 2018 [004], figures 16 to 19, compare the boards of one to eight P100 with "
        "the packages and DRAM of KNL. No power limit and no clock was set here."
    )
