"""Rows of the tables of jobs: reading them as values, and appending events.

Every function works in a transaction that its caller has begun.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar, get_args

from sqlalchemy import Connection, Row, func, insert, select, update

from cubemesh.errors import UsageError
from cubemesh.jobs.states import ENDED, HELD, State, check_transition, state_of_sweep, stored_state
from cubemesh.jobs.values import Device, Question, QueuedJob, SlurmJob, Wants
from cubemesh.jobs.wakeup import EVENTS, QUEUE, notify
from cubemesh.schema.serialization import from_plain
from cubemesh.store.damage import reason_of
from cubemesh.store.database import utc
from cubemesh.store.json_text import UNREADABLE
from cubemesh.store.migrations.job_tables import job_events, job_runs, jobs


def question_text(question: Question) -> str:
    """A question as it is stored."""
    return json.dumps(asdict(question), sort_keys=True)


def read_question(text: Any) -> tuple[Question, str]:
    """The question in a column, and why it cannot be read; then it has no names."""
    try:
        question = from_plain(Question, json.loads(text))
    except UNREADABLE as error:
        return Question(names=()), reason_of(error)
    return question, "" if question.names else "it names no experiment"


def unreadable_question(text: Any) -> str:
    """Why a job cannot run whose question is this column; empty where it can."""
    reason = read_question(text)[1]
    return reason and f"Its stored question is damaged: {reason}. Submit it again as a new job."


def count_of(value: Any) -> int:
    """The number in a column; 0 where it is damaged."""
    return value if isinstance(value, int) else 0


T = TypeVar("T")


class _Columns:
    """The columns of a row, with what of them is damaged. A database may be written by other
    programs, and SQLite keeps any value in any column."""

    def __init__(self, row: Row[Any]) -> None:
        self._row = row
        self.damage: list[str] = []

    def text(self, name: str) -> str:
        return self._value(name, str, "")

    def optional(self, name: str) -> str | None:
        return None if getattr(self._row, name) is None else self.text(name)

    def count(self, name: str, default: int = 0) -> int:
        return self._value(name, int, default)

    def one_of(self, name: str, choices: tuple[str, ...]) -> Any:
        found = getattr(self._row, name)
        if found in choices:
            return found
        self.leave_out(name, f"it is not one of {', '.join(choices)}")
        return choices[0]

    def json(self, name: str, read: Callable[[Any], T], default: T) -> T:
        try:
            return read(json.loads(getattr(self._row, name)))
        except UNREADABLE as error:
            self.leave_out(name, reason_of(error))
            return default

    def leave_out(self, name: str, reason: str) -> None:
        self.damage.append(f"{name}: {reason}")

    def _value(self, name: str, kind: type[T], default: T) -> T:
        found = getattr(self._row, name)
        if isinstance(found, kind):
            return found
        self.leave_out(name, f"it is not a {'text' if kind is str else 'whole number'}")
        return default


def job_of(row: Row[Any], children: Mapping[int, State], run_ids: tuple[str, ...]) -> QueuedJob:
    """The job in a row; of a sweep with the state of its jobs. What of it is damaged is left out
    and named (`damage`), so that it hides no other job."""
    columns = _Columns(row)
    question, unreadable = read_question(row.question)
    if unreadable:
        columns.leave_out("question", unreadable)
    state = stored_state(columns.one_of("state", (State.FAILED, *State)))
    kind = columns.one_of("kind", ("question", "sweep"))
    if kind == "sweep":
        state = state_of_sweep(list(children.values()))
    wants = Wants(
        device=columns.one_of("device", get_args(Device)),
        devices=columns.count("devices", 1),
        host=columns.optional("host"),
    )
    slurm: SlurmJob | None = None
    if row.slurm:
        slurm = columns.json("slurm", lambda plain: from_plain(SlurmJob, plain), None)
    job = QueuedJob(
        job_id=row.job_id,
        kind=kind,
        name=columns.text("name"),
        question=question,
        state=state,
        why=columns.text("why"),
        priority=columns.count("priority"),
        wants=wants,
        parent_id=row.parent_id,
        children=tuple(sorted(children)),
        submitter=columns.text("submitter"),
        agent_id=columns.optional("agent_id"),
        fence=columns.count("fence"),
        attempt=columns.count("attempt"),
        restarts=columns.count("restarts"),
        faults=columns.count("faults"),
        control=columns.optional("control"),
        progress=columns.json("progress", _progress_of, {}),
        run_ids=run_ids,
        made_utc=columns.text("made_utc"),
        started_utc=columns.optional("started_utc"),
        ended_utc=columns.optional("ended_utc"),
        slurm=slurm,
    )
    return replace(job, damage="; ".join(columns.damage))


_NUMBERS = ("fraction", "samples_per_s", "loss", "eta_s", "eta_low_s", "eta_high_s")
_OF_SLOW = ("since_s", "for_s", "samples_per_s", "share")


def _progress_of(plain: Any) -> dict[str, Any]:
    """The progress of a job as pages show it. What another program wrote and is not of its type is
    left out, so that the page of one job does not hide the others."""
    fits: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(_NUMBERS, is_number),
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


def is_number(value: Any) -> bool:
    """Whether this is a finite number, of JSON, that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_slow(value: Any) -> bool:
    """Whether this is a `Slowdown` of expect.py."""
    if not isinstance(value, dict) or not all(is_number(value.get(name)) for name in _OF_SLOW):
        return False
    signs = value.get("signs")
    return isinstance(signs, list) and all(
        isinstance(sign, dict)
        and isinstance(sign.get("series"), str)
        and is_number(sign.get("now"))
        and "before" in sign
        and (sign["before"] is None or is_number(sign["before"]))
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
    children = {n: stored_state(state) for n, state in connection.execute(own).all()}
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
    before = stored_state(row.state)
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
