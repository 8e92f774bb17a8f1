"""Device utilization of a run: its FLOPs and bytes against ceilings and datasheet.

    operations a second   matrix operations of the work, a multiply-add counted as two, by its time
    bytes a second        bytes that its layers move, each operand read once and each result
                          written once, by its time
    MFU                   the first, over the dense peak of the precision that ran
    memory use            the second, over the bandwidth

    HFU                   as MFU, with the operations of recomputed segments counted again

each against the datasheet, where the catalogue knows the device, and against the fastest matrix
product and copy that were measured on the same device with as many threads; of several devices,
against so many times that. The update is left out of both counts. Kernels that fuse layers move
fewer bytes than are counted, so memory use may exceed 100 %; MFU may where a fast algorithm takes
fewer operations (`fast_algorithms.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cubemesh.forecast.fast_algorithms import Operations, above_peak, operations
from cubemesh.machines.catalogue import find
from cubemesh.networks import build_for
from cubemesh.networks.cost import totals
from cubemesh.schema.record import Figure, RunRecord
from cubemesh.schema.warning import Warning
from cubemesh.schema.work import (
    Ceiling,
    Forward,
    ForwardBackward,
    Infer,
    OwnStep,
    Train,
    TrainSteps,
)
from cubemesh.units import format_quantity


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a device with their sources; None where unknown."""

    flops_per_s: float | None = None
    flops_source: str = ""
    bytes_per_s: float | None = None
    bytes_source: str = ""

    def times(self, devices: int) -> Limits:
        """What `devices` alike can do together."""
        if devices == 1:
            return self
        flops, moved = self.flops_per_s, self.bytes_per_s
        return Limits(
            flops_per_s=None if flops is None else flops * devices,
            flops_source=f"{devices} devices: {self.flops_source}",
            bytes_per_s=None if moved is None else moved * devices,
            bytes_source=f"{devices} devices: {self.bytes_source}",
        )


def with_utilization(record: RunRecord, measured: Sequence[RunRecord]) -> RunRecord:
    """`record` with the figures above, and a warning where it exceeds a peak; as it is where
    nothing was trained. `measured` are records of ceilings, those of other devices too."""
    work = record.spec.work
    rate = record.figures.get("throughput_per_s")
    if isinstance(work, OwnStep) and rate is not None and record.ranks:
        return _with_own_utilization(record, rate, work.samples, measured)
    if (
        not isinstance(work, (TrainSteps, Forward, ForwardBackward, Infer, Train))
        or rate is None
        or not record.ranks
    ):
        return record  # a stage of the input computes no network, though it names one
    if record.spec.program.script is not None:  # nothing was computed
        return record
    network, batch = build_for(work), work.batch_per_device
    cost, passes = totals(network, batch, record.spec.program.precision), operations(network, batch)
    forward = isinstance(work, Forward | Infer)
    done = passes.forward if forward else passes.both
    moved = (cost.forward if forward else cost.total).moved_bytes
    flops = rate.scaled(done.counted / batch, "FLOP/s")
    moves = rate.scaled(moved / batch, "B/s")
    figures = {"model_flops_per_s": flops, "model_bytes_per_s": moves}
    again = record.figures.get("recomputed_percent")
    warnings: list[Warning] = []
    for prefix, code, limits in (
        ("", "above-peak", datasheet_limits(record).times(len(record.ranks))),
        ("ceiling_", "above-ceiling", measured_limits(record, measured).times(len(record.ranks))),
    ):
        figures |= dict(_shares(prefix, flops, moves, limits))
        if again is not None and (mfu := figures.get(f"{prefix}mfu_percent")) is not None:
            figures[f"{prefix}hfu_percent"] = mfu.scaled(
                1 + again.value / 100, "%", f"{mfu.method}, with operations computed again"
            )
        warnings += _excess(code, flops, limits, done)
    return replace(
        record,
        figures={**record.figures, **figures},
        warnings=tuple(dict.fromkeys((*record.warnings, *warnings))),
    )


