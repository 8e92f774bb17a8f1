"""NCCL's channels and adapters, compared with the rings of the model of the topology."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cubemesh.machines.topology.nccl_graphs import arrow, cycle, ring_differences
from cubemesh.schema import Cell, Column, Finding, NcclTopology, RunRecord, Table
from cubemesh.units import format_number, format_quantity


def nccl_records(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The first of the records on each number of devices for which NCCL reported its topology."""
    found: dict[int, RunRecord] = {}
    for record in records:
        if record.nccl is not None and (record.nccl.graphs or record.nccl.adapters):
            found.setdefault(record.spec.placement.devices, record)
    return list(found.values())


def nccl_findings(records: Sequence[RunRecord]) -> Iterator[Finding]:
    """NCCL's rings compared with the model's, and GPUDirect RDMA, by number of devices."""
    for record in nccl_records(records):
        assert record.nccl is not None
        yield from _rings(record.nccl, record.spec.placement.devices)
        yield from _gpudirect(record.nccl, record.spec.placement.devices)


def nccl_notes(records: Sequence[RunRecord]) -> Iterator[str]:
    """What could not be read, each once."""
    notes: dict[str, None] = {}
    for record in records:
        if record.nccl is None:
            continue
        notes |= dict.fromkeys(record.nccl.notes)
        if record.nccl.graphs and not record.nccl.adapters:
            notes["NCCL reports no network adapter, so GPUDirect RDMA does not apply."] = None
    yield from notes


def nccl_tables(records: Sequence[RunRecord]) -> Iterator[Table]:
    """NCCL's channels, with the model's rings, and its adapters."""
    for record in nccl_records(records):
        assert record.nccl is not None
        if record.nccl.graphs or record.nccl.model_rings:
            yield _channels(record.nccl, record)
        if record.nccl.adapters:
            yield _adapters(record.nccl, record)


def _rings(found: NcclTopology, devices: int) -> Iterator[Finding]:
    rings = found.rings
    if rings is None:
        return
    path = f" over {rings.inside}" if rings.inside else ""
    text = (
        f"NCCL on {devices} devices searched {rings.channels} "
        f"{'ring' if rings.channels == 1 else 'rings'} of "
        f"{format_quantity(rings.channel_bytes_per_s, 'B/s')}{path}, "
        f"{format_quantity(rings.bytes_per_s, 'B/s')} together"
    )
    if found.model_bytes_per_s is not None:
        count = sum(order.count for order in found.model_rings)
        text += (
            f"; the model of the topology finds {count} of "
            f"{format_quantity(found.model_bytes_per_s / count, 'B/s')}, "
            f"{format_quantity(found.model_bytes_per_s, 'B/s')} together by specification"
        )
        if rings.bytes_per_s:
            share = rings.bytes_per_s / found.model_bytes_per_s
            text += f" (NCCL {format_number(share, 2)} × that)"
        differences = ring_differences(found)
        text += f". Differences: {'; '.join(differences)}" if differences else "; the orders agree"
    yield Finding(code="nccl-rings", text=f"{text}.", value=rings.bytes_per_s, unit="B/s")


def _gpudirect(found: NcclTopology, devices: int) -> Iterator[Finding]:
    if not found.adapters:
        return
    direct = [adapter.name for adapter in found.adapters if adapter.gdr]
    without = [adapter.name for adapter in found.adapters if adapter.gdr is False]
    unknown = [adapter.name for adapter in found.adapters if adapter.gdr is None]
    parts = [
        f"{words} {', '.join(dict.fromkeys(names))}"
        for words, names in (("yes on", direct), ("no on", without), ("not known of", unknown))
        if names
    ]
    yield Finding(
        code="gpudirect-rdma",
        text=f"GPUDirect RDMA, by NCCL on {devices} devices: {'; '.join(parts)}.",
        remedy=""
        if direct or not without
        else "An InfiniBand or RoCE adapter needs the module "
        "nvidia-peermem, or DMA-BUF; sockets never have it.",
    )


def _channels(found: NcclTopology, record: RunRecord) -> Table:
    model = {cycle(order.order): order.count for order in found.model_rings}
    rows = []
    for graph in found.graphs:
        for order in graph.orders:
            own = cycle(order.order) if graph.pattern == "ring" else ()
            rows.append(
                (
                    Cell(text=f"NCCL, {graph.pattern}", run_id=record.run_id),
                    Cell(text=arrow(order.order)),
                    Cell(value=float(order.count)),
                    Cell(value=graph.channel_bytes_per_s),
                    Cell(value=order.count * graph.channel_bytes_per_s),
                    Cell(text=", ".join(filter(None, (graph.inside, graph.outside))) or "–"),
                    Cell(text="–" if not own else "yes" if own in model else "no"),
                )
            )
    count = sum(order.count for order in found.model_rings)
    each = found.model_bytes_per_s / count if found.model_bytes_per_s and count else None
    theirs = {cycle(o.order) for o in found.rings.orders} if found.rings else set()
    for order in found.model_rings:
        rows.append(
            (
                Cell(text="model, ring", run_id=record.run_id),
                Cell(text=arrow(order.order)),
                Cell(value=float(order.count)),
                Cell(text="–") if each is None else Cell(value=each),
                Cell(text="–") if each is None else Cell(value=order.count * each),
                Cell(text="–"),
                Cell(text="yes" if cycle(order.order) in theirs else "no"),
            )
        )
    return Table(
        title=f"Channels of NCCL on {record.spec.placement.devices} devices, and rings of the "
        "model",
        columns=(
            Column(name="graph"),
            Column(name="order"),
            Column(name="channels"),
            Column(name="per channel", unit="B/s"),
            Column(name="together", unit="B/s"),
            Column(name="path"),
            Column(name="in both"),
        ),
        rows=tuple(rows),
    )


def _adapters(found: NcclTopology, record: RunRecord) -> Table:
    words = {True: "yes", False: "no", None: "not known"}
    return Table(
        title="Network adapters that NCCL found",
        columns=(
            Column(name="adapter"),
            Column(name="bandwidth", unit="B/s"),
            Column(name="GPUDirect RDMA"),
        ),
        rows=tuple(
            (
                Cell(text=adapter.name, run_id=record.run_id),
                Cell(text="–") if adapter.bytes_per_s is None else Cell(value=adapter.bytes_per_s),
                Cell(text=words[adapter.gdr]),
            )
            for adapter in found.adapters
        ),
    )
