"""JSON documents of `--json`.

Every document is an `envelope`: `{"schema": 1, "kind": …}` and its own fields. JSON has no NaN and
no infinity: such a value (the loss of a run that diverged) becomes null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cubemesh.experiments.analysis.comparison import ratio_of_record
from cubemesh.experiments.tune.report import words
from cubemesh.experiments.tune.search import Search
from cubemesh.experiments.tune.search_space import FIELDS, Configuration
from cubemesh.forecast.roofline import measured_roof, points_of
from cubemesh.schema import Answer, Figure, Machine, NetworkWork, Part, RunRecord, RunSpec
from cubemesh.schema.comparison import Ratio
from cubemesh.schema.serialization import to_plain
from cubemesh.statistics import FEWEST_FOR_INTERVAL, bootstrap_interval, mad, median, percentile
from cubemesh.views.facts.machine import gpu_topology

if TYPE_CHECKING:
    from cubemesh.api.compare import Comparison
    from cubemesh.api.run import RunResult
    from cubemesh.api.tune import TuneResult

SCHEMA = 1
"""Version of the documents: it increases when a field changes its meaning or is removed."""


def envelope(kind: str, **fields: Any) -> dict[str, Any]:
    """The document of one command: its schema version, its kind, and its fields."""
    return {"schema": SCHEMA, "kind": kind, **{name: finite(v) for name, v in fields.items()}}


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

    `low` and `high` are the 95 % bootstrap interval of the median, None for too few windows.
    """
    steps = [window.step_s for window in record.measured]
    if not steps:
        return None
    interval = bootstrap_interval(steps) if len(steps) >= FEWEST_FOR_INTERVAL else None
    return {
        "median": median(steps),
        "mean": math.fsum(steps) / len(steps),
        "mad": mad(steps),
        "p05": percentile(steps, 5),
        "p95": percentile(steps, 95),
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "n": len(steps),
    }


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
        "started_utc": record.started_utc,
        "elapsed_s": record.elapsed_s,
        "record_schema": record.schema,
    }
    return {name: finite(value) for name, value in document.items()}


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer: findings, tables, charts, warnings, notes."""
    return {name: finite(value) for name, value in to_plain(answer).items()}


def machine_json(machine: Machine) -> dict[str, Any]:
    """The document of a machine, with its id, its usable memory, and the topology of several GPUs
    (null where it is not known)."""
    return envelope(
        "machine",
        machine_id=machine.machine_id,
        usable_memory_bytes=machine.memory.usable_bytes,
        topology=_topology(machine),
        **to_plain(machine),
    )


def comparison_json(found: Comparison) -> dict[str, Any]:
    """The document of `cubemesh compare`."""
    gate, compared = found.gate, found.compared
    sides = {
        name: {
            "asked": side.text,
            "run_ids": [r.run_id for r in side.records],
            "records": [record_json(r) for r in side.records],
        }
        for name, side in (("a", compared.first), ("b", compared.second))
    }
    return envelope(
        "comparison",
        ratio=ratio_json(found.ratio),
        fail_below=None if gate is None else gate.below,
        breached=None if gate is None else found.ratio.breaches(gate.below),
        differences=[to_plain(d) for d in compared.differences],
        answer=answer_json(found.answer),
        **sides,
    )


def ratio_json(ratio: Ratio | None) -> dict[str, Any] | None:
    """B's throughput over A's, its interval, and the verdict."""
    return None if ratio is None else {**to_plain(ratio), "half_width": ratio.half_width}


def _topology(machine: Machine) -> dict[str, Any] | None:
    found = gpu_topology(machine)
    if found is None:
        return None
    from cubemesh.views.facts.topology import topology_json  # loads networkx

    return topology_json(found)


def run_json(found: RunResult) -> dict[str, Any]:
    """The document of `cubemesh run`: every record once, every answer, and the first by itself."""
    answers = [answer_json(answer) for answer in found.answers]
    return envelope(
        "run",
        records=[record_json(record) for record in found.records],
        answer=answers[0] if answers else None,
        answers=answers,
        comparisons=[
            {
                "workload_id": one.second.records[0].spec.workload_id,
                "baseline_run_ids": [r.run_id for r in one.first.records],
                "run_ids": [r.run_id for r in one.second.records],
                "ratio": ratio_json(one.ratio),
                "differences": [to_plain(d) for d in one.differences],
            }
            for one in found.comparisons
        ],
        fail_below=None if found.gate is None else found.gate.below,
    )


def tuning_json(found: TuneResult) -> dict[str, Any]:
    """The document of `cubemesh tune`: the best setting, the steps to it, and every trial."""
    search, settings = found.search, found.settings
    return envelope(
        "tuning",
        experiment_run_id=found.answered.experiment_run.experiment_run_id,
        network=settings.network,
        devices=settings.devices[0],
        batch_per_device=settings.batch_per_device,
        complete=found.complete,
        best=None if search.best is None else _configuration(search, search.best),
        to_stock=_figure(found.speedup),
        steps=[
            {
                "set": list(step.changes),
                "throughput_per_s": _figure(step.rate),
                "to_before": _figure(step.to_before),
                "to_stock": _figure(step.to_stock),
                "run_ids": [r.run_id for r in step.group.records],
            }
            for step in found.steps
        ],
        tried=[_tried(search, configuration) for configuration in search.tried],
        untried=[_configuration(search, configuration) for configuration in search.untried],
        answer=answer_json(found.answer),
    )


def _configuration(search: Search, configuration: Configuration) -> dict[str, Any]:
    return {
        "name": words(search, configuration),
        "settings": {name: getattr(configuration, name) for name in FIELDS},
    }


def _tried(search: Search, configuration: Configuration) -> dict[str, Any]:
    group, rejected = search.group(configuration), search.rejected.get(configuration)
    return {
        **_configuration(search, configuration),
        "outcome": group.records[0].outcome.status.value,
        "message": group.records[0].outcome.message,
        "throughput_per_s": _figure(group.throughput),
        "rejected": to_plain(rejected) if rejected else None,
        "run_ids": [r.run_id for r in group.records],
    }


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else to_plain(figure)
