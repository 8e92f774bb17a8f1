"""Import of collective measurements: nccl-tests logs, and sweeps saved with `--json`.

An imported sweep is a record of the machine its ranks were on, with its own experiment run, so that
results and reports show it; its framework is `nccl-tests` or the one given in the sweep, and it is
never reused as a run of this machine. The same sweep gives the same id, so it is stored once.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cubemesh.errors import DataError
from cubemesh.machines.files import read_text
from cubemesh.measure.collective_sweep import sweep_figures, wrong_results
from cubemesh.schema import (
    Collective,
    ExperimentRun,
    Machine,
    Outcome,
    Placement,
    ProgramSettings,
    Rank,
    RunKey,
    RunRecord,
    RunSpec,
    Status,
    SweepPoint,
)
from cubemesh.schema.serialization import digest, from_plain
from cubemesh.store.imports.imported import IMPORTED, imported_machine
from cubemesh.store.imports.nccl_tests_log import LEAST, MOST, LoggedSweep, read_log
from cubemesh.store.store import Store
from cubemesh.untrusted import parse_json

MAX_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ImportedFile:
    """The sweeps of a file, and which of them were new to the store."""

    records: tuple[RunRecord, ...]
    new: tuple[str, ...]
    """Ids of the records that were not stored before."""


def import_file(store: Store, path: Path, collective: str | None = None) -> ImportedFile:
    """Store the sweeps of a file that are not stored yet. DataError with the invalid line (or run,
    in JSON)."""
    text = read_text(path, MAX_BYTES, "test log")
    if text.lstrip().startswith("{"):
        sweeps = _of_json(text, str(path))
        framework = "pytorch"
    else:
        sweeps, framework = read_log(text, str(path), collective), "nccl-tests"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine = imported_machine(sweeps[0].ranks, path)
    parsed = [_record(sweep, framework, machine, now) for sweep in sweeps]
    by_id = {r.run_id: r for r in parsed}
    run_ids = tuple(by_id)
    stored = {r.run_id: r for r in store.records(machine_id=machine.machine_id)}
    new = [record for run_id, record in by_id.items() if run_id not in stored]
    records = tuple(stored.get(run_id, record) for run_id, record in by_id.items())
    if not new:
        return ImportedFile(records=records, new=())
    store.save_machine(machine)
    for record in new:
        store.save(record)
    store.save_experiment_run(
        ExperimentRun(
            experiment_run_id=digest(("collectives", run_ids), length=12),
            experiment="collectives",
            machine_id=machine.machine_id,
            started_utc=now,
            run_ids=run_ids,
            complete=True,
        )
    )
    return ImportedFile(records=records, new=tuple(r.run_id for r in new))


def _record(sweep: LoggedSweep, framework: str, machine: Machine, now: str) -> RunRecord:
    work = Collective(
        collective=sweep.collective,
        sizes_bytes=tuple(dict.fromkeys(p.size_bytes for p in sweep.points)),
        data_type=sweep.data_type,
        reduction=sweep.reduction,
    )
    on_gpu = sweep.ranks[0].device.startswith("cuda")
    spec = RunSpec(
        work=work,
        placement=Placement(device="cuda" if on_gpu else "cpu", devices=len(sweep.ranks)),
        program=ProgramSettings(framework=framework),
    )
    key = RunKey(
        spec_id=spec.spec_id,
        machine_id=machine.machine_id,
        software_id=IMPORTED,
        code_version=IMPORTED,
    )
    ok = Outcome(status=Status.OK)
    warning = wrong_results(sweep.points, sweep.collective, sweep.library)
    return RunRecord(
        run_id=digest((key, sweep.points), length=12),
        spec=spec,
        key=key,
        started_utc=now,
        elapsed_s=0.0,
        outcome=ok,
        ranks=tuple(
            Rank(rank=i, host=r.host, device=r.device, device_name=r.device_name, outcome=ok)
            for i, r in enumerate(sweep.ranks)
        ),
        figures=sweep_figures(sweep.points, sweep.collective, len(sweep.ranks)),
        sweep=sweep.points,
        library=sweep.library,
        warnings=() if warning is None else (warning,),
    )


def _of_json(text: str, file: str) -> tuple[LoggedSweep, ...]:
    """The sweeps of `cubemesh collectives --json`."""
    try:
        document = parse_json(text)
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}.") from None
    if (
        not isinstance(document, dict)
        or document.get("schema") != 1
        or not isinstance(document.get("runs"), list)
    ):
        raise DataError(f"{file} is not output of `cubemesh collectives --json` (schema 1).")
    found = []
    by_run: dict[Any, list[dict[str, Any]]] = {}
    try:
        for row in document["rows"]:
            by_run.setdefault(row["run_id"], []).append(row)
    except (KeyError, TypeError) as error:
        raise DataError(f"{file}, rows: {error!s} is missing or not valid.") from None
    for number, run in enumerate(document["runs"], start=1):
        where = f"{file}, run {number}"
        try:
            if rows := by_run.get(run["run_id"], []):
                found.append(_sweep(run, rows))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{where}: {error!s} is missing or not valid.") from None
    if not found:
        raise DataError(f"{file} has no rows.")
    return tuple(found)


def _sweep(run: dict[str, Any], rows: list[dict[str, Any]]) -> LoggedSweep:
    points = [
        {
            "size_bytes": row["size"],
            "count": row["count"],
            "in_place": in_place,
            "seconds": [1e-6 * row[name]["time_us"]],
            "wrong": row[name]["wrong"],
        }
        for row in rows
        for in_place, name in ((False, "out_of_place"), (True, "in_place"))
        if row[name] is not None
    ]
    first = rows[0]
    plain = {
        "collective": run["operation"],
        "data_type": first["type"],
        "reduction": "sum" if first["redop"] == "none" else first["redop"],
        "library": run["library"],
        "ranks": [
            {"host": r["host"], "device": r["device"], "device_name": r.get("device_name", "")}
            for r in run["ranks"]
        ],
        "points": points,
    }
    sweep = from_plain(LoggedSweep, plain)
    if len(sweep.ranks) < 2 or any(not _sound(point) for point in sweep.points):
        raise ValueError("a size or time (above 0), or the ranks (2 or more),")
    return sweep


def _sound(point: SweepPoint) -> bool:
    within = 1e-6 * LEAST <= point.time_s <= 1e-6 * MOST
    return point.size_bytes > 0 and point.count > 0 and (point.wrong or 0) >= 0 and within
