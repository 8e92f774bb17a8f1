"""Pages and JSON of damaged jobs: each is shown with what is damaged, and hides no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import update

from cubemesh.jobs.feed import events_after
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.schedules import Schedules
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Question, Wants
from cubemesh.store.migrations.job_tables import job_events, jobs
from cubemesh.store.migrations.schedule_tables import schedules
from cubemesh.web.live import Hub
from held_jobs import running
from patience import PATIENCE_S
from web_pages import Client, fill_queue

JOB = 1
"""The training of `fill_queue`, which runs."""


@pytest.fixture
def member(member: Client, queue: JobQueue) -> Client:
    fill_queue(queue)
    return member


def write(queue: JobQueue, table: Any, where: Any, **columns: Any) -> None:
    queue.database.commit(lambda c: c.execute(update(table).where(where).values(columns)))


def addresses(job_id: int) -> list[str]:
    own = [f"/jobs/{job_id}{part}" for part in ("", "/events", "/curves")]
    return ["/", "/api/v1/home", *(prefix + one for prefix in ("", "/api/v1") for one in own)]


@pytest.mark.parametrize("value", [b"\xff\xfe", "{}", '{"run": NaN}', '{"run": 1, "points": 7}'])
def test_damaged_events_are_named_on_every_page_of_their_job(
    member: Client, queue: JobQueue, value: Any
) -> None:
    write(queue, job_events, job_events.c.job_id == JOB, value=value)
    for address in addresses(JOB):
        assert member.get(address).status_code == 200, address
    page = member.get(f"/jobs/{JOB}").text
    assert "(warning) is left out: " in page
    document = member.get(f"/api/v1/jobs/{JOB}").json()
    assert any("(run) is left out: " in text for text in document["damaged"])
    events = member.get(f"/api/v1/jobs/{JOB}/events").json()["events"]
    assert {event["kind"] for event in events} == {"damaged"}
    curves = member.get(f"/api/v1/jobs/{JOB}/curves").json()
    assert curves["curves"] == []
    assert len(curves["damaged"]) == 2
    assert "(points) is left out: " in member.get(f"/jobs/{JOB}/curves").text
    assert "(eta)" not in page
    other = member.get("/jobs/2/events")
    assert other.status_code == 200
    assert "is left out" not in other.text


@pytest.mark.parametrize("text", [b"\xff\xfe", "null", '{"names": 7}'])
def test_a_damaged_question_is_named_in_the_list_and_on_its_page(
    member: Client, queue: JobQueue, text: Any
) -> None:
    write(queue, jobs, jobs.c.job_id == JOB, question=text)
    for address in (*addresses(JOB), "/jobs", "/api/v1/jobs"):
        assert member.get(address).status_code == 200, address
    assert "Damaged: question: " in member.get("/jobs").text
    assert "stored row of this job is damaged: question: " in member.get(f"/jobs/{JOB}").text
    listed = member.get("/api/v1/jobs").json()["jobs"]
    assert [job["job_id"] for job in listed if job["damage"]] == [JOB]
    assert len(listed) == 4
    document = member.get(f"/api/v1/jobs/{JOB}").json()
    assert document["job"]["damage"].startswith("question: ")
    assert not {"clone", "edit"} & set(document["actions"])
    for address in (f"/jobs/{JOB}", f"/api/v1/jobs/{JOB}"):
        for action in ({"action": "clone"}, {"action": "edit", "epochs": "3"}):
            found = member.ask("POST", address, data=action)
            assert found.status_code == 400
            assert "damaged" in found.text
    found = member.get(f"/ask/train?job={JOB}")
    assert (found.status_code, "is damaged" in found.text) == (400, True)
    assert member.ask("POST", f"/jobs/{JOB}", data={"action": "stop"}).status_code == 303


def test_a_damaged_schedule_is_named_and_hides_no_job(member: Client, queue: JobQueue) -> None:
    made = Schedules(queue).add(Question(names=("train",)), Wants(device="none"), at_s=0)
    write(queue, schedules, schedules.c.schedule_id == made.schedule_id, question="{")
    assert f'href="/jobs/{JOB}"' in member.get("/jobs").text
    assert "stored row is damaged: its question: " in member.get("/schedules").text
    listed = member.get("/api/v1/schedules").json()["schedules"]
    assert [one["schedule_id"] for one in listed if one["damage"]] == [made.schedule_id]
    copied = member.get(f"/ask/train?schedule={made.schedule_id}")
    assert copied.status_code in (400, 404)


def test_a_stream_passes_damaged_events_and_ends_with_its_job(queue: JobQueue) -> None:
    lease = running(queue)
    lease.renew(events=[("message", {"text": "a"})])
    lease.end(State.DONE)
    _, last = events_after(queue, lease.job_id)
    write(queue, job_events, job_events.c.job_id == lease.job_id, value="{")

    async def watch() -> bytes:
        body: Any = Hub(queue).response(lease.job_id, 0)
        return b"".join([chunk async for chunk in body.body_iterator])

    found = asyncio.run(asyncio.wait_for(watch(), PATIENCE_S)).decode()
    assert found.count('"kind":"damaged"') == last
    assert found.endswith("event: end\ndata: {}\n\n")
