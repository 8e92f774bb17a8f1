"""Queue of jobs in the store: submitting, claiming with a lease, and what users do with jobs.

    submit ─▶ queued ──claim (lease of 30 s, a new fence)──▶ held by an agent's child, which renews
                 ▲                                               │
                 └────── the lease expired: queued again ◀───────┘

A claim is one transaction: SQLite's BEGIN IMMEDIATE, PostgreSQL's FOR UPDATE SKIP LOCKED. Time is
the database's. A holder whose lease expired may still run; its writes have an old fence and are
refused (lease.py).
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, insert, or_, select, update

from cubemesh.errors import UsageError
from cubemesh.jobs.rows import (
    append_event,
    change_state,
    count_of,
    job_of,
    job_row,
    question_text,
    read_job,
    read_question,
    unreadable_question,
)
from cubemesh.jobs.states import ENDED, HELD, State, stored_state
from cubemesh.jobs.values import Agent, Question, QueuedJob, SlurmJob, Wants
from cubemesh.runs.slurm import Resources
from cubemesh.schema.serialization import from_plain
from cubemesh.store.database import Database, database_time, utc
from cubemesh.store.json_text import UNREADABLE
from cubemesh.store.migrations.job_tables import agents, job_runs, jobs
from cubemesh.team.audit_log import append_entry

LEASE_S = 30.0
"""A holder that has not renewed its lease for so long has lost the job."""
RENEW_S = 10.0
"""Interval of renewing a lease."""
AGENT_LOST_S = 90.0
"""An agent that was not seen for so long is shown as lost."""
MOST_NAME = 200
_HELD = [state.value for state in HELD]


@dataclass(frozen=True, kw_only=True)
class FreeDevices:
    """What an agent can run a job on now."""

    hostname: str
    cpu: bool = True
    gpus: int = 0
    """GPUs that are free."""
    has_gpus: bool = False
    """Whether the host has any, free or not."""


class JobQueue:
    """The jobs of an open store (`JobQueue(store.database)`). Threads may share it. `clock` gives
    the time in a transaction."""

    def __init__(
        self, database: Database, clock: Callable[[Connection], float] = database_time
    ) -> None:
        self.database = database
        self.clock = clock

    def get(self, job_id: int) -> QueuedJob:
        """A job; UsageError where there is none."""
        with self.database.read() as connection:
            row = connection.execute(select(jobs).where(jobs.c.job_id == job_id)).one_or_none()
            if row is None:
                raise UsageError(f"There is no job {job_id}. `cubemesh jobs` lists them.")
            return read_job(connection, row)

    def agents(self) -> list[Agent]:
        """The agents, the last seen first."""
        with self.database.read() as connection:
            now = self.clock(connection)
            rows = connection.execute(select(agents).order_by(agents.c.seen_s.desc())).all()
        return [_agent_of(row, now) for row in rows]

    def submit(
        self,
        questions: Sequence[Question],
        wants: Sequence[Wants],
        *,
        priority: int = 0,
        restarts: int = 3,
        submitter: str = "",
        sweep: Question | None = None,
        slurm: Resources | None = None,
    ) -> QueuedJob:
        """Queue questions that were checked (submission.py); several as one `sweep`, whose job is
        returned. With `slurm`, agents claim them only by number (slurm.py)."""

        def insert_all(connection: Connection) -> QueuedJob:
            now = self.clock(connection)
            common = {"priority": priority, "restarts": restarts, "submitter": submitter}
            parent = None
            if sweep is not None:
                parent = insert_job(connection, now, "sweep", sweep, Wants(device="none"), common)
            each = [
                insert_job(connection, now, "question", one, want, {**common, "parent_id": parent})
                for one, want in zip(questions, wants, strict=True)
            ]
            if slurm is not None:
                for job_id in each:
                    name = f"cubemesh-{job_id}-{secrets.token_hex(4)}"
                    _put_slurm(connection, job_id, SlurmJob(name=name, resources=slurm))
            about = sweep or questions[0]
            first = parent or each[0]
            append_entry(connection, now, submitter, "submit", job_id=first, detail=about.text)
            return read_job(connection, job_row(connection, first))

        return self.database.commit(insert_all)

    def claim(
        self,
        agent_id: str,
        free: FreeDevices,
        *,
        only: int | None = None,
        lease_s: float = LEASE_S,
        damaged: Callable[[int, str], None] = lambda job_id, why: None,
    ) -> QueuedJob | None:
        """Give the first job that fits to an agent, in the state `starting`; None without one.
        `only` is the one job, or sweep, that may be claimed; without it no job of Slurm is. One
        whose stored question is damaged fails with the reason, which `damaged` gets with its
        number, and the next is claimed."""
        failed: dict[int, str] = {}

        def take(connection: Connection) -> QueuedJob | None:
            now = self.clock(connection)
            asked = select(jobs).where(_claimable(free, now, only))
            asked = asked.order_by(jobs.c.priority.desc(), jobs.c.job_id).limit(1)
            asked = asked.with_for_update(skip_locked=True)
            while (row := connection.execute(asked).one_or_none()) is not None:
                claimed = claim_row(connection, row, now)
                if why := unreadable_question(row.question):
                    change_state(connection, claimed, State.FAILED, now, who=agent_id, why=why)
                    failed[row.job_id] = why
                    continue
                return read_job(connection, claimed)
            return None

        def claim_row(connection: Connection, row: Row[Any], now: float) -> Row[Any]:
            change_state(
                connection,
                row,
                State.STARTING,
                now,
                who=agent_id,
                agent_id=agent_id,
                fence=jobs.c.fence + 1,
                attempt=jobs.c.attempt + 1,
                lease_until_s=now + lease_s,
                not_before_s=None,
                started_utc=row.started_utc or utc(now),
            )
            return job_row(connection, row.job_id)

        job = self.database.commit(take)
        for job_id, why in failed.items():
            damaged(job_id, why)
        return job

    def waiting(self, free: FreeDevices, *, only: int | None = None) -> int:
        """Number of queued jobs that an agent with these devices could run now or later."""
        fits = _claimable(free, None, only)
        with self.database.read() as connection:
            counted = select(func.count()).select_from(jobs).where(fits)
            return int(connection.execute(counted).scalar_one())

    def expire(self) -> int:
        """Take jobs from holders whose lease has expired: queued again, or lost where no restarts
        are left; their number."""
        with self.database.read() as connection:
            now = self.clock(connection)
            over = and_(jobs.c.state.in_(_HELD), jobs.c.lease_until_s < now)
            found = connection.execute(select(jobs.c.job_id).where(over)).scalars().all()
        return sum(self._expire(job_id) for job_id in found)

    def _expire(self, job_id: int) -> bool:
        def take(connection: Connection) -> bool:
            now = self.clock(connection)
            row = job_row(connection, job_id)
            if stored_state(row.state) not in HELD or row.lease_until_s >= now:
                return False  # renewed, or expired by another process
            late = now - row.lease_until_s
            after_fault(connection, row, now, f"Its lease expired {late:.0f} s ago.")
            return True

        return self.database.commit(take)

    def pause(self, job_id: int, *, who: str = "") -> None:
        """Pause a job: a queued one at once, a training after a checkpoint, others between runs."""
        self._act(job_id, "pause", State.PAUSED, who)

    def stop(
        self, job_id: int, *, at_checkpoint: bool = False, who: str = "", why: str = ""
    ) -> None:
        """Stop a job, with `at_checkpoint` as `pause` does; `why` is shown of one that waits."""
        control = "stop-at-checkpoint" if at_checkpoint else "stop"
        self._act(job_id, control, State.STOPPED, who, why)

    def resume(self, job_id: int, *, who: str = "") -> None:
        """Queue a job again that is paused, failed, stopped or lost; it continues from its last
        checkpoint, and stored runs are reused."""

        def queue(connection: Connection, row: Row[Any], now: float) -> None:
            change_state(connection, row, State.QUEUED, now, who=who, faults=0, not_before_s=None)

        concerns = lambda state: state is State.PAUSED or state in ENDED[1:]  # noqa: E731
        self._each(job_id, queue, concerns, who, "resume")

    def set_slurm(self, job_id: int, number: int) -> None:
        """Write the number of the Slurm job that was submitted for a job."""

        def put(connection: Connection) -> None:
            row = job_row(connection, job_id)
            before = from_plain(SlurmJob, json.loads(row.slurm))
            _put_slurm(connection, job_id, replace(before, number=number))
            text = f"Submitted to Slurm as job {number} ({before.name})."
            append_event(connection, job_id, self.clock(connection), "message", {"text": text})

        self.database.commit(put)

    def say(self, job_id: int, text: str) -> None:
        """Append a message to the log of a job."""

        def append(connection: Connection) -> None:
            job_row(connection, job_id)
            append_event(connection, job_id, self.clock(connection), "message", {"text": text})

        self.database.commit(append)

    def set_priority(self, job_id: int, priority: int, *, who: str = "") -> None:
        """Change the priority of a job that has not ended."""

        def change(connection: Connection, row: Row[Any], now: float) -> None:
            this = jobs.c.job_id == row.job_id
            connection.execute(update(jobs).where(this).values(priority=priority))
            value = {"priority": priority, "who": who}
            append_event(connection, row.job_id, now, "edited", value)

        self._each(job_id, change, lambda state: state not in ENDED, who, f"priority {priority}")

    def edit(self, job_id: int, question: Question, wants: Wants, *, who: str = "") -> None:
        """Change the question of a job: of a running one at its next checkpoint, from which it
        continues on the same devices."""

        def change(connection: Connection) -> None:
            now = self.clock(connection)
            row = job_row(connection, job_id)
            state = stored_state(row.state)
            if row.kind == "sweep" or state is State.DONE or state is State.PAUSING:
                what = "a sweep" if row.kind == "sweep" else state
                raise UsageError(
                    f"Job {job_id} is {what} and cannot be edited. Edit each job of a sweep, or "
                    f"ask again: cubemesh jobs clone {job_id} --set KEY=VALUE"
                )
            text = question_text(question)
            columns: dict[str, Any] = {"question": text, "name": question.text[:MOST_NAME]}
            columns |= {"device": wants.device, "devices": wants.devices, "host": wants.host}
            if state in HELD:
                columns = {"next_question": text, "control": "edit"}
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(columns))
            value = {"settings": list(question.settings), "who": who}
            append_event(connection, job_id, now, "edited", value)
            append_entry(connection, now, who, "edit", job_id=job_id, detail=question.text)

        self.database.commit(change)

    def _act(self, job_id: int, control: str, after: State, who: str, why: str = "") -> None:
        def act(connection: Connection, row: Row[Any], now: float) -> None:
            if stored_state(row.state) not in HELD:
                change_state(connection, row, after, now, who=who, why=why)
                return
            this = update(jobs).where(jobs.c.job_id == row.job_id)
            if control == "pause" and row.state != State.PAUSING:
                change_state(connection, row, State.PAUSING, now, who=who, control=control)
                return
            connection.execute(this.values(control=control))
            append_event(connection, row.job_id, now, "edited", {"control": control, "who": who})

        concerns = lambda state: state not in ENDED and state is not after  # noqa: E731
        self._each(job_id, act, concerns, who, control)

    def _each(
        self,
        job_id: int,
        act: Callable[[Connection, Row[Any], float], None],
        concerns: Callable[[State], bool],
        who: str,
        action: str,
    ) -> None:
        """Apply `act` to a job, or to those jobs of a sweep whose state it concerns; as an `action`
        of `who` in the audit log."""

        def all_of_them(connection: Connection) -> None:
            now = self.clock(connection)
            row = job_row(connection, job_id)
            append_entry(connection, now, who, action, job_id=job_id, detail=row.name)
            if row.kind != "sweep":
                act(connection, row, now)
                return
            own = select(jobs).where(jobs.c.parent_id == job_id).order_by(jobs.c.job_id)
            for child in connection.execute(own.with_for_update()).all():
                if concerns(stored_state(child.state)):
                    act(connection, child, now)

        self.database.commit(all_of_them)

    def register(self, agent: Agent) -> None:
        """Write an agent's row, or that it is alive."""

        def put(connection: Connection) -> None:
            row = {
                "agent_id": agent.agent_id,
                "hostname": agent.hostname,
                "process": agent.process,
                "machine_id": agent.machine_id,
                "version": agent.version,
                "devices": json.dumps(agent.devices),
                "slots": agent.slots,
                "seen_s": self.clock(connection),
                "ended_utc": None if agent.state == "alive" else utc(self.clock(connection)),
            }
            this = agents.c.agent_id == agent.agent_id
            if connection.execute(update(agents).where(this).values(row)).rowcount == 0:
                connection.execute(insert(agents).values(row))

        self.database.commit(put)

    def list(
        self,
        *,
        states: Iterable[State] = (),
        parent_id: int | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[QueuedJob]:
        """The newest jobs, newest first; of these states, of this sweep, older than `before`. A
        sweep is found by the state of its row, which is `queued`."""
        asked = select(jobs).order_by(jobs.c.job_id.desc()).limit(limit)
        if wanted := [state.value for state in states]:
            asked = asked.where(jobs.c.state.in_(wanted), jobs.c.kind == "question")
        if parent_id is not None:
            asked = asked.where(jobs.c.parent_id == parent_id)
        if before is not None:
            asked = asked.where(jobs.c.job_id < before)
        with self.database.read() as connection:
            rows = connection.execute(asked).all()
            ids = [row.job_id for row in rows]
            own = select(jobs.c.parent_id, jobs.c.job_id, jobs.c.state)
            children: dict[int, dict[int, State]] = defaultdict(dict)
            for parent, child, state in connection.execute(own.where(jobs.c.parent_id.in_(ids))):
                children[parent][child] = stored_state(state)
            runs: dict[int, list[str]] = defaultdict(list)
            listed = select(job_runs).where(job_runs.c.job_id.in_(ids))
            for run in connection.execute(listed.order_by(job_runs.c.place)):
                runs[run.job_id].append(run.run_id)
        return [job_of(row, children[row.job_id], tuple(runs[row.job_id])) for row in rows]

    def counts(self) -> dict[State, int]:
        """Number of jobs in each state that has any; a sweep is not counted, its jobs are."""
        counted = select(jobs.c.state, func.count()).where(jobs.c.kind == "question")
        with self.database.read() as connection:
            rows = connection.execute(counted.group_by(jobs.c.state)).all()
        found: dict[State, int] = defaultdict(int)
        for state, count in rows:
            found[stored_state(state)] += int(count)
        return dict(found)


def after_fault(
    connection: Connection,
    row: Row[Any],
    now: float,
    why: str,
    *,
    delay_s: float = 0.0,
    at_last: State = State.LOST,
) -> State:
    """Queue a job again whose holder was lost, for after `delay_s` seconds, unless its restarts are
    used up (then it is `at_last`), or it was to pause or stop; the new state."""
    state = state_asked(row)
    faults, restarts = count_of(row.faults), count_of(row.restarts)
    if state is State.QUEUED and faults >= restarts:
        state = at_last
        why = f"{why} It was queued again {restarts} times before: see --restarts."
    later = now + delay_s if delay_s else None
    edited = edited_columns(connection, row, now)
    columns = {"faults": faults + 1, "not_before_s": later, **edited}
    change_state(connection, row, state, now, why=why, **columns)
    return state


def state_asked(row: Row[Any]) -> State:
    """The state that follows when a holder lets a job go: what its user asked for, or queued."""
    asked = {"pause": State.PAUSED, "stop": State.STOPPED, "stop-at-checkpoint": State.STOPPED}
    return asked.get(row.control or "", State.QUEUED)


def edited_columns(connection: Connection, row: Row[Any], now: float) -> dict[str, Any]:
    """The columns that change when an edit of the question takes effect. One that is damaged has
    none, and its job a message that says so."""
    if row.next_question is None:
        return {}
    question, unreadable = read_question(row.next_question)
    if unreadable:
        text = f"The stored edit of its question is damaged and was left out: {unreadable}"
        append_event(connection, row.job_id, now, "message", {"text": text})
        return {"next_question": None}
    name = question.text[:MOST_NAME]
    return {"question": row.next_question, "name": name, "next_question": None}


def _claimable(free: FreeDevices, now: float | None, only: int | None) -> ColumnElement[bool]:
    """Jobs that fit the devices; with `now`, those that need not wait."""
    fits = [jobs.c.device == "none"]
    if free.cpu:
        fits.append(jobs.c.device == "cpu")
        if not free.has_gpus:
            fits.append(jobs.c.device == "any")
    if free.gpus:
        enough = jobs.c.devices <= free.gpus
        fits.append(and_(jobs.c.device.in_(["gpu", "any"]), enough))
    conditions = [
        jobs.c.state == State.QUEUED.value,
        jobs.c.kind == "question",
        or_(*fits),
        or_(jobs.c.host.is_(None), jobs.c.host == free.hostname),
    ]
    if now is not None:
        conditions.append(or_(jobs.c.not_before_s.is_(None), jobs.c.not_before_s <= now))
    if only is None:
        conditions.append(jobs.c.slurm.is_(None))
    else:
        conditions.append(or_(jobs.c.job_id == only, jobs.c.parent_id == only))
    return and_(*conditions)


def insert_job(
    connection: Connection,
    now: float,
    kind: str,
    question: Question,
    wants: Wants,
    common: dict[str, Any],
) -> int:
    """Insert a queued job in a transaction; its number."""
    row = {
        **common,
        "kind": kind,
        "name": question.text[:MOST_NAME],
        "question": question_text(question),
        "state": State.QUEUED.value,
        "why": "",
        "host": wants.host,
        "device": wants.device,
        "devices": wants.devices,
        "fence": 0,
        "attempt": 0,
        "faults": 0,
        "progress": "{}",
        "made_utc": utc(now),
    }
    inserted = connection.execute(insert(jobs).values(row)).inserted_primary_key
    assert inserted is not None
    job_id = int(inserted[0])
    value = {"before": "", "state": State.QUEUED.value, "why": "", "who": common["submitter"]}
    append_event(connection, job_id, now, "state", value)
    return job_id


def _put_slurm(connection: Connection, job_id: int, slurm: SlurmJob) -> None:
    text = json.dumps(asdict(slurm), sort_keys=True)
    connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(slurm=text))


def _devices_of(text: Any) -> tuple[str, ...]:
    """The devices of an agent; none where its row is damaged, which must not hide the others."""
    try:
        return from_plain(tuple[str, ...], json.loads(text))
    except UNREADABLE:
        return ()


def _agent_of(row: Row[Any], now: float) -> Agent:
    ago = max(0.0, now - row.seen_s)
    alive = "alive" if ago <= AGENT_LOST_S else "lost"
    return Agent(
        agent_id=row.agent_id,
        hostname=row.hostname,
        process=row.process,
        machine_id=row.machine_id,
        version=row.version,
        devices=_devices_of(row.devices),
        slots=row.slots,
        seen_s=ago,
        state="ended" if row.ended_utc else alive,  # type: ignore[arg-type]
    )
