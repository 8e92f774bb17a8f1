"""Ceilings of a device: fastest matrix product, memory copy, host-device copies and disk read.

Training speed is compared with these. Each operation is searched for its fastest size and shape
(worker/run/ceilings.py) and then timed twice: the fastest few milliseconds, before a power limit or
heat slows the device, and the sustained rate over seconds. If the catalogue has a datasheet of the
device, the percentage of its dense peak is shown.

The *ridge* is the rate of the product over the rate of the copy (S. Williams et al., Roofline, CACM
52(4), 2009): work with fewer operations per byte is memory-bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.experiments.analysis.answer import answer_of, cell_or_dash
from cubemesh.experiments.analysis.groups import Group, group_by, titled
from cubemesh.experiments.core.experiment import Context, Experiment, Plan, Scale
from cubemesh.machines.catalogue import Datasheet, Peak, find
from cubemesh.schema import (
    Answer,
    Ceiling,
    Cell,
    Column,
    Figure,
    Finding,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Table,
)
from cubemesh.schema.spec import Precision
from cubemesh.units import format_number, format_quantity

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
SECONDS = {Scale.QUICK: 2.0, Scale.DEFAULT: 5.0, Scale.FULL: 10.0}
"""Measuring time; a power limit takes effect within seconds."""
NAMES = {
    "copy": "copy in device memory",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "disk_read": "disk read",
}
Key = tuple[str, str]
"""(operation, pinned or pageable, or precision)."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `ceilings` besides the fields of its specs."""

    precisions: tuple[Precision, ...] = PRECISIONS
    """Precisions of the matrix products."""
    folder: str | None = None
    """Folder on the disk to read from; default: no disk is measured."""


def plan(settings: Settings, context: Context) -> Plan:
    """Every operation once; copies between host and device only with a GPU."""
    budget = replace(context.budget, seconds=SECONDS[context.scale], repeats=1)
    works = [Ceiling(operation="copy")]
    if context.has_gpu:
        works += [
            Ceiling(operation=operation, pinned=pinned)
            for operation in ("host_to_device", "device_to_host")
            for pinned in (True, False)
        ]
    specs = [
        RunSpec(work=Ceiling(), program=ProgramSettings(precision=precision), budget=budget)
        for precision in dict.fromkeys(settings.precisions)
    ]
    specs += [RunSpec(work=work, budget=budget) for work in works]
    if settings.folder is not None:
        specs.append(
            RunSpec(
                work=Ceiling(operation="disk_read", folder=settings.folder),
                placement=Placement(device="cpu"),
                program=ProgramSettings(framework="null"),
                budget=budget,
            )
        )
    yield specs


def answer(settings: Settings, records: Sequence[RunRecord]) -> Answer:
    """Findings and tables from the records of one `ceilings`."""
    groups = group_by(records, _key)
    products = [g for g in groups if g.key[0] == "matrix_product"]
    copies = [g for g in groups if g.key[0] != "matrix_product"]
    device = _device(records)
    sheet = find(device)
    return answer_of(
        EXPERIMENT,
        titled(f"Ceilings of {device or 'this device'}", [r for r in records if r.ok]),
        records,
        findings=_findings(products, copies, sheet, device),
        tables=(_products(products, sheet), _copies(copies, sheet)),
        notes=_notes(settings, sheet),
    )


def _key(record: RunRecord) -> Key:
    work = record.spec.work
    assert isinstance(work, Ceiling)
    if work.operation == "matrix_product":
        return work.operation, record.spec.program.precision
    between = work.operation in ("host_to_device", "device_to_host")
    return work.operation, ("pinned" if work.pinned else "pageable") if between else ""


def _device(records: Sequence[RunRecord]) -> str:
    """Name of the device; empty if nothing ran or it has none."""
    return next((rank.device_name for r in records for rank in r.ranks if rank.device_name), "")


def _figure(group: Group[Key], kind: str) -> Figure | None:
    unit = "flops" if group.key[0] == "matrix_product" else "bytes"
    return group.ok[0].figures.get(f"{kind}_{unit}_per_s") if group.ok else None


def _products(groups: Sequence[Group[Key]], sheet: Datasheet | None) -> Table:
    columns = (
        Column(name="precision"),
        Column(name="sustained", unit="FLOP/s"),
        Column(name="fastest", unit="FLOP/s"),
        Column(name="datasheet", unit="FLOP/s"),
        Column(name="% of datasheet", unit="%"),
        Column(name="shape"),
    )
    rows = []
    for group in groups:
        peak = sheet.peak(group.key[1]) if sheet else None
        rows.append(_row(group, group.key[1], None if peak is None else peak.flops_per_s))
    return Table(title="Matrix products", columns=columns, rows=tuple(rows))


def _copies(groups: Sequence[Group[Key]], sheet: Datasheet | None) -> Table:
    columns = (
        Column(name="copy"),
        Column(name="sustained", unit="B/s"),
        Column(name="fastest", unit="B/s"),
        Column(name="datasheet", unit="B/s"),
        Column(name="% of datasheet", unit="%"),
        Column(name="method"),
    )
    rows = []
    for group in groups:
        operation, memory = group.key
        name = f"{NAMES[operation]}, {memory}" if memory else NAMES[operation]
        memory_rate = sheet.value("memory_bytes_per_s") if sheet else None
        rows.append(_row(group, name, memory_rate if operation == "copy" else None))
    return Table(title="Copies", columns=columns, rows=tuple(rows))


