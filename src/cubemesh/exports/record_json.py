"""JSON form of a record: what `--json` prints and what a line of JSON lines holds.

JSON has no NaN and no infinity: such a value (the loss of a run that diverged) becomes null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cubemesh.experiments.analysis.comparison import ratio_of_record
from cubemesh.forecast.roofline import measured_roof, points_of
from cubemesh.measure.timing.stopping_rule import confidence_of
from cubemesh.schema import NetworkWork, Part, RunRecord, RunSpec
from cubemesh.schema.comparison import Ratio
from cubemesh.schema.serialization import to_plain
from cubemesh.statistics import (
    FEWEST_FOR_INTERVAL,
    Interval,
    mad,
    median,
    median_interval,
    percentile,
)

SCHEMA = 1
"""Version of the documents: it increases when a field changes its meaning or is removed."""


def finite(value: Any) -> Any:
    """Plain data with NaN and infinities replaced by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def step_statistics(record: RunRecord) -> dict[str, float | int | None] | None:
    """Step time in seconds over the measured windows; None without any.

    `low` and `high` are the 95 % interval of the median, None for too few windows.
    """
    steps = [window.step_s for window in record.measured]
    if not steps:
        return None
    middle, interval = step_median(record)
    return {
        "median": middle,
        "mean": math.fsum(steps) / len(steps),
        "mad": mad(steps),
        "p05": percentile(steps, 5),
        "p95": percentile(steps, 95),
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "n": len(steps),
    }


def step_median(record: RunRecord) -> tuple[float, Interval | None]:
    """The median step time in seconds over the measured windows, of which there is one at least,
    and its interval; None for too few windows."""
    steps = [window.step_s for window in record.measured]
    if len(steps) < FEWEST_FOR_INTERVAL:
        return median(steps), None
    return median(steps), median_interval(steps, confidence_of(record.spec.budget))


def attribution(parts: Sequence[Part]) -> dict[str, float]:
    """Seconds of the mean step by part; they add up to `step_s.mean`. A part that is impossible on
    this many devices is absent, not 0."""
    return {part.name: part.seconds for part in parts}


def spec_json(spec: RunSpec) -> dict[str, Any]:
    """A spec in its four parts, with its main fields at the top level as well."""
    work = spec.work
    return {
        **to_plain(spec),
        "framework": spec.program.framework,
        "network": work.network if isinstance(work, NetworkWork) else None,
        "batch_per_device": spec.batch_per_device,
        "devices": spec.placement.devices,
        "global_batch": spec.global_batch,
        "sync": spec.program.sync,
    }


def roofline_json(record: RunRecord) -> list[dict[str, Any]]:
    """Roofline points of a run whose layers were timed, the largest loss first; empty otherwise."""
    return [
        {
            **to_plain(point),
            "flops_per_byte": point.intensity,
            "flops_per_s": point.flops_per_s,
            "lost_s": None if point.floor_s is None else point.lost_s,
        }
        for point in points_of(record, measured_roof(record))
    ]


def record_json(record: RunRecord) -> dict[str, Any]:
    """A record; see docs/report.md."""
    outcome = record.outcome
    document = {
        "run_id": record.run_id,
        "spec": spec_json(record.spec),
        "spec_id": record.key.spec_id,
        "workload_id": record.spec.workload_id,
        "outcome": outcome.status.value,
        "outcome_detail": {
            "message": outcome.message,
            "origin": outcome.origin,
            "facts": to_plain(outcome.facts),
        },
        "throughput_per_s": record.figure("throughput_per_s"),
        "step_s": step_statistics(record),
        "attribution_s": attribution(record.parts) or None,
        "rank_attribution_s": [attribution(parts) for parts in record.rank_parts],
        **{
            name: to_plain(getattr(record, name))
            for name in (
                "figures",
                "phases",
                "windows",
                "curves",
                "scored_samples",
                "parts",
                "breakdowns",
                "sweep",
                "library",
                "warnings",
            )
        },
        "roofline": roofline_json(record),
        "unmeasured": to_plain(record.unmeasured),
        "ranks": to_plain(record.ranks),
        "series": list(record.series),
        "artifacts": dict(record.artifacts),
        "comparison": ratio_json(ratio_of_record(record)),
        "machine_id": record.key.machine_id,
        "software_id": record.key.software_id,
        "code_version": record.key.code_version,
        "repeat": record.key.repeat,
        "attempt": record.attempt,
        "source": record.source,
        "started_utc": record.started_utc,
        "elapsed_s": record.elapsed_s,
        "record_schema": record.schema,
    }
    return {name: finite(value) for name, value in document.items()}


def ratio_json(ratio: Ratio | None) -> dict[str, Any] | None:
    """B's throughput over A's, its interval, and the verdict."""
    return None if ratio is None else {**to_plain(ratio), "half_width": ratio.half_width}
