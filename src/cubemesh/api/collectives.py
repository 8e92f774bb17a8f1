"""Collective operations between devices: sweeps over message sizes, in the rows of nccl-tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cubemesh.api.arguments import AnyStore
from cubemesh.api.run import run
from cubemesh.errors import CubemeshError
from cubemesh.experiments.collectives.report import all_rank_points, collective_of, redop
from cubemesh.measure.collective_sweep import bus_bandwidth
from cubemesh.runs import Observer
from cubemesh.schema import RunRecord, SweepPoint
from cubemesh.schema.collective import ROOTED

_ALIASES = {"alltoall": "all-to-all", "sendrecv": "send-receive"}


@dataclass(frozen=True, kw_only=True, repr=False)
class Sweeps:
    """Sweeps of collectives, one record for each operation."""

    records: tuple[RunRecord, ...]
    unsaved: CubemeshError | None = None
    """Why records still wait in the spool; None if all are in the store."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each operation and size."""
        return [row for record in self.records for row in sweep_rows(record)]

    @property
    def pairs(self) -> list[dict[str, Any]]:
        """A row for each pair of ranks."""
        return [pair for record in self.records for pair in pair_rows(record)]

    @property
    def ok(self) -> bool:
        """Whether a sweep was measured, none failed, and no result was wrong."""
        failed = any(
            not r.outcome.status.expected or r.figure("wrong_elements") for r in self.records
        )
        return not failed and any(r.ok for r in self.records)

    @property
    def exit_code(self) -> int:
        """Of the command: 1 where `ok` is false, 1 or 75 where records wait in the spool."""
        if not self.ok:
            return 1
        return 0 if self.unsaved is None else self.unsaved.exit_code

    def __repr__(self) -> str:
        lines = [f"Sweeps({len(self.rows)} rows, ok={self.ok})"]
        for record in self.records:
            rates = [
                row[way]["busbw_gb_per_s"]
                for row in sweep_rows(record)
                for way in ("out_of_place", "in_place")
                if row[way] is not None
            ]
            best = f"{max(rates):.3g} GB/s bus bandwidth at most" if rates else "not measured"
            name, devices = collective_of(record).collective, record.spec.placement.devices
            lines.append(f"  {name} on {devices} devices: {best}")
        return "\n".join(lines)


def collectives(
    *operations: str,
    min_bytes: str | int = "1K",
    max_bytes: str | int | None = None,
    step_bytes: str | int | None = None,
    factor: int | None = None,
    iterations: int = 20,
    warmup_iterations: int = 5,
    devices: int | None = None,
    checks: int = 1,
    data_type: str = "float",
    reduction: str = "sum",
    device: str = "auto",
    hosts: str | Iterable[str] = (),
    store: AnyStore = None,
    no_cache: bool = False,
    wait: str | float = 0.0,
    observer: Observer | None = None,
) -> Sweeps:
    """Time collectives over a range of message sizes, and check each result; all-reduce by default,
    `"all"` for every operation.

    Sizes are bytes or texts such as "8M". `max_bytes` is by default 1 GiB between GPUs and 16 MiB
    between processors, `devices` all GPUs or two groups of cores.
    """
    names = [operation_name(operation) for operation in operations or ("all-reduce",)]
    on_cpu = device == "cpu"
    given = {
        "operations": None if "all" in names else names,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes or ("16M" if on_cpu else None),
        "step_bytes": step_bytes,
        "factor": factor,
        "steps": iterations,
        "warmup_iterations": warmup_iterations,
        "devices": devices or (2 if on_cpu else None),
        "checks": checks,
        "data_type": data_type,
        "reduction": reduction,
        "device": device,
    }
    found = run(
        "collectives",
        settings={name: value for name, value in given.items() if value is not None},
        hosts=hosts,
        store=store,
        no_cache=no_cache,
        wait=wait,
        observer=observer,
    )
    return Sweeps(records=found.experiments[0].records, unsaved=found.unsaved)


def operation_name(text: str) -> str:
    """The name of an operation: nccl-tests' `all_reduce_perf` is `all-reduce`."""
    name = text.strip().lower().removesuffix("_perf").replace("_", "-")
    return _ALIASES.get(name, name)


def sweep_rows(record: RunRecord) -> list[dict[str, Any]]:
    """A row for each size; `out_of_place` and `in_place` are null where not measured."""
    work, devices = collective_of(record), record.spec.placement.devices
    points = all_rank_points(record)
    by_size: dict[int, dict[bool, SweepPoint]] = {}
    for point in points:
        by_size.setdefault(point.size_bytes, {})[point.in_place] = point
    rows = []
    for size, own in by_size.items():
        rows.append(
            {
                "operation": work.collective,
                "devices": devices,
                "size": size,
                "count": next(iter(own.values())).count,
                "type": work.data_type,
                "redop": redop(work),
                "root": 0 if work.collective in ROOTED else -1,
                "out_of_place": _way(own.get(False), work.collective, devices),
                "in_place": _way(own.get(True), work.collective, devices),
                "run_id": record.run_id,
            }
        )
    return rows


def _way(point: SweepPoint | None, collective: str, devices: int) -> dict[str, Any] | None:
    if point is None:
        return None
    bus = bus_bandwidth(point, collective, devices)
    return {
        "time_us": 1e6 * point.time_s,
        "algbw_gb_per_s": point.algorithm_bytes_per_s / 1e9,
        "busbw_gb_per_s": bus.value / 1e9,
        "busbw_low_gb_per_s": None if bus.low is None else bus.low / 1e9,
        "busbw_high_gb_per_s": None if bus.high is None else bus.high / 1e9,
        "wrong": point.wrong,
        "iterations": point.iterations,
        "groups": len(point.seconds),
    }


def pair_rows(record: RunRecord) -> Iterator[dict[str, Any]]:
    """A row for each pair of ranks that was measured."""
    for point in record.sweep:
        if point.pair is not None:
            yield {
                "operation": collective_of(record).collective,
                "devices": record.spec.placement.devices,
                "from": point.pair[0],
                "to": point.pair[1],
                "size": point.size_bytes,
                "time_us": 1e6 * point.time_s,
                "algbw_gb_per_s": point.algorithm_bytes_per_s / 1e9,
                "wrong": point.wrong,
                "run_id": record.run_id,
            }
