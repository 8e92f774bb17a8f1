"""Which measured times does a stored sweep of a collective give a prediction?

The faster way, out of place or in place, at each size. Operations that no prediction asks for, and
pairs of ranks, give none.
"""

from __future__ import annotations

from cubemesh.errors import UsageError
from cubemesh.model import Collective, RunRecord
from cubemesh.predict.calibration import OPERATIONS, Sweep


def sweep_of(record: RunRecord) -> Sweep:
    """The times of a collective by size; UsageError where they are of no use to a prediction."""
    work = record.spec.work
    operation = next(
        (o for o in OPERATIONS if isinstance(work, Collective) and o == work.collective), None
    )
    where = f"--calibrate {record.run_id}"
    if operation is None or not isinstance(work, Collective):
        known = ", ".join(OPERATIONS)
        raise UsageError(f"{where}: predictions take measured times of {known}. Name such a run.")
    fastest: dict[float, float] = {}
    for point in record.sweep:
        if point.pair is None:
            size = float(point.size_bytes)
            fastest[size] = min(point.time_s, fastest.get(size, point.time_s))
    if len(fastest) < 2:
        raise UsageError(f"{where}: a sweep has two sizes at least, and this run {len(fastest)}.")
    return Sweep(
        operation=operation,
        devices=record.spec.placement.devices,
        size_bytes=tuple(sorted(fastest)),
        seconds=tuple(fastest[size] for size in sorted(fastest)),
        source=f"run {record.run_id}, {record.library}",
    )
