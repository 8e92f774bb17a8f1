"""Tables and findings of rates: matrix products, convolutions, copies and disks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.experiments.analysis.answer import cell_or_dash
from cubemesh.experiments.analysis.groups import Group
from cubemesh.machines.catalogue import Datasheet, Peak
from cubemesh.schema import Ceiling, Cell, Column, Figure, Finding, RunRecord, Table
from cubemesh.units import format_number, format_quantity

NAMES = {
    "copy": "copy in device memory",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "disk_read": "disk read",
    "disk_write": "disk write",
    "disk_mixed": "disk read and write",
}
DISK_CODES = {
    "disk_read": "disk-bandwidth",
    "disk_write": "disk-write-bandwidth",
    "disk_mixed": "disk-mixed-bandwidth",
}
TOGETHER = " + "
"""Between folders that were measured at once."""
RAID_BYTES_PER_S = 2e9
"""Streaming read of the four SSDs in RAID 0 of a DGX-1 ([002], section 2.1)."""
Key = tuple[str, str]
"""(operation; and pinned or pageable, the precision, or the folders)."""


def group_key(record: RunRecord) -> Key:
    """What a run measured."""
    work = record.spec.work
    assert isinstance(work, Ceiling)
    if work.operation in ("matrix_product", "convolution"):
        return work.operation, record.spec.program.precision
    if work.folders:
        return work.operation, TOGETHER.join(work.folders)
    between = work.operation in ("host_to_device", "device_to_host")
    return work.operation, ("pinned" if work.pinned else "pageable") if between else ""


def device_name(records: Sequence[RunRecord]) -> str:
    """Name of the device; empty if nothing ran or it has none."""
    return next((rank.device_name for r in records for rank in r.ranks if rank.device_name), "")


def _figure(group: Group[Key], kind: str) -> Figure | None:
    unit = "flops" if group.key[0] in ("matrix_product", "convolution") else "bytes"
    return group.ok[0].figures.get(f"{kind}_{unit}_per_s") if group.ok else None


def product_table(title: str, groups: Sequence[Group[Key]], sheet: Datasheet | None) -> Table:
    """Rates in operations per second, by precision."""
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
    return Table(title=title, columns=columns, rows=tuple(rows))


def copy_table(groups: Sequence[Group[Key]], sheet: Datasheet | None) -> Table:
    """Rates in bytes per second: copies, and disks."""
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
        operation, where = group.key
        name = f"{NAMES[operation]}, {where}" if where else NAMES[operation]
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


def findings(
    products: Sequence[Group[Key]],
    convolutions: Sequence[Group[Key]],
    copies: Sequence[Group[Key]],
    sheet: Datasheet | None,
    device: str,
) -> Iterator[Finding]:
    """The fastest product and convolution, memory, its ridge, the link to the host, and disks."""
    done = [(g, f) for g in products if (f := _figure(g, "fastest")) is not None]
    for group, fastest in sorted(done, key=lambda pair: -pair[1].value)[:1]:
        yield _best_product(group, fastest, sheet)
    rates = [(g, f) for g in convolutions if (f := _figure(g, "fastest")) is not None]
    for group, fastest in sorted(rates, key=lambda pair: -pair[1].value)[:1]:
        yield _best_convolution(group, fastest, sheet)
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
    yield from _pinned(copies)
    yield from _disks(copies)
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


def _best_convolution(group: Group[Key], fastest: Figure, sheet: Datasheet | None) -> Finding:
    peak = sheet.peak(group.key[1]) if sheet else None
    return Finding(
        code="fastest-convolution",
        text=f"Fastest convolution ({group.key[1]}, {fastest.method}): "
        f"{format_quantity(fastest.value, 'FLOP/s')}{_share(fastest, peak)}.",
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


def _rates(copies: Sequence[Group[Key]]) -> dict[Key, Figure]:
    return {g.key: rate for g in copies if (rate := _figure(g, "rate")) is not None}


def _pinned(copies: Sequence[Group[Key]]) -> Iterator[Finding]:
    """Copies from pinned and pageable host memory."""
    rates = _rates(copies)
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


def _disks(copies: Sequence[Group[Key]]) -> Iterator[Finding]:
    """Each disk's bandwidth, and that of several at once compared with their sum."""
    rates = _rates(copies)
    groups = {g.key: g for g in copies}
    for (operation, where), rate in rates.items():
        if operation not in DISK_CODES:
            continue
        words = f"{NAMES[operation].capitalize()}, {where.replace(TOGETHER, ' and ')}"
        text = f"{words}: {format_quantity(rate.value, 'B/s')}"
        if TOGETHER in where:
            alone = [rates.get((operation, folder)) for folder in where.split(TOGETHER)]
            total = sum(figure.value for figure in alone if figure is not None)
            text += " together"
            if None not in alone:
                text += (
                    f", {format_number(rate.value / total, 2)} × the sum of each alone, "
                    f"{format_quantity(total, 'B/s')}"
                )
        if operation == "disk_read":
            text += (
                f"; {format_number(rate.value / RAID_BYTES_PER_S, 2)} × the "
                f"{format_quantity(RAID_BYTES_PER_S, 'B/s')} that four SSDs in RAID 0 stream in a "
                "DGX-1 ([002], section 2.1)"
            )
        yield Finding(
            code=DISK_CODES[operation],
            text=f"{text}.",
            value=rate.value,
            unit="B/s",
            caveats=groups[operation, where].caveats,
        )