def _with_own_utilization(
    record: RunRecord, rate: Figure, samples: int, measured: Sequence[RunRecord]
) -> RunRecord:
    """A record of a step of the user's own code with its FLOP/s, as counted by dispatch, and its
    MFU in the precision that the spec gives."""
    counted = record.figures.get("step_flops")
    if counted is None:
        return record
    flops = rate.scaled(counted.value / samples, "FLOP/s", counted.method)
    figures = {"model_flops_per_s": flops}
    for name, limits in (
        ("mfu_percent", datasheet_limits(record)),
        ("ceiling_mfu_percent", measured_limits(record, measured)),
    ):
        if limits.flops_per_s is not None:
            limit = format_quantity(limits.flops_per_s, "FLOP/s")
            method = f"of {limit} ({limits.flops_source})"
            figures[name] = flops.scaled(100 / limits.flops_per_s, "%", method)
    return replace(record, figures={**record.figures, **figures})


def datasheet_limits(record: RunRecord) -> Limits:
    """Limits by the datasheet of a record's device, for its precision."""
    sheet = find(record.ranks[0].device_name) if record.ranks else None
    if sheet is None:
        return Limits()
    peak, bandwidth = sheet.peak(record.spec.program.precision), sheet.value("memory_bytes_per_s")
    return Limits(
        flops_per_s=None if peak is None else peak.flops_per_s,
        flops_source="" if peak is None else f"dense {peak.computed_in}, {peak.source}",
        bytes_per_s=bandwidth,
        bytes_source="" if bandwidth is None else sheet.figures["memory_bytes_per_s"].source,
    )


def measured_limits(record: RunRecord, measured: Sequence[RunRecord]) -> Limits:
    """The fastest product, in the precision that ran, and the fastest copy that were measured on a
    record's device with as many threads."""
    alike = [m for m in measured if _same_place(m, record)]
    precision = record.spec.program.precision
    products = _fastest(
        [m for m in alike if m.spec.program.precision == precision], "matrix_product", "flops"
    )
    copies = _fastest(alike, "copy", "bytes")
    return Limits(
        flops_per_s=products[0] if products else None,
        flops_source=f"measured, {products[1]}" if products else "",
        bytes_per_s=copies[0] if copies else None,
        bytes_source=f"measured, {copies[1]}" if copies else "",
    )


def _same_place(ceiling: RunRecord, record: RunRecord) -> bool:
    if not (ceiling.ok and ceiling.ranks and record.ranks):
        return False
    one, other = ceiling.ranks[0], record.ranks[0]
    return (
        ceiling.key.machine_id == record.key.machine_id
        and one.device.partition(":")[0] == other.device.partition(":")[0]
        and (one.device_uuid, one.device_name) == (other.device_uuid, other.device_name)
        and (one.threads == other.threads or one.device != "cpu")
        and ceiling.spec.program.script is None
    )


def _fastest(records: Sequence[RunRecord], operation: str, unit: str) -> tuple[float, str] | None:
    """(sustained rate, run) of the fastest one."""
    found = [
        (figure.value, f"run {record.run_id}")
        for record in records
        if isinstance(record.spec.work, Ceiling) and record.spec.work.operation == operation
        if (figure := record.figures.get(f"rate_{unit}_per_s")) is not None
    ]
    return max(found, default=None)


def _shares(
    prefix: str, flops: Figure, moves: Figure, limits: Limits
) -> Iterator[tuple[str, Figure]]:
    for name, figure, limit, unit, source in (
        ("mfu", flops, limits.flops_per_s, "FLOP/s", limits.flops_source),
        ("memory_use", moves, limits.bytes_per_s, "B/s", limits.bytes_source),
    ):
        if limit is not None:
            method = f"of {format_quantity(limit, unit)} ({source})"
            yield f"{prefix}{name}_percent", figure.scaled(100 / limit, "%", method)


def _excess(code: str, flops: Figure, limits: Limits, done: Operations) -> Iterator[Warning]:
    if limits.flops_per_s is None:
        return
    limit = format_quantity(limits.flops_per_s, "FLOP/s")
    share = flops.value / limits.flops_per_s
    warning = above_peak(share, done, "The run", f"{limit} ({limits.flops_source})")
    if warning is not None:
        yield replace(warning, code=code)
