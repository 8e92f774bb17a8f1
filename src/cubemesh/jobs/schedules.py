"""Nightly schedules: a question that an agent queues once a day, when its devices are idle.

    day 1                            day 2
    02:00 ├── window ──┤ 06:00       02:00 ├── window ──┤ 06:00
            idle: job 41                     never idle: skipped, with the reason

A night is the date (UTC) on which its window begins. Each night of a schedule has one row, which is
written in the transaction that queues its job, under a lock of the schedule: so no night has two
jobs, however many agents look. A night whose window passed without a job is recorded as skipped, by
the first agent that looks afterwards; of a schedule that was paused, when it is resumed. Time is
the database's.
"""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from cubemesh.errors import UsageError
from cubemesh.jobs.queue import MOST_NAME, FreeDevices, JobQueue, insert_job
from cubemesh.jobs.rows import question_text, read_question, unreadable_question
from cubemesh.jobs.states import State, stored_state
from cubemesh.jobs.values import Question, Wants
from cubemesh.store.database import utc
from cubemesh.store.migrations.job_tables import jobs
from cubemesh.store.migrations.schedule_tables import schedule_nights, schedules
from cubemesh.team.audit_log import append_entry

DAY_S = 86_400
WITHIN_S = 4 * 3600
"""Default length of the window."""
MOST_WITHIN_S = 23 * 3600
"""Windows of two nights do not overlap."""
MOST_SKIPPED = 366
"""Nights that are recorded at once after a time without agents; of more, the newest."""
NIGHTS = 14
"""Newest nights that a list shows."""
NO_AGENT = "no suitable agent was running"
PAUSED = "it was paused"


