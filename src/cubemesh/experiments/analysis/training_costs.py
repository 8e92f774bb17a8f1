"""Cost of a training and samples per joule of measured points, as tables and findings.

Prices of devices are given by part of a device or host name; forecast/training/cost.py has the
formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import geometric_mean

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.analysis.matrix import CellKey, Matrix
from cubemesh.forecast.training.cost import Prices, TrainingCost, cost_at, known_columns
from cubemesh.schema import Cell, Column, Figure, Finding, NetworkWork, RunRecord, Table, Work
from cubemesh.units import format_number, format_quantity


def priced(lines: Sequence[str], setting: str, what: str) -> dict[str, float]:
    """`["H200=2.5"]` as a table; UsageError for invalid prices. `what` is the price in words."""
    table = {}
    for text in lines:
        name, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not name.strip() or not (math.isfinite(price) and price > 0):
            raise UsageError(
                f"{setting}={text} is not a price: write NAME=PRICE with part of a device name and "
                f"its {what}, as in {setting}=H200=2.5,Xeon=0.2."
            )
        table[name.strip()] = price
    return table


def prices_by_device(table: Mapping[str, float], matrix: Matrix) -> dict[str, float]:
    """Device → its price, by part of its own name or of a host's."""
    found = {}
    for part, price in table.items():
        for device in matrix.variants:
            hosts = {
                r.ranks[0].host for g in matrix.groups if g.key[1] == device for r in g.records
            }
            if any(part.casefold() in name.casefold() for name in (device, *hosts)):
                found[device] = price
    return found


def tokens_per_sample(work: Work) -> int | None:
    """Tokens of a sequence; None for networks of other input."""
    if not isinstance(work, NetworkWork):
        return None
    given = networks.build_for(work).inputs[0]
    return given.shape[0] if given.dtype == "integer" else None


def cost_of(group: Group[CellKey], prices: Prices) -> TrainingCost | None:
    """The cost of the training of `prices` at a group's throughput and power."""
    if group.throughput is None:
        return None
    spec = group.records[0].spec
    return cost_at(
        prices,
        samples_per_s=group.throughput.value,
        devices=spec.placement.devices,
        watts=group.median_of("mean_power_watts"),
        tokens_per_sample=None if prices.tokens is None else tokens_per_sample(spec.work),
    )


@dataclass(frozen=True, kw_only=True)
class DevicePrices:
    """The prices of an answer about several devices."""

    common: Prices
    hourly: Mapping[str, float]
    """Device → price per hour."""
    purchase: Mapping[str, float]
    """Device → purchase price."""

    def of(self, device: str) -> Prices:
        """Those of one device."""
        return replace(
            self.common,
            price_per_hour=self.hourly.get(device, self.common.price_per_hour),
            purchase_price=self.purchase.get(device, self.common.purchase_price),
        )


def cost_table(matrix: Matrix, prices: DevicePrices) -> Table | None:
    """A row for each workload and device; None where nothing but the time is known."""
    costs = [(g, cost_of(g, prices.of(g.key[1]))) for g in matrix.groups]
    columns = known_columns(cost for _, cost in costs)
    if set(columns) <= {"hours"}:
        return None
    rows = tuple(
        (
            Cell(text=group.key[0], run_id=group.run_id),
            Cell(text=group.key[1]),
            *(_cost_cell(group, cost, name, prices.common) for name in columns),
        )
        for group, cost in costs
    )
    heads = (Column(name=name, unit=unit) for name, unit in columns.values())
    return Table(
        title=f"Cost of a training: {prices.common.training}",
        columns=(Column(name=matrix.row_name), Column(name="device"), *heads),
        rows=rows,
    )


def _cost_cell(group: Group[CellKey], cost: TrainingCost | None, name: str, prices: Prices) -> Cell:
    if group.throughput is None:
        return group.cell(None)
    if cost is None:
        return Cell(reason=f"{prices.training}: its samples have no tokens")
    value: float | None = getattr(cost, name)
    if value is not None:
        return Cell(value=value)
    measured = group.median_of("mean_power_watts") is not None
    return Cell(reason="no price" if measured or name == "rented" else "power not measured")


