"""Database rows: the searchable columns of each dataclass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row

from cubemesh.schema import ExperimentRun, Machine, RunRecord
from cubemesh.store.json_text import to_text

MOST_CANDIDATES = 10


def record_row(record: RunRecord) -> dict[str, Any]:
    """The row of the table `records`; the parts of the run's key are separate columns."""
    work = record.spec.work
    return {
        **asdict(record.key),
        "run_id": record.run_id,
        "attempt": record.attempt,
        "workload_id": record.spec.workload_id,
        "work": work.kind,
        "network": getattr(work, "network", None),
        "framework": record.spec.program.framework,
        "batch_per_device": record.spec.batch_per_device,
        "outcome": record.outcome.status.value,
        "started_utc": record.started_utc,
        "record": to_text(record),
    }


def machine_row(machine: Machine) -> dict[str, Any]:
    """The row of the table `machines`."""
    return {
        "machine_id": machine.machine_id,
        "hostname": machine.hostname,
        "machine": to_text(machine),
    }


def experiment_run_row(experiment_run: ExperimentRun) -> dict[str, Any]:
    """The row of the table `experiment_runs`."""
    return {
        "experiment_run_id": experiment_run.experiment_run_id,
        "experiment": experiment_run.experiment,
        "suite": experiment_run.suite,
        "machine_id": experiment_run.machine_id,
        "started_utc": experiment_run.started_utc,
        "complete": experiment_run.complete,
        "experiment_run": to_text(experiment_run),
    }


def ambiguous(prefix: str, found: Sequence[Row[Any]]) -> str:
    """The message for the beginning of an id that several rows of `records` share."""
    lines = [
        f"  {row.run_id}  {row.network or row.work}, {row.framework}, "
        f"batch {row.batch_per_device or '–'}, {row.outcome}, {row.started_utc}"
        for row in found[:MOST_CANDIDATES]
    ]
    if len(found) > MOST_CANDIDATES:
        lines.append("  …")
    listed = "\n".join(lines)
    return f"'{prefix}' is the prefix of several run ids:\n{listed}\nGive more digits."
