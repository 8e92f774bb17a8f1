"""Damaged rows of jobs, their events and schedules: named, and hiding no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import Connection, Table, update

from cubemesh.errors import UsageError
from cubemesh.jobs.child import Assignment, run_job_of
from cubemesh.jobs.feed import DAMAGED, curves_until, events_after, follow, newest_events
from cubemesh.jobs.lease import Lease
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.schedules import DAY_S, Schedules
from cubemesh.jobs.states import State
from cubemesh.jobs.submission import cloned
from cubemesh.jobs.values import Question, QueuedJob, Wants
from cubemesh.store import Store
from cubemesh.store.migrations.job_tables import agents, job_events, jobs
from cubemesh.store.migrations.schedule_tables import schedules
from cubemesh.views.job_pages import WatchPages, event_line, print_job, print_jobs
from held_jobs import hold, running
from scripted_clock import Clock

QUESTION = Question(names=("minibatch",), settings=("framework=null",))
NONE = Wants(device="none")
FREE = FreeDevices(hostname="here")
DAMAGED_TEXTS = [
    b"\xff\xfe\x00bytes",
    "",
    "{",
    "null",
    "[1]",
    '{"names": 7}',
    '{"names": []}',
    '{"names": ["train"], "what": 1}',
    "[" * 100_000,
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as opened:
        yield opened


@pytest.fixture
def queue(store: Store) -> JobQueue:
    return JobQueue(store.database, Clock())


def _execute(statement: Any, connection: Connection) -> None:
    connection.execute(statement)


def put(queue: JobQueue, **given: Any) -> int:
    return queue.submit([QUESTION], [NONE], **given).job_id


def write(queue: JobQueue, table: Table, where: Any, **columns: Any) -> None:
    queue.database.commit(lambda c: c.execute(update(table).where(where).values(columns)))


def spoil(queue: JobQueue, job_id: int, **columns: Any) -> None:
    write(queue, jobs, jobs.c.job_id == job_id, **columns)


def spoil_event(queue: JobQueue, job_id: int, sequence: int, value: Any, **columns: Any) -> None:
    this = (job_events.c.job_id == job_id) & (job_events.c.sequence == sequence)
    write(queue, job_events, this, value=value, **columns)


def printed(found: list[QueuedJob]) -> str:
    console = Console(file=StringIO(), width=200)
    print_jobs(console, found)
    for job in found:
        print_job(console, job)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("text", DAMAGED_TEXTS, ids=range(len(DAMAGED_TEXTS)))
def test_a_damaged_question_is_named_and_the_agent_goes_on_with_the_next_job(
    queue: JobQueue, text: str
) -> None:
    broken, other = put(queue, priority=1), put(queue)
    spoil(queue, broken, question=text)
    listed = {job.job_id: job for job in queue.list()}
    assert listed[broken].damage.startswith("question: ")
    assert (listed[other].question, listed[other].damage) == (QUESTION, "")
    assert "question: " in printed(list(listed.values()))
    told: dict[int, str] = {}
    claimed = queue.claim("a", FREE, damaged=told.__setitem__)
    assert claimed is not None
    assert claimed.job_id == other
    assert told.keys() == {broken}
    failed = queue.get(broken)
    assert failed.state is State.FAILED
    assert "stored question is damaged" in failed.why
    assert queue.claim("a", FREE) is None
    queue.resume(broken)  # may be tried, and fails again
    assert queue.claim("a", FREE) is None
    assert queue.get(broken).state is State.FAILED
    with pytest.raises(UsageError, match=f"Job {broken} .*damaged"):
        cloned(failed, ())


@pytest.mark.parametrize(
    "columns",
    [
        {"progress": "{"},
        {"slurm": "{"},
        {"state": "frobnicating"},
        {"kind": "x"},
        {"device": "x"},
        {"devices": "many"},
        {"name": b"\xff"},
        {"why": b"\xff"},
        {"priority": "x", "fence": "x", "attempt": "x", "restarts": "x", "faults": "x"},
        {"made_utc": b"\xff", "submitter": b"\xff", "host": b"\xff", "control": b"\xff"},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_any_damaged_column_is_named_and_hides_no_other_job(
    queue: JobQueue, columns: dict[str, Any]
) -> None:
    broken, other = put(queue), put(queue)
    spoil(queue, broken, **columns)
    found = {job.job_id: job for job in queue.list()}
    for name in columns:
        assert f"{name}: " in found[broken].damage
    assert queue.get(broken) == found[broken]
    assert found[other].damage == ""
    assert sum(queue.counts().values()) >= 1
    assert str(other) in printed(list(found.values()))
    for _ in range(2):
        queue.claim("a", FREE)
    assert queue.get(other).state is State.STARTING


def test_a_damaged_count_lets_the_lease_expire(queue: JobQueue) -> None:
    job_id = put(queue)
    assert queue.claim("a", FREE, lease_s=-1) is not None
    spoil(queue, job_id, faults="x", restarts="x", next_question="{")
    assert queue.expire() == 1
    assert queue.get(job_id).state is State.LOST


def test_a_damaged_edit_is_left_out_with_a_message(queue: JobQueue) -> None:
    job_id = put(queue)
    lease = hold(queue)
    spoil(queue, job_id, next_question="{", control="edit")
    assert lease.release("") is State.QUEUED
    assert queue.get(job_id).question == QUESTION
    events, _ = events_after(queue, job_id)
    (text,) = [event.value["text"] for event in events if event.kind == "message"]
    assert "edit of its question is damaged" in text


def test_a_question_that_is_damaged_after_its_claim_fails_its_job(
    store: Store, queue: JobQueue, tmp_path: Path
) -> None:
    job_id = put(queue)
    lease = hold(queue)
    spoil(queue, job_id, question="{")
    given = Assignment(
        store=store.name,
        job_id=job_id,
        fence=lease.fence,
        lease_s=1e9,
        pause_file=str(tmp_path / "pause"),
        checkpoints=str(tmp_path),
    )
    run_job_of(given, store)
    assert queue.get(job_id).state is State.FAILED
    assert "damaged: question: " in queue.get(job_id).why


def test_a_damaged_row_of_an_agent_hides_no_other(queue: JobQueue) -> None:
    put(queue)
    row = {"hostname": "h", "process": 1, "machine_id": "m", "version": "1", "slots": 1}
    for name, devices in (("a", "{"), ("b", '["gpu-1"]')):
        values = {"agent_id": name, "devices": devices, "seen_s": 0.0, "ended_utc": None, **row}
        inserted = agents.insert().values(values)
        queue.database.commit(partial(_execute, inserted))
    assert {one.agent_id: one.devices for one in queue.agents()} == {"a": (), "b": ("gpu-1",)}


def test_a_damaged_schedule_is_skipped_with_the_reason_and_others_are_queued(
    queue: JobQueue,
) -> None:
    nightly = Schedules(queue)
    broken, other = (nightly.add(QUESTION, NONE, at_s=2 * 3600, when_idle=False) for _ in range(2))
    this = schedules.c.schedule_id == broken.schedule_id
    write(queue, schedules, this, question="{")
    clock: Any = queue.clock
    clock.now += DAY_S - clock.now % DAY_S + 2 * 3600
    (job_id,) = nightly.submit_due("a", FREE)
    found = {one.schedule_id: one for one in nightly.list()}
    assert found[other.schedule_id].nights[0].job_id == job_id
    assert found[broken.schedule_id].damage.startswith("its question: ")
    assert "damaged" in found[broken.schedule_id].nights[0].why


DAMAGED_EVENTS = [
    b"\xff\xfe",
    "{",
    "null",
    "7",
    '{"text": NaN}',
    '{"text": 7}',
    "{}",
    '{"text": "a", "more": 1e999}',
    "[" * 100_000,
    '{"text": "\\ud800"}',
]


@pytest.mark.parametrize("value", DAMAGED_EVENTS, ids=range(len(DAMAGED_EVENTS)))
def test_a_damaged_event_is_named_and_keeps_its_number(queue: JobQueue, value: Any) -> None:
    lease = running(queue)
    job_id = lease.job_id
    lease.renew(events=[("message", {"text": one}) for one in "abc"])
    (first, _, last), _ = _messages(queue, job_id)
    spoil_event(queue, job_id, first + 1, value)
    events, cursor = events_after(queue, job_id)
    assert [event.sequence for event in events] == list(range(1, cursor + 1))
    (damaged,) = [event for event in events if event.kind == DAMAGED]
    assert (damaged.sequence, damaged.value["kind"]) == (first + 1, "message")
    assert event_line(damaged).startswith(f"event {first + 1} (message) is left out: ")
    json.dumps([vars(event) for event in events], allow_nan=False)
    assert [one.sequence for one in newest_events(queue, job_id, ("message",), 9)] == [
        last,
        first + 1,
        first,
    ]
    lease.end(State.DONE)
    console = Console(file=StringIO(), width=200)
    pages = WatchPages(console, as_json=False)
    for event in follow(queue, job_id, wait=lambda: None):
        pages.event(event)
    assert f"event {first + 1} (message)" in console.file.getvalue()  # type: ignore[attr-defined]


def _messages(queue: JobQueue, job_id: int) -> tuple[list[int], int]:
    events, cursor = events_after(queue, job_id)
    return [event.sequence for event in events if event.kind == "message"], cursor


RUN = {"run": 1, "work": "train", "network": None, "framework": "null"}
OF_KINDS = [
    ("state", {"state": "frobnicating", "why": ""}),
    ("state", {"state": "done"}),
    ("edited", {"settings": ["epochs=2"]}),
    ("run", {**RUN, "run": "x"}),
    ("run", {**RUN, "batch_per_device": "x"}),
    ("run", {**RUN, "expected": {"samples_per_s": 0, "low": None, "high": None, "source": ""}}),
    ("run", {**RUN, "expected": 7}),
    ("points", {"run": 1, "series": "training_loss", "points": [[1]]}),
    ("points", {"run": 1, "series": "training_loss", "points": [[1, "x"]]}),
    ("points", {"run": 1, "series": "training_loss", "points": [[1, 10**400]]}),
    ("points", {"run": 1, "points": [[1, 2]]}),
    ("rewind", {"run": 1, "step": None}),
    ("warning", {"code": "busy", "cause": "x"}),
    ("eta", {"eta_s": "x", "eta_low_s": 1, "eta_high_s": 2}),
    ("finished", {"run": 1, "run_id": 7, "outcome": "ok", "reused": False}),
    ("log", {"text": None}),
]


@pytest.mark.parametrize(("kind", "value"), OF_KINDS)
def test_an_event_without_the_fields_of_its_kind_is_damaged(
    queue: JobQueue, kind: str, value: dict[str, Any]
) -> None:
    lease = running(queue)
    lease.renew(events=[(kind, value)])
    events, _ = events_after(queue, lease.job_id)
    assert events[-1].kind == DAMAGED
    assert events[-1].value["kind"] == kind


def test_the_points_of_other_events_remain(queue: JobQueue) -> None:
    lease = running(queue)
    for x in range(3):
        points = {"run": 1, "series": "training_loss", "points": [[x, x / 2]]}
        lease.renew(events=[("points", points)])
    _, last = events_after(queue, lease.job_id)
    spoil_event(queue, lease.job_id, last - 1, "{")
    found = curves_until(queue, lease.job_id)
    assert found.curves == {1: {"training_loss": [[0, 0.0], [2, 1.0]]}}
    assert found.cursor == last
    assert [event.sequence for event in found.damaged] == [last - 1]


def test_events_of_a_newer_cubemesh_are_passed_on(queue: JobQueue) -> None:
    lease: Lease = running(queue)
    lease.renew(events=[("of a newer version", {"anything": [1, None]})])
    events, _ = events_after(queue, lease.job_id)
    assert (events[-1].kind, events[-1].value) == ("of a newer version", {"anything": [1, None]})