def cheapest(matrix: Matrix, prices: DevicePrices) -> Iterator[Finding]:
    """The device with the cheapest training of each workload that has two prices."""
    for workload in matrix.networks:
        costs: list[tuple[float, str, Group[CellKey]]] = []
        for group in matrix.groups:
            cost = cost_of(group, prices.of(group.key[1])) if group.key[0] == workload else None
            money = [m for m in (cost.rented, cost.owned) if m is not None] if cost else []
            if money:
                costs.append((min(money), group.key[1], group))
        if len(costs) < 2:
            continue
        costs.sort(key=lambda one: one[:2])
        (least, device, best), (most, other, worst) = costs[0], costs[-1]
        yield Finding(
            code="training-cost",
            text=f"{prices.common.training} of {workload} cost least on {device}: "
            f"{format_number(least)} units of money, {format_number(most)} on {other}.",
            value=least,
            unit="units of money",
            caveats=caveats(best, worst),
        )


def samples_per_joule(group: Group[CellKey]) -> Figure | None:
    """The reading of a matrix of energy efficiency."""
    value = group.median_of("samples_per_joule")
    return None if value is None else Figure(value=value, unit="samples/J")


def energy_table(matrix: Matrix) -> Table | None:
    """Samples per joule by workload and device; None where no run has a reading."""
    if not any(samples_per_joule(group) for group in matrix.groups):
        return None
    columns = (Column(name=matrix.row_name), *(Column(name=v) for v in matrix.variants))
    rows = []
    for workload in matrix.networks:
        cells = [Cell(text=workload)]
        for device in matrix.variants:
            group = matrix.at(workload, device)
            figure = None if group is None else samples_per_joule(group)
            if group is None or figure is None:
                cells.append(Cell(reason="not run" if group is None else "power not measured"))
            else:
                cells.append(Cell.of(figure, run_id=group.run_id))
        rows.append(tuple(cells))
    return Table(title="Samples per joule", columns=columns, rows=tuple(rows))


def energy_findings(matrix: Matrix) -> Iterator[Finding]:
    """Samples per joule of each pair of devices, over the workloads that both have."""
    for one, other in combinations(matrix.variants, 2):
        pairs = [
            (own, figure.value / under.value, others)
            for workload in matrix.networks
            if (own := matrix.at(workload, one)) and (others := matrix.at(workload, other))
            if (figure := samples_per_joule(own)) and (under := samples_per_joule(others))
        ]
        if not pairs:
            continue
        mean = geometric_mean(ratio for _, ratio, _ in pairs)
        better, worse = (one, other) if mean >= 1 else (other, one)
        gain = max(mean, 1 / mean)
        where = f" over {len(pairs)} workloads" if len(pairs) > 1 else f" ({pairs[0][0].key[0]})"
        yield Finding(
            code="energy-efficiency",
            text=f"{better} trains {format_quantity(gain, '×')} as many samples per joule as "
            f"{worse}{where}.{_coverage(pairs[0][0], pairs[0][2], one, other)}",
            value=gain,
            unit="× the samples/J",
            caveats=caveats(*(g for own, _, others in pairs for g in (own, others))),
        )


def _coverage(own: Group[CellKey], others: Group[CellKey], one: str, other: str) -> str:
    """A sentence where the power of the two covers different parts of the machine."""
    first, second = _covered(own.ok), _covered(others.ok)
    if first == second:
        return ""
    return f" Power covers {first} of {one}, {second} of {other}."


def _covered(records: Sequence[RunRecord]) -> str:
    """`GPU board`, `CPU package + DRAM`: the parts without how they were read."""
    figures = (r.figures.get("samples_per_joule") for r in records)
    method = next((f.method for f in figures if f is not None), "")
    parts = method.partition(";")[0].split(" + ")
    return " + ".join(part.partition(" (")[0] for part in parts)
