"""Rows of the tables of jobs: reading them as values, and appending events.

Every function works in a transaction that its caller has begun.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from cubemesh.errors import StoreError, UsageError
from cubemesh.jobs.states import ENDED, HELD, State, check_transition, state_of_sweep
from cubemesh.jobs.values import Question, QueuedJob, SlurmJob, Wants
from cubemesh.jobs.wakeup import EVENTS, QUEUE, notify
from cubemesh.schema.serialization import from_plain
from cubemesh.store.database import utc
from cubemesh.store.migrations.job_tables import job_events, job_runs, jobs


def question_text(question: Question) -> str:
    """A question as it is stored."""
    return json.dumps(asdict(question), sort_keys=True)


def job_of(row: Row[Any], children: Mapping[int, State], run_ids: tuple[str, ...]) -> QueuedJob:
    """The job in a row; of a sweep with the state of its jobs."""
    try:
        question = from_plain(Question, json.loads(row.question))
        progress = _progress_of(json.loads(row.progress))
        slurm = from_plain(SlurmJob, json.loads(row.slurm)) if row.slurm else None
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"Job {row.job_id} is damaged: {error}") from error
    state = State(row.state)
    if row.kind == "sweep":
        state = state_of_sweep(list(children.values()))
    return QueuedJob(
        job_id=row.job_id,
        kind=row.kind,
        name=row.name,
        question=question,
        state=state,
        why=row.why,
        priority=row.priority,
        wants=Wants(device=row.device, devices=row.devices, host=row.host),
        parent_id=row.parent_id,
        children=tuple(sorted(children)),
        submitter=row.submitter,
        agent_id=row.agent_id,
        fence=row.fence,
        attempt=row.attempt,
        restarts=row.restarts,
        faults=row.faults,
        control=row.control,
        progress=progress,
        run_ids=run_ids,
        made_utc=row.made_utc,
        started_utc=row.started_utc,
        ended_utc=row.ended_utc,
        slurm=slurm,
    )


_NUMBERS = ("fraction", "samples_per_s", "loss", "eta_s", "eta_low_s", "eta_high_s")
_OF_SLOW = ("since_s", "for_s", "samples_per_s", "share")


def _progress_of(plain: Any) -> dict[str, Any]:
    """The progress of a job as pages show it. What another program wrote and is not of its type is
    left out, so that the page of one job does not hide the others."""
    fits: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(_NUMBERS, _is_number),
        **dict.fromkeys(("run", "runs", "finished"), lambda value: type(value) is int),
        **dict.fromkeys(("phase", "note"), lambda value: isinstance(value, str)),
        "eta_exact": lambda value: isinstance(value, bool),
        "slow": _is_slow,
    }
    found = plain if isinstance(plain, dict) else {}
    return {
        name: value
        for name, value in found.items()
        if value is None or (name in fits and fits[name](value))
    }


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_slow(value: Any) -> bool:
    """Whether this is a `Slowdown` of expect.py."""
    if not isinstance(value, dict) or not all(_is_number(value.get(name)) for name in _OF_SLOW):
        return False
    signs = value.get("signs")
    return isinstance(signs, list) and all(
        isinstance(sign, dict)
        and isinstance(sign.get("series"), str)
        and _is_number(sign.get("now"))
        and "before" in sign
        and (sign["before"] is None or _is_number(sign["before"]))
        for sign in signs
    )


def job_row(connection: Connection, job_id: int) -> Row[Any]:
    """The row of a job, locked until the transaction ends; UsageError where there is none."""
    found = connection.execute(select(jobs).where(jobs.c.job_id == job_id).with_for_update())
    row = found.one_or_none()
    if row is None:
        raise UsageError(f"There is no job {job_id}. `cubemesh jobs` lists them.")
    return row


def read_job(connection: Connection, row: Row[Any]) -> QueuedJob:
    """The job in a row, with its children and runs."""
    own = select(jobs.c.job_id, jobs.c.state).where(jobs.c.parent_id == row.job_id)
    children = {n: State(state) for n, state in connection.execute(own).all()}
    runs = select(job_runs.c.run_id).where(job_runs.c.job_id == row.job_id)
    run_ids = connection.execute(runs.order_by(job_runs.c.place)).scalars()
    return job_of(row, children, tuple(run_ids))


def append_event(connection: Connection, job_id: int, time_s: float, kind: str, value: Any) -> int:
    """Append an event of a job whose row is locked; its number."""
    own = job_events.c.job_id == job_id
    last = connection.execute(select(func.max(job_events.c.sequence)).where(own)).scalar()
    row = {
        "job_id": job_id,
        "sequence": (last or 0) + 1,
        "said_utc": utc(time_s),
        "kind": kind,
        "value": json.dumps(value, allow_nan=False, separators=(",", ":")),
    }
    connection.execute(insert(job_events).values(row))
    notify(connection, EVENTS, job_id)
    if kind == "state" and value["state"] == State.QUEUED:
        notify(connection, QUEUE, job_id)
    return int(row["sequence"])


def change_state(
    connection: Connection,
    row: Row[Any],
    after: State,
    time_s: float,
    *,
    why: str = "",
    who: str = "",
    **columns: Any,
) -> None:
    """Change the state of a job whose row is locked, with an event; UsageError if it cannot."""
    before = State(row.state)
    check_transition(row.job_id, before, after)
    changed: dict[str, Any] = {"state": after.value, "why": why, **columns}
    if after not in HELD:
        changed |= {"agent_id": None, "lease_until_s": None, "control": None}
    if after in ENDED:
        changed["ended_utc"] = utc(time_s)
    elif before in ENDED:
        changed["ended_utc"] = None
    connection.execute(update(jobs).where(jobs.c.job_id == row.job_id).values(changed))
    value = {"before": before.value, "state": after.value, "why": why, "who": who}
    append_event(connection, row.job_id, time_s, "state", value)
