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
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from statistics import geometric_mean
from typing import TYPE_CHECKING

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.answer import answer_of
from cubemesh.experiments.analysis.groups import (
    Group,
    caveats,
    group_by,
    setting_label,
    throughput_unit,
)
from cubemesh.experiments.analysis.matrix import CellKey, Matrix, throughput
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, import_records
from cubemesh.schema import (
    Answer,
    Axis,
    Figure,
    Finding,
    ProgramSettings,
    RunRecord,
    Status,
    Table,
    TrainSteps,
)
from cubemesh.units import format_quantity

if TYPE_CHECKING:
    from cubemesh.store import Store

HOUR_S = 3600.0
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

    def __post_init__(self) -> None:
        priced(self.prices)


def priced(prices: Sequence[str]) -> dict[str, float]:
    """`["H200=2.5"]` as a table; UsageError for invalid prices."""
    table = {}
    for text in prices:
        name, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not name.strip() or not (math.isfinite(price) and price > 0):
            raise UsageError(
                f"prices={text} is not a price: write NAME=PRICE with part of a device name and "
                "its price per hour, as in prices=H200=2.5,Xeon=0.2."
            )
        table[name.strip()] = price
    return table


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
            latest.setdefault(where, {})[_place(record)] = record
    return [
        record
        for own in latest.values()
        if len({_device(r) for r in own.values()}) > 1
        for record in own.values()
    ]


def _device(record: RunRecord) -> str:
    """One kind of device of one machine; its GPUs count as equal."""
    return f"{record.key.machine_id} {record.ranks[0].device.partition(':')[0]}"


def _place(record: RunRecord) -> str:
    """So many of these devices, and how they synchronize."""
    return f"{_device(record)} {record.spec.placement.devices} {record.spec.program.sync}"


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings, tables and chart from the gathered records."""
    names = _names(records)
    groups = group_by(records, lambda r: (_workload(r), names[_place(r)]))
    matrix = Matrix(tuple(groups), row_name="workload")
    prices = _prices(settings, matrix)
    unit = throughput_unit(records)
    tables = [matrix.table(f"Training, {unit}", "", throughput)] if records else []
    if prices:
        tables.append(_money_table(matrix, prices))
    return answer_of(
        EXPERIMENT,
        f"Devices on {len(matrix.networks)} workloads",
        records,
        findings=_findings(settings, matrix, prices),
        tables=tables,
        charts=matrix.chart(
            "devices",
            f"{unit} by workload and device",
            Axis(name="throughput", unit=unit, from_zero=True),
            throughput,
        ),
        notes=(
            "Only records that differ in the device and the number of devices alone are compared, "
            "the latest of each; the batch size is that of each device. Over several workloads a "
            "ratio is their geometric mean.",
        ),
    )


def _names(records: Sequence[RunRecord]) -> dict[str, str]:
    """Name of each device; with its host if two have the same name."""
    bare = {_place(r): _name(r) for r in records}
    count = Counter(bare.values())
    hosts = {_place(r): r.ranks[0].host for r in records}
    return {p: n if count[n] == 1 else f"{n}, {hosts[p]}" for p, n in bare.items()}


def _name(record: RunRecord) -> str:
    rank, count = record.ranks[0], record.spec.placement.devices
    name = rank.device_name or f"{rank.device.partition(':')[0]} of {rank.host}"
    if count == 1:
        return name
    sync = record.spec.program.sync
    how = {"all-reduce": "", NO_SYNC: ", no sync"}.get(sync, f", {sync}")
    if rank.device.startswith("cpu"):
        return f"{name} as {count} ranks{how}"
    return f"{count} × {name}{how}"


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


def _prices(settings: Settings, matrix: Matrix) -> dict[str, float]:
    """Price per hour of each device that has one, by its name."""
    found = {}
    for part, price in priced(settings.prices).items():
        for device in matrix.variants:
            hosts = {
                r.ranks[0].host for g in matrix.groups if g.key[1] == device for r in g.records
            }
            if any(part.casefold() in name.casefold() for name in (device, *hosts)):
                found[device] = price * _priced_devices(matrix, device)
    return found


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
    for one, other in _pairs(matrix):
        shares = list(matrix.ratios(one, other))
        if not shares:
            continue
        faster = geometric_mean(r.value for _, r, _ in shares) >= 1
        fast, slow = (one, other) if faster else (other, one)
        speed_up = _comparison(fast, slow, list(matrix.ratios(fast, slow)))
        yield speed_up
        if fast in prices and slow in prices:
            yield _cost_effectiveness(fast, slow, speed_up, prices)
    for part in priced(settings.prices):
        if not any(part.casefold() in d.casefold() for d in prices):
            yield Finding(
                code="unused-price", text=f"No device name contains '{part}'; its price is unused."
            )
    for device, why, workloads in matrix.gaps():
        yield Finding(code="failed-run", text=f"{device}, {'; '.join(workloads)}: {why}.")


def _pairs(matrix: Matrix) -> Iterator[tuple[str, str]]:
    """The columns to compare: of different devices, with the same number of devices each, or with
    numbers that one of the two has not run."""
    first = {g.key[1]: g.records[0] for g in reversed(matrix.groups)}
    columns = {
        name: (_device(r), r.spec.placement.devices, r.spec.program.sync)
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
