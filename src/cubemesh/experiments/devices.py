"""Comparison of devices on the same workloads: throughput, and samples per unit of money.

Nothing is measured: the records of the store are compared, and those of other machines' stores. Two
records have the same *workload* if network, input, batch size per device, framework and every other
setting agree and only the device, the number of devices and their gradient synchronization differ;
the latest record of each workload, device and number of devices is used. So one CPU is compared
with one GPU and with four. Two machines with the same numbers of devices are compared number by
number; how one machine scales is the question of `weak-scaling`. A ratio of
two devices over several workloads is the geometric mean of their ratios (Fleming and Wallace, How
not to lie with statistics, CACM 29, 1986), with the smallest and largest. Samples per unit of money
are samples per hour over the price per hour.

With `stacks=true` the software stacks of one machine are compared too: runs on the same hardware
with other versions are columns of their own, and what differs between the stacks is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, pairwise
from statistics import geometric_mean
from typing import TYPE_CHECKING

from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import (
    Group,
    caveats,
    group_by,
    setting_label,
    throughput_unit,
)
from cubemesh.experiments.analysis.matrix import CellKey, Matrix, throughput
from cubemesh.experiments.analysis.training_costs import (
    DevicePrices,
    cheapest,
    cost_table,
    energy_findings,
    energy_table,
    priced,
    prices_by_device,
)
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, import_records
from cubemesh.forecast.training.cost import Prices, read_prices
from cubemesh.machines.stack import StackDifference, software_differences
from cubemesh.schema import (
    Answer,
    Axis,
    Cell,
    Column,
    Figure,
    Finding,
    ProgramSettings,
    RunRecord,
    Status,
    Table,
    TrainSteps,
)
from cubemesh.schema.serialization import digest
from cubemesh.units import format_quantity

if TYPE_CHECKING:
    from cubemesh.store import Store

HOUR_S = 3600.0
HOURLY = ("prices", "price per hour")
PURCHASE = ("purchase_prices", "purchase price")
"""A setting, and what its prices are."""
MOST_NAMED = 6
"""Most differences between two stacks that a sentence names; the table has all."""
NO_SYNC = "none"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `devices`."""

    networks: tuple[str, ...] = ()
    """Only workloads of these networks; default: all."""
    stores: tuple[str, ...] = ()
    """Stores of other machines (paths or URLs): their runs are copied into this one first."""
    prices: tuple[str, ...] = ()
    """Price per hour as NAME=PRICE, with part of a device or host name: H200=2.5."""
    purchase_prices: tuple[str, ...] = ()
    """Purchase price of a device as NAME=PRICE: H200=30000."""
    cost: tuple[str, ...] = ()
    """Cost of a training, KEY=NUMBER: power_price and co2_per_kwh (kg) of a kWh,
    depreciation_years (3), epochs (90), samples (of an epoch, 1.28 million), tokens (of the
    training, instead), and price_per_hour or purchase_price of devices without one."""

    stacks: bool = False
    """Whether software stacks of one machine are compared too, instead of only the latest run of
    each device."""

    def __post_init__(self) -> None:
        priced(self.prices, *HOURLY)
        priced(self.purchase_prices, *PURCHASE)
        read_prices(self.cost)

    @property
    def hourly(self) -> dict[str, float]:
        """Part of a name → price per hour."""
        return priced(self.prices, *HOURLY)

    @property
    def purchase(self) -> dict[str, float]:
        """Part of a name → purchase price."""
        return priced(self.purchase_prices, *PURCHASE)

    @property
    def common(self) -> Prices:
        """Prices of any device, and the training that they are for."""
        return read_prices(self.cost)


def plan(settings: Settings, context: Context) -> Plan:
    """Nothing is measured."""
    yield from ()


def gather(settings: Settings, store: Store, records: Sequence[RunRecord] = ()) -> list[RunRecord]:
    """The latest record of each device, for every workload of at least two devices."""
    import_records(store, settings.stores)
    latest: dict[tuple[object, ...], dict[str, RunRecord]] = {}
    for record in store.records():
        work, program = record.spec.work, record.spec.program
        if not isinstance(work, TrainSteps) or not record.ranks or program.script is not None:
            continue
        if record.outcome.status is Status.NOT_INSTALLED:
            continue
        if not settings.networks or work.network in settings.networks:
            where = (work, replace(program, sync=NO_SYNC))
            latest.setdefault(where, {})[_column(settings, record)] = record
    return [
        record
        for own in latest.values()
        if len({_kind(settings, r) for r in own.values()}) > 1
        for record in own.values()
    ]


