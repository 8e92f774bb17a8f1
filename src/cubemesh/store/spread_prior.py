"""Prior for the spread between fresh processes of a workload, from earlier measurements.

Both numbers are estimated by `benchmarks/process_spread.py` from the repeated runs in
benchmarks/records, which also says why a kind of workload has no prior; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from cubemesh.schema import RunRecord, TrainSteps
from cubemesh.statistics import Spread, median

BUSY_PERCENT = 90.0
"""GPU utilization from which the GPU limits the throughput, and not the host's launches."""
UTILIZATION = "gpu_utilization_percent"


class SpreadKind(Enum):
    """Workloads whose processes differ alike; the value is the name in words."""

    CPU = "on a CPU"
    GPU_BOUND = "that keep a GPU busy 90 % of the time or more"
    LAUNCH_BOUND = "that keep a GPU busy less than 90 % of the time"


PRIORS = {
    SpreadKind.GPU_BOUND: Spread(
        variance=0.003**2,
        freedom=1.0,
        source="of 17 earlier pairs of runs (little-cnn on H200)",
    ),
}
"""Kind → s₀² and d₀ (statistics/process_spread.py)."""


def spread_kind(records: Sequence[RunRecord]) -> SpreadKind | None:
    """The kind of runs of one workload; None for several devices, for input other than synthetic,
    and where the utilization of the GPU is unknown."""
    if not records or not all(
        isinstance(r.spec.work, TrainSteps)
        and r.spec.work.data == "synthetic"
        and r.spec.placement.devices == 1
        and r.ranks
        for r in records
    ):
        return None
    if all(r.ranks[0].device == "cpu" for r in records):
        return SpreadKind.CPU
    busy = [p for r in records if (p := r.figure(UTILIZATION)) is not None]
    if not busy:
        return None
    return SpreadKind.GPU_BOUND if median(busy) >= BUSY_PERCENT else SpreadKind.LAUNCH_BOUND


def prior_spread(records: Sequence[RunRecord]) -> Spread | None:
    """The prior of runs of one workload; None without earlier measurements of its kind."""
    kind = spread_kind(records)
    return None if kind is None else PRIORS.get(kind)
