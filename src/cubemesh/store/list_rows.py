"""Rows of the tables that lists of runs read: a run without its record, its figures, and the
experiment runs that it answers.

They are written in the transaction that stores the record, and computed again from all records when
a migration changes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from cubemesh.schema import ExperimentRun, RunRecord
from cubemesh.store.tables import figures, machines, run_experiments, runs

_LONGEST_REASON = 500
_LONGEST_NAME = 200
_THROUGHPUT = "throughput_per_s"
_RUNS_AT_A_TIME = 500
"""Ids in one statement."""


class Listed(NamedTuple):
    """A record and its number in the order of storing."""

    sequence: int
    record: RunRecord


def run_row(listed: Listed, hostname: str = "") -> dict[str, Any]:
    """The row of `runs`."""
    record = listed.record
    spec, work = record.spec, record.spec.work
    network = getattr(work, "network", None)
    rate = record.figures.get(_THROUGHPUT)
    reason = record.outcome.message.replace("\x00", "")
    words = (
        *(record.run_id, network, work.kind, spec.program.framework, spec.program.precision),
        *(spec.program.sync, hostname, record.outcome.status.value, reason[:_LONGEST_REASON]),
    )
    return {
        "sequence": listed.sequence,
        "run_id": record.run_id,
        "spec_id": record.key.spec_id,
        "workload_id": spec.workload_id,
        "machine_id": record.key.machine_id,
        "software_id": record.key.software_id,
        "hostname": hostname,
        "work": work.kind,
        "network": network,
        "framework": spec.program.framework,
        "precision": spec.program.precision,
        "strategy": spec.program.sync,
        "device": _device(record),
        "devices": spec.placement.devices,
        "batch_per_device": spec.batch_per_device,
        "global_batch": spec.global_batch,
        "data": getattr(work, "data", None),
        "outcome": record.outcome.status.value,
        "reason": reason[:_LONGEST_REASON],
        "started_utc": record.started_utc,
        "elapsed_s": record.elapsed_s,
        "code_version": record.key.code_version,
        "samples_per_s": None if rate is None else _finite(rate.value),
        "samples_per_s_low": None if rate is None else _finite(rate.low),
        "samples_per_s_high": None if rate is None else _finite(rate.high),
        "windows": len(record.measured),
        "interleaved": spec.against is not None,
        "warnings": len(record.warnings),
        "words": " ".join(word for word in words if word).lower(),
    }


def figure_rows(listed: Listed) -> list[dict[str, Any]]:
    """The rows of `figures`."""
    return [
        {
            "sequence": listed.sequence,
            "run_id": listed.record.run_id,
            "name": name[:_LONGEST_NAME],
            "value": _finite(figure.value),
            "low": _finite(figure.low),
            "high": _finite(figure.high),
            "n": figure.n,
            "unit": figure.unit,
        }
        for name, figure in listed.record.figures.items()
    ]


def insert_listed(
    connection: Connection, listed: Iterable[Listed], hostnames: Mapping[str, str]
) -> None:
    """Write the rows of records that were just stored."""
    found = list(listed)
    rows = [run_row(one, hostnames.get(one.record.key.machine_id, "")) for one in found]
    if rows:
        connection.execute(insert(runs), rows)
    for some in _batches([one.record.run_id for one in found]):
        known = select(run_experiments).where(run_experiments.c.run_id.in_(some))
        for link in connection.execute(known).all():  # saved before its run, which was spooled
            _name_experiment(connection, [link.run_id], link.experiment, link.experiment_run_id)
    values = [row for one in found for row in figure_rows(one)]
    if values:
        connection.execute(insert(figures), values)


def hostnames_by_machine(connection: Connection, machine_id: str | None = None) -> dict[str, str]:
    """The hostname of every stored machine, or of one."""
    query = select(machines.c.machine_id, machines.c.hostname)
    if machine_id is not None:
        query = query.where(machines.c.machine_id == machine_id)
    return {row.machine_id: row.hostname for row in connection.execute(query)}


def name_machine(connection: Connection, machine_id: str, hostname: str) -> None:
    """Write the hostname of a machine into its runs, which may be stored before it."""
    unnamed = (runs.c.machine_id == machine_id) & (runs.c.hostname != hostname)
    name = hostname.lower()
    connection.execute(
        update(runs).where(unnamed).values(hostname=hostname, words=runs.c.words.concat(f" {name}"))
    )


def link_experiment_run(connection: Connection, experiment_run: ExperimentRun) -> None:
    """Write which runs answer an experiment run. A run keeps the first that it was measured for in
    its row."""
    identity, experiment = experiment_run.experiment_run_id, experiment_run.experiment
    own = run_experiments.c.experiment_run_id == identity
    linked = set(connection.execute(select(run_experiments.c.run_id).where(own)).scalars())
    wanted = dict.fromkeys(experiment_run.run_ids)
    if gone := linked.difference(wanted):
        for some in _batches(sorted(gone)):
            these = run_experiments.c.run_id.in_(some)
            connection.execute(delete(run_experiments).where(own, these))
    for some in _batches([one for one in wanted if one not in linked]):
        rows = [
            {"experiment_run_id": identity, "run_id": run_id, "experiment": experiment}
            for run_id in some
        ]
        connection.execute(insert(run_experiments), rows)
        _name_experiment(connection, some, experiment, identity)


def _name_experiment(
    connection: Connection, run_ids: list[str], experiment: str, experiment_run_id: str
) -> None:
    first = runs.c.run_id.in_(run_ids) & runs.c.experiment_run_id.is_(None)
    values = {"experiment": experiment, "experiment_run_id": experiment_run_id}
    connection.execute(update(runs).where(first).values(values))


def _batches(ids: list[str]) -> list[list[str]]:
    return [ids[i : i + _RUNS_AT_A_TIME] for i in range(0, len(ids), _RUNS_AT_A_TIME)]


def _device(record: RunRecord) -> str:
    """The kind of device that was used, or that the spec asks for."""
    used = record.ranks[0].device if record.ranks else record.spec.placement.device
    return used.partition(":")[0][:_LONGEST_NAME]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