@dataclass(frozen=True, kw_only=True)
class Night:
    """What became of a schedule in one night."""

    night: str
    """Date on which its window began, UTC."""
    job_id: int | None
    """None: it was skipped."""
    state: State | None
    """The state of its job, as it was when it was read."""
    why: str
    """Why it was skipped, or why its job is in its state; a sentence, or empty."""
    said_utc: str


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A question that is queued every night."""

    schedule_id: int
    name: str
    question: Question
    at_s: int
    """Begin of the window, in seconds after midnight UTC."""
    within_s: int
    """Length of the window."""
    when_idle: bool
    """Whether it waits until no job and no other program uses the host."""
    wants: Wants
    priority: int
    restarts: int
    submitter: str
    made_utc: str
    next_utc: str | None
    """Begin of the next window, or of the one that has begun and is not decided; None while it is
    paused."""
    paused_utc: str | None = None
    """When it was paused; None for one that is not."""
    nights: tuple[Night, ...] = ()
    """The newest ones, newest first."""
    damage: str = ""
    """Why its stored question cannot be read; empty where it can."""

    @property
    def at(self) -> str:
        """`02:00`."""
        return f"{self.at_s // 3600:02d}:{self.at_s % 3600 // 60:02d}"


class Schedules:
    """The schedules of a queue's store."""

    def __init__(self, queue: JobQueue) -> None:
        self.queue = queue

    def add(
        self,
        question: Question,
        wants: Wants,
        *,
        at_s: int,
        within_s: int = WITHIN_S,
        when_idle: bool = True,
        priority: int = 0,
        restarts: int = 3,
        submitter: str = "",
    ) -> Schedule:
        """A new schedule of a question that was checked (submission.py). Its first night is the
        next that begins."""
        if not 60 <= within_s <= MOST_WITHIN_S:
            raise UsageError(
                f"The window is {within_s} seconds long; give 1 minute to "
                f"{MOST_WITHIN_S // 3600} hours, as in --within 4h."
            )

        def put(connection: Connection) -> int:
            row: dict[str, Any] = {
                "name": question.text[:MOST_NAME],
                "question": question_text(question),
                "at_s": at_s % DAY_S,
                "within_s": within_s,
                "when_idle": when_idle,
                "device": wants.device,
                "devices": wants.devices,
                "host": wants.host,
                "priority": priority,
                "restarts": restarts,
                "submitter": submitter,
                "made_s": self.queue.clock(connection),
            }
            key = connection.execute(insert(schedules).values(row)).inserted_primary_key
            assert key is not None
            append_entry(connection, row["made_s"], submitter, "schedule", detail=question.text)
            return int(key[0])

        return self.get(self.queue.database.commit(put))

    def get(self, schedule_id: int) -> Schedule:
        """A schedule; UsageError where there is none."""
        for one in self.list():
            if one.schedule_id == schedule_id:
                return one
        raise _unknown(schedule_id)

    def list(self, host: str = "") -> list[Schedule]:
        """The schedules that were not deleted, the oldest first, with their newest nights; of a
        host, those whose job it may run."""
        with self.queue.database.read() as connection:
            now = self.queue.clock(connection)
            rows = connection.execute(_current().order_by(schedules.c.schedule_id)).all()
            nights: dict[int, list[Night]] = defaultdict(list)
            ids = [row.schedule_id for row in rows]
            own = select(schedule_nights, jobs.c.state, jobs.c.why.label("job_why"))
            own = own.outerjoin(jobs, jobs.c.job_id == schedule_nights.c.job_id)
            own = own.where(schedule_nights.c.schedule_id.in_(ids))
            for one in connection.execute(own.order_by(schedule_nights.c.night.desc())):
                if len(nights[one.schedule_id]) < NIGHTS:
                    nights[one.schedule_id].append(_night_of(one))
        found = [_schedule_of(row, tuple(nights[row.schedule_id]), now) for row in rows]
        return [one for one in found if not host or one.wants.host in (None, host)]

    def delete(self, schedule_id: int, *, who: str) -> None:
        """End a schedule; its jobs and its nights stay. UsageError where there is none."""

        def end(connection: Connection) -> None:
            this = (schedules.c.schedule_id == schedule_id) & schedules.c.deleted_s.is_(None)
            now = self.queue.clock(connection)
            if not connection.execute(update(schedules).where(this).values(deleted_s=now)).rowcount:
                raise _unknown(schedule_id)
            append_entry(connection, now, who, "unschedule", detail=str(schedule_id))

        self.queue.database.commit(end)

    def pause(self, schedule_id: int, *, who: str) -> Schedule:
        """Queue nothing more until it is resumed. UsageError where it is paused already, or there
        is none."""
        return self._set_paused(schedule_id, True, who)

    def resume(self, schedule_id: int, *, who: str) -> Schedule:
        """Queue again, also in a window that is open; the nights that have passed are recorded as
        skipped. UsageError where it is not paused, or there is none."""
        return self._set_paused(schedule_id, False, who)

    def _set_paused(self, schedule_id: int, paused: bool, who: str) -> Schedule:
        def change(connection: Connection) -> None:
            row = _locked(connection, schedule_id)
            if row is None:
                raise _unknown(schedule_id)
            if (row.paused_s is not None) is paused:
                raise UsageError(
                    f"Schedule {schedule_id} is {'paused already' if paused else 'not paused'}."
                )
            now = self.queue.clock(connection)
            _record_passed(connection, row, now)
            this = schedules.c.schedule_id == schedule_id
            values = {"paused_s": now if paused else None, "waiting_night": None}
            connection.execute(update(schedules).where(this).values(values))
            action = "pause schedule" if paused else "resume schedule"
            append_entry(connection, now, who, action, detail=str(schedule_id))

        self.queue.database.commit(change)
        return self.get(schedule_id)

    def submit_due(
        self, agent_id: str, free: FreeDevices, busy: Callable[[], str] = lambda: ""
    ) -> Sequence[int]:
        """Queue what is due on a host with these devices, and record nights that were skipped; the
        numbers of the new jobs. `busy` says what else uses the host, empty for nothing; it is asked
        once, if something is due that waits for an idle host."""
        with self.queue.database.read() as connection:
            now = self.queue.clock(connection)
            asked_rows = _current().where(schedules.c.paused_s.is_(None))
            rows = connection.execute(asked_rows.order_by(schedules.c.schedule_id)).all()
            last = select(schedule_nights.c.schedule_id, func.max(schedule_nights.c.night))
            decided = {
                schedule: str(night)
                for schedule, night in connection.execute(
                    last.group_by(schedule_nights.c.schedule_id)
                )
            }
        open_rows = [row for row in rows if _undecided(row, decided.get(row.schedule_id), now)]
        asked: str | None = None
        made = []
        for row in open_rows:
            lacking = _lacking(row, free)
            if not lacking and row.when_idle and _begun(row, now) is not None:
                asked = busy() if asked is None else asked
                lacking = asked
            job_id = self._decide(row.schedule_id, agent_id, free, lacking)
            if job_id is not None:
                made.append(job_id)
        return made

    def _decide(
        self, schedule_id: int, agent_id: str, free: FreeDevices, lacking: str
    ) -> int | None:
        """Decide the nights of a schedule in one transaction; the job of this night, if there is
        one now."""

        def decide(connection: Connection) -> int | None:
            row = _locked(connection, schedule_id)
            if row is None or row.paused_s is not None:
                return None  # meanwhile
            now = self.queue.clock(connection)
            night = _record_passed(connection, row, now)
            if night is None:
                return None
            if not lacking:
                if why := unreadable_question(row.question):
                    _record(connection, row, now, night, None, why)
                    return None
                job_id = self._queued(connection, row, now, free)
                _record(connection, row, now, night, job_id, "")
                return job_id
            if row.host in (None, free.hostname):
                changed = update(schedules).where(schedules.c.schedule_id == schedule_id)
                connection.execute(changed.values(waiting_night=night, waiting_why=lacking))
            return None

        return self.queue.database.commit(decide)

    def _queued(self, connection: Connection, row: Row[Any], now: float, free: FreeDevices) -> int:
        """The job of a night, for the host that is idle."""
        common = {
            "priority": row.priority,
            "restarts": row.restarts,
            "submitter": row.submitter,
            "parent_id": None,
        }
        wants = Wants(device=row.device, devices=row.devices, host=free.hostname)
        question = read_question(row.question)[0]
        return insert_job(connection, now, "question", question, wants, common)


