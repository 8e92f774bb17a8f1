"""Tables of the store, and the rows of records, machines and experiment runs.

Only types that every database has are used. The record itself is one JSON text; the columns next to
it are for queries. `runs`, `figures` and `run_experiments` are computed from records for lists
(list_rows.py).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
)

from cubemesh.errors import StoreError
from cubemesh.schema import ExperimentRun, Machine, RunKey, RunRecord
from cubemesh.store.damage import MAX_REASON, check_record, reason_of
from cubemesh.store.json_text import from_text, to_text
from cubemesh.untrusted import clean

metadata = MetaData()

about = Table(
    "cubemesh_store",
    metadata,
    Column("version", Integer, nullable=False),
    Column("opened_utc", String(40), nullable=False),
)

records = Table(
    "records",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String(40), nullable=False, unique=True),
    Column("spec_id", String(40), nullable=False),
    Column("machine_id", String(40), nullable=False),
    Column("software_id", String(40), nullable=False),
    Column("code_version", String(200), nullable=False),
    Column("repeat", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("workload_id", String(40), nullable=False),
    Column("work", String(40), nullable=False),
    Column("network", String(200)),
    Column("framework", String(200), nullable=False),
    Column("batch_per_device", Integer),
    Column("outcome", String(40), nullable=False),
    Column("started_utc", String(40), nullable=False),
    Column("record", Text, nullable=False),
    Index("records_by_key", "spec_id", "machine_id", "software_id", "code_version", "repeat"),
    Index("records_by_network", "network", "framework"),
    Index("records_by_start", "started_utc"),
)

series = Table(
    "series",
    metadata,
    Column("run_id", String(40), ForeignKey("records.run_id"), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("device", String(200), primary_key=True),
    Column("chunk", Integer, primary_key=True, autoincrement=False),
    Column("t0_s", Float(53), nullable=False),
    Column("samples", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

machines = Table(
    "machines",
    metadata,
    Column("machine_id", String(40), primary_key=True),
    Column("hostname", String(255), nullable=False),
    Column("machine", Text, nullable=False),
)

experiment_runs = Table(
    "experiment_runs",
    metadata,
    Column("experiment_run_id", String(40), primary_key=True),
    Column("experiment", String(200), nullable=False),
    Column("suite", String(200)),
    Column("machine_id", String(40), nullable=False),
    Column("started_utc", String(40), nullable=False, index=True),
    Column("complete", Boolean, nullable=False),
    Column("experiment_run", Text, nullable=False),
)

_NAME = String(200).with_variant(String(200, collation="C"), "postgresql")
"""Text in the order of its bytes in every database."""
_MOMENT = String(40).with_variant(String(40, collation="C"), "postgresql")

runs = Table(
    "runs",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("run_id", String(40), nullable=False, unique=True),
    Column("spec_id", String(40), nullable=False),
    Column("workload_id", String(40), nullable=False),
    Column("machine_id", String(40), nullable=False),
    Column("software_id", String(40), nullable=False),
    Column("hostname", String(255), nullable=False),
    Column("work", _NAME, nullable=False),
    Column("network", _NAME),
    Column("framework", _NAME, nullable=False),
    Column("precision", _NAME, nullable=False),
    Column("strategy", _NAME, nullable=False),
    Column("device", _NAME, nullable=False),
    Column("devices", Integer, nullable=False),
    Column("batch_per_device", Integer),
    Column("global_batch", Integer),
    Column("data", _NAME),
    Column("experiment", _NAME),
    Column("experiment_run_id", String(40)),
    Column("outcome", _NAME, nullable=False),
    Column("reason", Text, nullable=False),
    Column("started_utc", _MOMENT, nullable=False),
    Column("elapsed_s", Float(53), nullable=False),
    Column("code_version", _NAME, nullable=False),
    Column("samples_per_s", Float(53)),
    Column("samples_per_s_low", Float(53)),
    Column("samples_per_s_high", Float(53)),
    Column("windows", Integer, nullable=False),
    Column("interleaved", Boolean, nullable=False),
    Column("warnings", Integer, nullable=False),
    Column("words", Text, nullable=False),
    Index("runs_by_workload", "workload_id", "machine_id", "started_utc"),
    Index("runs_by_start", "started_utc", "sequence"),
    *(
        Index(f"runs_by_{name}", name, "started_utc", "sequence")
        for name in (
            *("network", "machine_id", "outcome", "hostname", "work", "framework", "precision"),
            *("strategy", "device", "devices", "batch_per_device", "global_batch", "experiment"),
            *("elapsed_s", "samples_per_s"),
        )
    ),
)
"""One row a run, without its record."""

figures = Table(
    "figures",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("name", _NAME, primary_key=True),
    Column("run_id", String(40), nullable=False),
    Column("value", Float(53)),
    Column("low", Float(53)),
    Column("high", Float(53)),
    Column("n", Integer, nullable=False),
    Column("unit", String(200), nullable=False),
    Index("figures_by_value", "name", "value", "sequence"),
)
"""Figures of runs; a value that is infinite or not a number is NULL."""

run_experiments = Table(
    "run_experiments",
    metadata,
    Column("experiment_run_id", String(40), primary_key=True),
    Column("run_id", String(40), primary_key=True, index=True),
    Column("experiment", _NAME, nullable=False, index=True),
)
"""Which runs answer which experiment run."""

artifacts = Table(
    "artifacts",
    metadata,
    Column("run_id", String(40), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("bytes", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""Files of runs, where the database is a server; beside an SQLite file they are in a folder."""
COMPUTED = (runs, figures, run_experiments)
"""Tables computed from records and experiment runs."""


def key_columns(key: RunKey) -> dict[str, Any]:
    """The parts of a key that have a column; `data_id` is in the record alone."""
    return {name: value for name, value in asdict(key).items() if name in records.c}


def record_row(record: RunRecord) -> dict[str, Any]:
    """The row of `records`; the parts of the run's key are separate columns, but for
    `data_id`."""
    work = record.spec.work
    return {
        **key_columns(record.key),
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


def record_of(row: Row[Any], what: str = "") -> RunRecord:
    """The record in a row of `records`; StoreError, naming `what` or the run, if it is damaged."""
    what = what or f"Run {clean(str(row.run_id), MAX_REASON)}"
    record = from_text(RunRecord, row.record, what)
    try:
        check_record(record, row.run_id)
    except ValueError as error:
        raise StoreError(f"{what} is damaged: {reason_of(error)}.") from error
    return record


def machine_row(machine: Machine) -> dict[str, Any]:
    """The row of `machines`."""
    return {
        "machine_id": machine.machine_id,
        "hostname": machine.hostname,
        "machine": to_text(machine),
    }


def experiment_run_row(experiment_run: ExperimentRun) -> dict[str, Any]:
    """The row of `experiment_runs`."""
    return {
        "experiment_run_id": experiment_run.experiment_run_id,
        "experiment": experiment_run.experiment,
        "suite": experiment_run.suite,
        "machine_id": experiment_run.machine_id,
        "started_utc": experiment_run.started_utc,
        "complete": experiment_run.complete,
        "experiment_run": to_text(experiment_run),
    }