def _row(group: Group[Key], name: str, stated: float | None) -> tuple[Cell, ...]:
    rate, fastest = _figure(group, "rate"), _figure(group, "fastest")
    if rate is None or fastest is None:
        return (Cell(text=name, run_id=group.run_id), *[group.cell(None)] * 5)
    return (
        Cell(text=name, run_id=group.run_id),
        group.cell(rate),
        group.cell(fastest),
        cell_or_dash(stated),
        cell_or_dash(stated and 100 * fastest.value / stated),
        Cell(text=rate.method),
    )


def _findings(
    products: Sequence[Group[Key]],
    copies: Sequence[Group[Key]],
    sheet: Datasheet | None,
    device: str,
) -> Iterator[Finding]:
    done = [(g, f) for g in products if (f := _figure(g, "fastest")) is not None]
    for group, fastest in sorted(done, key=lambda pair: -pair[1].value)[:1]:
        yield _best_product(group, fastest, sheet)
    copied = next((g for g in copies if g.key[0] == "copy" and g.ok), None)
    moved = _figure(copied, "rate") if copied else None
    if copied is not None and moved is not None:
        yield _memory(copied, moved, sheet)
        ridges = [
            f"{g.key[1]} {format_number(rate.value / moved.value, 2)}"
            for g in products
            if (rate := _figure(g, "rate")) is not None
        ]
        if ridges:
            yield Finding(
                code="roofline-ridge",
                text=f"Ridge of the roofline: {', '.join(ridges)} FLOP/B. Work with fewer "
                "operations per byte is memory-bound, with more compute-bound.",
            )
    yield from _links(copies)
    if sheet is None and device:
        yield Finding(
            code="unknown-device",
            text=f"The catalogue has no datasheet of {device}; only these measurements are known.",
        )


def _best_product(group: Group[Key], fastest: Figure, sheet: Datasheet | None) -> Finding:
    precision, rate = group.key[1], _figure(group, "rate")
    assert rate is not None
    peak = sheet.peak(precision) if sheet else None
    return Finding(
        code="fastest-matrix-product",
        question="How fast is its fastest matrix product?",
        text=f"Fastest matrix product ({precision}, {fastest.method}): "
        f"{format_quantity(fastest.value, 'FLOP/s')}{_share(fastest, peak)}, sustained "
        f"{format_quantity(rate.value, 'FLOP/s')}.",
        value=fastest.value,
        unit="FLOP/s",
        caveats=group.caveats,
    )


def _share(figure: Figure, peak: Peak | None) -> str:
    if peak is None:
        return ""
    share = 100 * figure.value / peak.flops_per_s
    stated = format_quantity(peak.flops_per_s, "FLOP/s")
    return f" ({share:.0f} % of the datasheet's {stated})"


def _memory(group: Group[Key], moved: Figure, sheet: Datasheet | None) -> Finding:
    stated = sheet.value("memory_bytes_per_s") if sheet else None
    share = f" ({100 * moved.value / stated:.0f} % of the datasheet's)" if stated else ""
    return Finding.of(
        code="memory-bandwidth",
        question="How fast is its memory?",
        text=f"A memory copy moves {format_quantity(moved.value, 'B/s')}{share}, read plus "
        "written.",
        figure=moved,
        unit="B/s",
        caveats=group.caveats,
    )


def _links(copies: Sequence[Group[Key]]) -> Iterator[Finding]:
    """Copies from pinned and pageable host memory, and disk bandwidth."""
    rates = {g.key: rate for g in copies if (rate := _figure(g, "rate")) is not None}
    pinned = rates.get(("host_to_device", "pinned"))
    pageable = rates.get(("host_to_device", "pageable"))
    if pinned and pageable:
        yield Finding(
            code="pinned-memory",
            text=f"Host to device: {format_quantity(pinned.value, 'B/s')} from pinned memory, "
            f"{pinned.value / pageable.value:.2g}× the {format_quantity(pageable.value, 'B/s')} "
            "from pageable memory.",
            value=pinned.value / pageable.value,
            unit="×",
        )
    disk = rates.get(("disk_read", ""))
    if disk:
        yield Finding(
            code="disk-bandwidth",
            text=f"Disk read: {format_quantity(disk.value, 'B/s')}.",
            value=disk.value,
            unit="B/s",
        )


def _notes(settings: Settings, sheet: Datasheet | None) -> Iterator[str]:
    yield (
        "Fastest is the best few milliseconds, before power or heat slow the device; sustained is "
        "the rate over seconds. Matrices hold normally distributed numbers: simpler data take less "
        "power and are multiplied faster."
    )
    if sheet is not None:
        sources = dict.fromkeys(
            sheet.figures[name].source
            for name in (*settings.precisions, "memory_bytes_per_s")
            if name in sheet.figures
        )
        yield f"Datasheet of {sheet.name}, dense peaks: {'; '.join(sources)}."
    if settings.folder is None:
        yield "No disk was measured. Set a folder on it with --set folder=PATH."


EXPERIMENT = Experiment(
    name="ceilings",
    question="How fast can this device multiply matrices and move data?",
    settings=Settings,
    works=(Ceiling,),
    varies={
        "precision": "precisions",
        "operation": "precisions",
        "pinned": "precisions",
        "size": "precisions",
        "shape": "precisions",
    },
    plan=plan,
    answer=answer,
    papers="[001] (utilization), [002], section 2.1",
)
