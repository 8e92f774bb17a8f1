"""Nightly schedules in pages: made from the form of an experiment, listed with their nights,
paused, resumed and deleted."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import cubemesh as api
import report_sample
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.schedules import DAY_S, Schedules
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Agent, Question, Wants
from cubemesh.schema import ExperimentRun
from cubemesh.store import Store
from cubemesh.team.audit_log import entries
from cubemesh.web.pages.jobs.schedules import ACTIONS
from held_jobs import hold
from web_pages import HOSTILE, Client

QUESTION = Question(names=("train",), settings=("framework=null",), no_cache=True)
NONE = Wants(device="none")
NIGHTLY = {"framework": "null", "when": "nightly"}


@pytest.fixture
def schedules(queue: JobQueue) -> Schedules:
    return Schedules(queue)


def register(queue: JobQueue, hostname: str) -> None:
    queue.register(
        Agent(
            agent_id=f"agent-{len(hostname)}",
            hostname=hostname,
            process=1,
            machine_id="m",
            version="0",
            devices=(),
            slots=1,
            seen_s=0.0,
            state="alive",
        )
    )


def after_days(queue: JobQueue, days: int) -> Schedules:
    """The schedules as an agent sees them at 03:00 so many days after today."""
    with queue.database.read() as connection:
        then = (queue.clock(connection) // DAY_S + days) * DAY_S + 3 * 3600.0
    return Schedules(JobQueue(queue.database, lambda connection: then))


def ask(member: Client, form: dict[str, str], experiment: str = "train") -> Any:
    return member.ask("POST", f"/ask/{experiment}", data=form)


def do(member: Client, schedule_id: int | str, action: str, **more: str) -> Any:
    form = {"action": action, "schedule": str(schedule_id), **more}
    return member.ask("POST", "/schedules", data=form)


def test_a_form_makes_a_schedule(member: Client, schedules: Schedules, queue: JobQueue) -> None:
    register(queue, "node3")
    form = {"epochs": "3", "scale": "quick", "job_priority": "7", "on_host": "node3"}
    window = {"nightly_at": "23:30", "nightly_within": "90m", "nightly_load": "any"}
    found = ask(member, {**NIGHTLY, **form, **window})
    assert found.status_code == 303, found.text
    (made,) = schedules.list()
    assert found.headers["location"] == f"/schedules#schedule-{made.schedule_id}"
    assert (made.at, made.within_s, made.when_idle) == ("23:30", 5400, False)
    assert sorted(made.question.settings) == ["epochs=3", "framework=null"]
    assert (made.question.scale, made.question.no_cache) == ("quick", True)
    assert (made.priority, made.wants) == (7, Wants(device="none", host="node3"))
    assert "@" in made.submitter
    assert queue.list() == []
    (entry,) = entries(queue.database)
    assert (entry.who, entry.action) == (made.submitter, "schedule")
    page = member.get("/schedules").text
    for text in ("train", "23:30 to 01:00 UTC, even when busy", "node3", made.submitter):
        assert text in page
    assert "No night yet." in page


def test_what_is_not_given_is_as_on_the_command_line(
    member: Client, schedules: Schedules, cubemesh: Any, store: Store
) -> None:
    """`nightly_load=idle` is sent by the page with every form."""
    assert ask(member, {**NIGHTLY, "nightly_load": "idle"}).status_code == 303
    words = ("submit", "train", "--set", "framework=null", "--nightly", "02:00")
    assert cubemesh(*words, "--store", store.name).returncode == 0
    by_page, by_command = schedules.list()
    assert vars(by_page) | dict.fromkeys(("schedule_id", "made_utc")) == (
        vars(by_command) | dict.fromkeys(("schedule_id", "made_utc"))
    )


def test_without_nightly_a_job_is_queued_now(member: Client, queue: JobQueue) -> None:
    for form in ({}, {"when": "now", "nightly_load": "idle"}):
        found = ask(member, {"framework": "null", **form})
        assert found.headers["location"].startswith("/jobs/")
    assert Schedules(queue).list() == []


@pytest.mark.parametrize(
    ("form", "field", "word"),
    [
        ({"nightly_at": "25:00"}, "nightly_at", "02:00"),
        ({"nightly_at": "9" * 5000}, "nightly_at", "02:00"),
        ({"nightly_within": "2 days"}, "nightly_within", "23 hours"),
        ({"nightly_within": "9" * 400}, "nightly_within", "23 hours"),
        ({"nightly_within": "soon"}, "nightly_within", "90m"),
        ({"nightly_load": "some"}, "nightly_load", "idle"),
        ({"on_host": "nowhere"}, "on_host", "node3"),
        ({"learning_rate": "0.1,0.01"}, "learning_rate", "one value"),
        ({"data": "digits, synthetic"}, "data", "one value"),
        ({"when": "now", "nightly_at": "02:00"}, "nightly_at", "every night"),
        ({"when": "now", "nightly_load": "any"}, "nightly_load", "every night"),
    ],
)
def test_what_is_wrong_is_next_to_its_field(
    member: Client, queue: JobQueue, form: dict[str, str], field: str, word: str
) -> None:
    register(queue, "node3")
    found = ask(member, {**NIGHTLY, **form})
    assert found.status_code == 400
    start = found.text.index(f'id="f-{field}"')
    own = found.text[start : found.text.index("</div>", start)]
    assert "problem" in own
    assert word in own
    answer = member.ask("POST", "/api/v1/ask/train", json={**NIGHTLY, **form})
    assert list(answer.json()["fields"]) == [field]
    assert Schedules(queue).list() == []
    assert queue.list() == []


def test_when_is_now_or_nightly(member: Client) -> None:
    found = ask(member, {"framework": "null", "when": "weekly"})
    assert found.status_code == 400
    assert "now, nightly" in found.text


def test_a_form_is_opened_for_every_night(member: Client, queue: JobQueue) -> None:
    register(queue, "node3")
    page = member.get("/ask/acceptance?set=when%3Dnightly&set=on_host%3Dnode3").text
    assert 'value="nightly" checked' in page
    assert '<option value="node3" selected>' in page
    job_id = queue.submit([QUESTION], [NONE]).job_id
    assert f"/ask/train?job={job_id}&amp;set=when%3Dnightly" in member.get(f"/jobs/{job_id}").text
    again = member.get(f"/ask/train?job={job_id}&set=when%3Dnightly").text
    assert 'value="nightly" checked' in again
    assert 'name="framework" value="null"' in again
    assert member.get("/api/v1/ask/train").json()["hosts"] == ["node3"]


def test_a_schedule_is_copied(member: Client, schedules: Schedules, queue: JobQueue) -> None:
    register(queue, "node3")
    form = {"epochs": "3", "scale": "quick", "job_priority": "-7", "on_host": "node3"}
    window = {"nightly_at": "23:30", "nightly_within": "1h1m1s", "nightly_load": "any"}
    assert ask(member, {**NIGHTLY, **form, **window}).status_code == 303
    (made,) = schedules.list()
    address = f"/ask/train?schedule={made.schedule_id}"
    assert f'href="{address}"' in member.get("/schedules").text
    page = member.get(address).text
    fields = dict(re.findall(r'<input id="f-\w+" name="(\w+)" value="([^"]+)"', page))
    fields |= dict.fromkeys(("when", "scale", "on_host", "nightly_load"), "")
    for name in ("when", "scale", "on_host", "nightly_load"):
        fields[name] = {**NIGHTLY, **form, **window}[name]
        assert re.search(rf"{fields[name]}\W[^>]*(checked|selected)|selected>{fields[name]}", page)
    assert ask(member, fields).status_code == 303
    _, copy = schedules.list()
    assert sorted(copy.question.settings) == sorted(made.question.settings)
    ignored = dict.fromkeys(("schedule_id", "made_utc", "name", "question"))
    assert vars(copy) | ignored == vars(made) | ignored
    assert copy.question.scale == "quick"
    assert member.get("/ask/train?schedule=9").status_code == 404
    assert member.get(f"/ask/minibatch?schedule={made.schedule_id}").status_code == 400
    other = schedules.add(Question(names=("train",), against=("batch=2",)), NONE, at_s=0)
    assert f"?schedule={other.schedule_id}" not in member.get("/schedules").text


def test_the_list_has_what_became_of_the_nights(
    member: Client, schedules: Schedules, queue: JobQueue
) -> None:
    made = schedules.add(QUESTION, NONE, at_s=2 * 3600, submitter="ann")
    free = FreeDevices(hostname="here")
    (job_id,) = after_days(queue, 3).submit_due("a", free)
    queue.stop(job_id)
    page = member.get("/schedules").text
    assert f'<a href="/jobs/{job_id}">' in page
    assert f"job {job_id}, stopped" in page
    assert "skipped, no suitable agent was running" in page
    assert "by ann" in page
    document = member.get("/api/v1/schedules").json()
    (found,) = document["schedules"]
    assert (found["schedule_id"], found["at"]) == (made.schedule_id, "02:00")
    assert found["nights"][0]["state"] == "stopped"
    assert found["nights"][1]["state"] is None
    assert found["next_utc"]
    with Store.open(queue.database.location.name, read_only=True) as reading:
        assert api.list_schedules(store=reading) == Schedules(queue).list()


def test_the_last_night_has_its_answer(
    member: Client, schedules: Schedules, queue: JobQueue, store: Store
) -> None:
    sample = report_sample.sample()
    store.save_machine(sample.machine)
    for record in sample.records.values():
        store.save(record, sample.series.get(record.run_id, ()))
    runs = tuple(sample.records)
    for number in range(2):  # the second reuses the runs
        store.save_experiment_run(
            ExperimentRun(
                experiment_run_id=f"{number:012x}",
                experiment="minibatch",
                machine_id=sample.machine.machine_id,
                started_utc=f"2026-11-2{number}T02:00:00+00:00",
                run_ids=runs,
                complete=True,
            )
        )
    question = Question(names=("minibatch",), settings=("framework=null",), no_cache=True)
    schedules.add(question, NONE, at_s=2 * 3600)
    after_days(queue, 2).submit_due("a", FreeDevices(hostname="here"))
    lease = hold(queue)
    for run_id in runs:
        lease.add_run(run_id)
    assert member.get("/api/v1/schedules").json()["schedules"][0]["result"] is None, "it runs"
    lease.end(State.DONE)
    found = member.get("/api/v1/schedules").json()["schedules"][0]["result"]
    assert found["experiment_run_id"] == f"{0:012x}"
    page = member.get("/schedules").text
    assert f'<a href="/answers/{0:012x}">' in page
    assert found["text"][:20] in page


def test_a_night_says_why_its_job_failed(
    member: Client, schedules: Schedules, queue: JobQueue
) -> None:
    schedules.add(QUESTION, NONE, at_s=2 * 3600)
    (job_id,) = after_days(queue, 2).submit_due("a", FreeDevices(hostname="here"))
    hold(queue).end(State.FAILED, f"A run crashed {HOSTILE}")
    page = member.get("/schedules").text
    assert f"job {job_id}, failed: A run crashed" in page
    assert "<img" not in page


def test_schedules_of_a_host(member: Client, schedules: Schedules) -> None:
    ids = [
        schedules.add(QUESTION, Wants(device="none", host=host), at_s=0).schedule_id
        for host in ("node1", "node2", None)
    ]
    found = member.get("/api/v1/schedules?host=node1").json()["schedules"]
    assert [one["schedule_id"] for one in found] == [ids[0], ids[2]]
    assert "of node1" in member.get("/schedules?host=node1").text


def test_the_page_of_a_machine_has_its_schedules(
    member: Client, schedules: Schedules, queue: JobQueue, store: Store
) -> None:
    machine = report_sample.machine()
    store.save_machine(machine)
    address = f"/machines/{machine.machine_id}"
    schedules.add(QUESTION, Wants(device="none", host="elsewhere"), at_s=0)
    own = schedules.add(QUESTION, Wants(device="none", host=machine.hostname), at_s=0)
    assert "Nightly schedules" not in member.get(address).text, "it has no agent"
    assert member.get(f"/api/v1{address}").json()["schedules"] == []
    register(queue, machine.hostname)
    page = member.get(address).text
    assert f'id="schedule-{own.schedule_id}"' in page
    assert "elsewhere" not in page
    assert "/ask/acceptance?set=when%3Dnightly&amp;set=on_host%3D" in page
    found = member.get(f"/api/v1{address}").json()["schedules"]
    assert [one["schedule_id"] for one in found] == [own.schedule_id]


def test_a_schedule_is_paused_resumed_and_deleted(member: Client, schedules: Schedules) -> None:
    number = schedules.add(QUESTION, NONE, at_s=0).schedule_id
    assert do(member, number, "pause").headers["location"] == f"/schedules#schedule-{number}"
    assert schedules.get(number).paused_utc is not None
    page = member.get("/schedules").text
    assert "paused since" in page
    assert f'aria-label="Resume schedule {number}"' in page
    again = do(member, number, "pause")
    assert again.status_code == 400
    assert "paused already" in again.text
    assert do(member, number, "resume").status_code == 303
    assert "paused since" not in member.get("/schedules").text
    assert do(member, number, "delete").headers["location"] == "/schedules"
    assert schedules.list() == []
    assert "No schedules" in member.get("/schedules").text


@pytest.mark.parametrize(
    ("number", "action", "more", "status", "word"),
    [
        ("1", "stop", {}, 400, "pause, resume, delete"),
        ("x", "delete", {}, 400, "number"),
        ("9" * 5000, "delete", {}, 400, "number"),
        ("7", "delete", {}, 404, "no schedule 7"),
        ("1", "delete", {"more": "1"}, 400, "more"),
        ("1", "resume", {}, 400, "not paused"),
        ("1", HOSTILE, {}, 400, "action"),
    ],
)
def test_a_wrong_form_changes_nothing(
    member: Client,
    schedules: Schedules,
    number: str,
    action: str,
    more: dict[str, str],
    status: int,
    word: str,
) -> None:
    schedules.add(QUESTION, NONE, at_s=0)
    before = schedules.list()
    found = do(member, number, action, **more)
    assert found.status_code == status
    assert word in found.text
    assert "<img" not in found.text
    twin = member.ask(
        "POST", "/api/v1/schedules", json={"action": action, "schedule": number, **more}
    )
    assert twin.status_code == status
    assert twin.json()["error"]
    assert schedules.list() == before


BY_FUNCTION = {
    "pause": (api.pause_schedule, "pause-schedule"),
    "resume": (api.resume_schedule, "resume-schedule"),
    "delete": (api.delete_schedule, "unschedule"),
}


def test_every_action_of_the_page_is_compared_below() -> None:
    assert set(BY_FUNCTION) == set(ACTIONS)


@pytest.mark.parametrize("action", BY_FUNCTION)
def test_an_action_is_the_same_by_page_function_and_command(
    member: Client, schedules: Schedules, store: Store, cubemesh: Any, action: str
) -> None:
    function, verb = BY_FUNCTION[action]
    ids = [schedules.add(QUESTION, NONE, at_s=0).schedule_id for _ in range(3)]
    if action == "resume":
        for number in ids:
            schedules.pause(number, who="ann")
    script = Client(member.bench, authorization="Bearer a-token-of-the-tests")
    form = {"action": action, "schedule": ids[0]}
    found = script.ask("POST", "/api/v1/schedules", json=form)
    assert found.status_code == 200
    function(ids[1], store=store)
    done = cubemesh("jobs", verb, str(ids[2]), "--json", "--store", store.name)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == found.json().keys()
    left = [(one.paused_utc is None, one.next_utc is None) for one in schedules.list()]
    assert left == [] if action == "delete" else len(set(left)) == 1
    actions = {(one.who, one.action) for one in entries(store.database, limit=3)}
    assert len(actions) == 1