def parse_hour(text: str) -> int:
    """Seconds after midnight of `02:00`; UsageError for anything else."""
    found = re.fullmatch(r"(\d{1,2}):(\d{2})", text.strip())
    if found is None or int(found[1]) > 23 or int(found[2]) > 59:
        raise UsageError(f"--nightly {text}: give an hour of the day in UTC, as in 02:00.")
    return 3600 * int(found[1]) + 60 * int(found[2])


def _current() -> Any:
    return select(schedules).where(schedules.c.deleted_s.is_(None))


def _locked(connection: Connection, schedule_id: int) -> Row[Any] | None:
    """The row of a schedule, locked until the end of the transaction; None where there is none."""
    this = _current().where(schedules.c.schedule_id == schedule_id)
    found: Row[Any] | None = connection.execute(this.with_for_update()).one_or_none()
    return found


def _unknown(schedule_id: int) -> UsageError:
    return UsageError(f"There is no schedule {schedule_id}. `cubemesh jobs schedules` lists them.")


def _date(day: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=day)).isoformat()


def _day(night: str) -> int:
    return (datetime.date.fromisoformat(night) - datetime.date(1970, 1, 1)).days


def _last_day(row: Row[Any], now: float) -> int:
    """The day, from 1970, of the last window that has begun."""
    return int((now - row.at_s) // DAY_S)


def _begun(row: Row[Any], now: float) -> str | None:
    """The night whose window is open."""
    day = _last_day(row, now)
    return _date(day) if now < day * DAY_S + row.at_s + row.within_s else None


def _undecided(row: Row[Any], last: str | None, now: float) -> Sequence[str]:
    """Nights that have begun since the schedule was made and have no row, oldest first."""
    first = int(-((row.at_s - row.made_s) // DAY_S))  # the first window at or after `made_s`
    if last is not None:
        first = max(first, _day(last) + 1)
    end = _last_day(row, now)
    return [_date(day) for day in range(max(first, end - MOST_SKIPPED + 1), end + 1)]


def _lacking(row: Row[Any], free: FreeDevices) -> str:
    """Why a host cannot take the job now; empty where it can."""
    if row.host not in (None, free.hostname):
        return f"it is for the host {row.host}"
    gpus = row.device == "gpu" or (row.device == "any" and free.has_gpus)
    if gpus and free.gpus < row.devices:
        return f"{row.devices} GPUs were needed and {free.gpus} were free on {free.hostname}"
    if not gpus and row.device != "none" and not free.cpu:
        return f"the CPU of {free.hostname} was used by another job"
    return ""


def _record_passed(connection: Connection, row: Row[Any], now: float) -> str | None:
    """Record the undecided nights whose window is over as skipped; the night whose window is open,
    if it is undecided."""
    own = schedule_nights.c.schedule_id == row.schedule_id
    last = connection.execute(select(func.max(schedule_nights.c.night)).where(own)).scalar()
    open_night = _begun(row, now)
    for night in _undecided(row, last, now):
        if night == open_night:
            return night
        why = row.waiting_why if row.waiting_night == night else NO_AGENT
        _record(connection, row, now, night, None, why if row.paused_s is None else PAUSED)
    return None


def _record(
    connection: Connection, row: Row[Any], now: float, night: str, job_id: int | None, why: str
) -> None:
    values = {
        "schedule_id": row.schedule_id,
        "night": night,
        "job_id": job_id,
        "why": why,
        "said_utc": utc(now),
    }
    connection.execute(insert(schedule_nights).values(values))


def _night_of(row: Row[Any]) -> Night:
    return Night(
        night=row.night,
        job_id=row.job_id,
        state=None if row.state is None else stored_state(row.state),
        why=row.why or row.job_why or "",
        said_utc=row.said_utc,
    )


def _schedule_of(row: Row[Any], nights: tuple[Night, ...], now: float) -> Schedule:
    waiting = _undecided(row, nights[0].night if nights else None, now)
    open_night = _begun(row, now)
    question, unreadable = read_question(row.question)
    day = _day(open_night) if open_night in waiting and open_night else _last_day(row, now) + 1
    return Schedule(
        schedule_id=row.schedule_id,
        name=row.name,
        question=question,
        at_s=row.at_s,
        within_s=row.within_s,
        when_idle=row.when_idle,
        wants=Wants(device=row.device, devices=row.devices, host=row.host),
        priority=row.priority,
        restarts=row.restarts,
        submitter=row.submitter,
        made_utc=utc(row.made_s),
        next_utc=None if row.paused_s is not None else utc(day * DAY_S + row.at_s),
        paused_utc=None if row.paused_s is None else utc(row.paused_s),
        nights=nights,
        damage=unreadable and f"its question: {unreadable}",
    )