def _device(record: RunRecord) -> str:
    """One kind of device of one machine; its GPUs count as equal. What was imported is separate
    from what was measured."""
    kind = record.ranks[0].device.partition(":")[0]
    return f"{record.key.machine_id} {kind}{f' {record.source}' if record.source else ''}"


def _kind(settings: Settings, record: RunRecord) -> str:
    """A device, and with `stacks` one of its software stacks."""
    return f"{_device(record)} {_stack_id(record)}" if settings.stacks else _device(record)


def _place(record: RunRecord) -> str:
    """So many of these devices, and how they synchronize."""
    return f"{_device(record)} {record.spec.placement.devices} {record.spec.program.sync}"


def _column(settings: Settings, record: RunRecord) -> str:
    """A number of devices, and with `stacks` one of their software stacks."""
    return f"{_place(record)} {_stack_id(record)}" if settings.stacks else _place(record)


def _stack_id(record: RunRecord) -> str:
    """Equal for equal versions; environment variables may differ."""
    if record.stack is None:
        return record.key.software_id
    return digest(replace(record.stack, variables={}))


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the gathered records."""
    names = _names(settings, records)
    groups = group_by(records, lambda r: (_workload(r), names[_column(settings, r)]))
    matrix = Matrix(tuple(groups), row_name="workload")
    hourly = prices_by_device(settings.hourly, matrix)
    prices = {column: price * _priced_devices(matrix, column) for column, price in hourly.items()}
    costs = DevicePrices(
        common=settings.common,
        hourly=hourly,
        purchase=prices_by_device(settings.purchase, matrix),
    )
    unit = throughput_unit(records)
    tables = [matrix.table(f"Training, {unit}", "", throughput)] if records else []
    if prices:
        tables.append(_money_table(matrix, prices))
    if (energy := energy_table(matrix)) is not None:
        tables.append(energy)
    asked = settings.cost or settings.prices or settings.purchase_prices
    table = cost_table(matrix, costs) if asked else None
    if table is not None:
        tables.append(table)
    stacks = list(_stacks(settings, records, names))
    tables += [_stack_table(pair) for pair in stacks if pair.differences]
    return answer_of(
        EXPERIMENT,
        f"Devices on {len(matrix.networks)} workloads",
        records,
        findings=(
            *_findings(settings, matrix, prices),
            *cheapest(matrix, costs),
            *map(_stack_finding, stacks),
        ),
        tables=tables,
        charts=matrix.chart(
            "devices",
            f"{unit} by workload and device",
            Axis(name="throughput", unit=unit, from_zero=True),
            throughput,
        ),
        notes=(
            "Only records that differ in the device, the number of devices"
            f"{' or the stack' if settings.stacks else ''} alone are compared, the latest of each; "
            "the batch size is that of each device. Over several workloads a ratio is their "
            "geometric mean.",
            *(
                (
                    "A training costs devices times price per hour times hours where it is rented, "
                    "and the depreciation of the devices in these hours with the electricity that "
                    "the measured power takes where it is owned (docs/power.md).",
                )
                if table is not None
                else ()
            ),
        ),
    )


def _names(settings: Settings, records: Sequence[RunRecord]) -> dict[str, str]:
    """Column → name of its device; with its host if two have the same name, and with the number of
    its stack, in the order of their first runs, if it has several."""
    bare = {_place(r): _name(r) for r in records}
    count = Counter(bare.values())
    hosts = {_place(r): r.ranks[0].host for r in records}
    whole = {p: n if count[n] == 1 else f"{n}, {hosts[p]}" for p, n in bare.items()}
    columns: dict[str, list[str]] = {}
    for record in sorted(records, key=lambda r: r.started_utc):
        own = columns.setdefault(_place(record), [])
        if (column := _column(settings, record)) not in own:
            own.append(column)
    return {
        column: whole[place] if len(own) == 1 else f"{whole[place]}, stack {number}"
        for place, own in columns.items()
        for number, column in enumerate(own, start=1)
    }


def _name(record: RunRecord) -> str:
    rank, count = record.ranks[0], record.spec.placement.devices
    name = rank.device_name or f"{rank.device.partition(':')[0]} of {rank.host}"
    if record.source:
        name = f"{name} ({record.source.partition(' (')[0]})"
    if count == 1:
        return name
    sync = record.spec.program.sync
    how = {"all-reduce": "", NO_SYNC: ", no sync"}.get(sync, f", {sync}")
    if rank.device.startswith("cpu"):
        return f"{name} as {count} ranks{how}"
    return f"{count} × {name}{how}"


@dataclass(frozen=True)
class _StackPair:
    """Two software stacks of one device, the earlier first."""

    names: tuple[str, str]
    differences: tuple[StackDifference, ...]
    known: bool


def _stacks(
    settings: Settings, records: Sequence[RunRecord], names: dict[str, str]
) -> Iterator[_StackPair]:
    """Each stack with the next of the same device."""
    if not settings.stacks:
        return
    latest: dict[str, dict[str, RunRecord]] = {}
    for record in sorted(records, key=lambda r: r.started_utc):
        latest.setdefault(_place(record), {})[_column(settings, record)] = record
    for columns in latest.values():
        for (one, first), (other, second) in pairwise(columns.items()):
            known = first.stack is not None and second.stack is not None
            found = (
                software_differences(first.stack, second.stack)
                if first.stack is not None and second.stack is not None
                else ()
            )
            yield _StackPair((names[one], names[other]), found, known)


def _stack_finding(pair: _StackPair) -> Finding:
    one, other = pair.names
    if not pair.known:
        return Finding(
            code="unknown-stack",
            text=f"What differs between {one} and {other} is unknown: a run is of a version of "
            "cubemesh that did not store its software.",
            remedy="Run it again with --no-cache.",
        )
    named = [f"{d.what} {d.first} → {d.second}" for d in pair.differences]
    rest = f"; and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return Finding(
        code="stack-differences",
        question="What differs between the software stacks?",
        text=f"From {one} to {other}: {'; '.join(named[:MOST_NAMED])}{rest}.",
        value=float(len(named)),
        unit="differences",
    )


def _stack_table(pair: _StackPair) -> Table:
    return Table(
        title=f"From {pair.names[0]} to {pair.names[1]}",
        columns=tuple(Column(name=name) for name in ("kind", "item", *pair.names)),
        rows=tuple(
            tuple(Cell(text=text) for text in (d.group, d.what, d.first, d.second))
            for d in pair.differences
        ),
    )


def _workload(record: RunRecord) -> str:
    """Network and batch size, and all other settings that differ from the default."""
    work, program = record.spec.work, record.spec.program
    assert isinstance(work, TrainSteps)
    parts = [work.network, f"batch size {work.batch_per_device}"]
    if work.image_size is not None:
        parts.append(f"{work.image_size} pixels")
    if work.data != "synthetic":
        parts.append(work.data)
    named = {"kind", "network", "batch_per_device", "image_size", "data", "sync"}
    usual_work = TrainSteps(network=work.network, batch_per_device=work.batch_per_device)
    for part, other in ((work, usual_work), (program, ProgramSettings())):
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name not in named and value != getattr(other, field.name):
                parts.append(setting_label(field.name, value))
    return " · ".join(parts)


def _priced_devices(matrix: Matrix, column: str) -> int:
    """How many devices with a price of their own a column has; ranks of a CPU share one price."""
    record = next(g.records[0] for g in matrix.groups if g.key[1] == column)
    return 1 if record.ranks[0].device.startswith("cpu") else record.spec.placement.devices


def _money_table(matrix: Matrix, prices: dict[str, float]) -> Table:
    own = Matrix(tuple(g for g in matrix.groups if g.key[1] in prices), matrix.row_name)

    def reading(group: Group[CellKey]) -> Figure | None:
        return _per_money(group, prices[group.key[1]])

    return own.table("Samples per unit of money", "", reading)


def _per_money(group: Group[CellKey], price: float) -> Figure | None:
    rate = group.throughput
    return None if rate is None else rate.scaled(HOUR_S / price, "samples")


def _findings(settings: Settings, matrix: Matrix, prices: dict[str, float]) -> Iterator[Finding]:
    if not matrix.groups:
        yield Finding(
            code="no-common-workload",
            text="No workload was measured on two devices.",
            remedy="Run the same experiment with device=cpu and on the GPU, or add the store of "
            "another machine with --set stores=PATH.",
        )
        return
    for one, other in _pairs(settings, matrix):
        shares = list(matrix.ratios(one, other))
        if not shares:
            continue
        faster = geometric_mean(r.value for _, r, _ in shares) >= 1
        fast, slow = (one, other) if faster else (other, one)
        speed_up = _comparison(fast, slow, list(matrix.ratios(fast, slow)))
        yield speed_up
        if fast in prices and slow in prices:
            yield _cost_effectiveness(fast, slow, speed_up, prices)
    yield from energy_findings(matrix)
    for part, price in (*settings.hourly.items(), *settings.purchase.items()):
        if not prices_by_device({part: price}, matrix):
            yield Finding(
                code="unused-price", text=f"No device name contains '{part}'; its price is unused."
            )
    for device, why, workloads in matrix.gaps():
        yield Finding(code="failed-run", text=f"{device}, {'; '.join(workloads)}: {why}.")


def _pairs(settings: Settings, matrix: Matrix) -> Iterator[tuple[str, str]]:
    """The columns to compare: of different devices or stacks, with the same number of devices each,
    or with numbers that one of the two has not run."""
    first = {g.key[1]: g.records[0] for g in reversed(matrix.groups)}
    columns = {
        name: (_kind(settings, r), r.spec.placement.devices, r.spec.program.sync)
        for name, r in first.items()
    }
    kinds = [columns[name] for name in matrix.variants]
    for one, other in combinations(matrix.variants, 2):
        (device, count, sync), (other_device, other_count, other_sync) = (
            columns[one],
            columns[other],
        )
        if device == other_device:
            continue
        same = (count, sync) == (other_count, other_sync)
        alone = (device, other_count, other_sync) not in kinds or (
            (other_device, count, sync) not in kinds
        )
        if same or alone:
            yield one, other


def _comparison(
    fast: str, slow: str, shares: Sequence[tuple[str, Figure, tuple[Group[CellKey], ...]]]
) -> Finding:
    mean = geometric_mean(r.value for _, r, _ in shares)
    least, most = (pick(shares, key=lambda s: s[1].value) for pick in (min, max))
    text = f"{fast} trains {format_quantity(mean, '×')} as fast as {slow}"
    if len(shares) > 1:
        text += (
            f" over {len(shares)} workloads, from {format_quantity(least[1].value, '×')} "
            f"({least[0]}) to {format_quantity(most[1].value, '×')} ({most[0]})"
        )
    else:
        text += f" ({shares[0][0]})"
    return Finding(
        code="device-speed-up",
        question="How do the devices compare?",
        text=f"{text}.",
        value=mean,
        unit="× as fast",
        low=least[1].low if len(shares) == 1 else None,
        high=least[1].high if len(shares) == 1 else None,
        caveats=caveats(*(g for _, _, groups in shares for g in groups)),
    )


def _cost_effectiveness(
    fast: str, slow: str, speed_up: Finding, prices: dict[str, float]
) -> Finding:
    worth = (speed_up.value or 0) * prices[slow] / prices[fast]
    better, other = (fast, slow) if worth >= 1 else (slow, fast)
    return Finding(
        code="cost-effectiveness",
        text=f"{better} trains {format_quantity(max(worth, 1 / worth), '×')} as many samples per "
        f"unit of money as {other} (price per hour: {prices[better]:g} and {prices[other]:g}).",
        value=max(worth, 1 / worth),
        unit="× the samples per unit of money",
        caveats=speed_up.caveats,
    )


EXPERIMENT = Experiment(
    name="devices",
    question="How does one machine compare with another, and a CPU with a GPU?",
    settings=Settings,
    works=(),
    varies={},
    plan=plan,
    answer=answer,
    gather=gather,
    papers="[000] (prices), [003] and [004] (comparison of devices)",
)
