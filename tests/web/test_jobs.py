"""Pages of jobs: the list, one job, and forms that change it, from a page and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import cubemesh as api
from cubemesh.jobs.feed import events_after
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.submission import EDITABLE
from cubemesh.jobs.values import Question, Wants
from cubemesh.store import Store
from cubemesh.web.app import Workbench
from cubemesh.web.pages.jobs import job as job_page
from cubemesh.web.security.gate import Rules
from held_jobs import hold
from web_pages import OWN, Client

QUESTION = Question(names=("train",), settings=("framework=null", "epochs=2"))
NONE = Wants(device="none")


def put(queue: JobQueue, **given: Any) -> int:
    return queue.submit([QUESTION], [NONE], **given).job_id


def do(member: Client, job_id: int, action: str, **more: str) -> Any:
    return member.ask("POST", f"/jobs/{job_id}", data={"action": action, **more})


def test_a_queued_job_is_paused_resumed_and_cancelled(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    for action, state in (("pause", "paused"), ("resume", "queued"), ("stop", "stopped")):
        found = do(member, job_id, action)
        assert found.status_code == 303
        assert found.headers["location"] == f"/jobs/{job_id}"
        assert queue.get(job_id).state == state
        page = member.get(f"/jobs/{job_id}").text
        assert f">{state}</b>" in page
    events, _ = events_after(queue, job_id)
    assert all("@" in event.value["who"] for event in events[1:])


def test_a_running_job_is_asked_to_stop_at_a_checkpoint(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    lease = hold(queue)
    assert "Stop at a checkpoint" in member.get(f"/jobs/{job_id}").text
    assert do(member, job_id, "stop-at-checkpoint").status_code == 303
    assert lease.control() == "stop-at-checkpoint"
    assert do(member, job_id, "stop").status_code == 303
    assert lease.control() == "stop"
    lease.end(State.STOPPED)
    assert "Stop now" not in member.get(f"/jobs/{job_id}").text


def test_a_job_is_run_again(member: Client, queue: JobQueue) -> None:
    job_id = put(queue, priority=3)
    found = do(member, job_id, "clone")
    assert found.status_code == 303
    new = queue.get(int(found.headers["location"].removeprefix("/jobs/")))
    assert new.job_id != job_id
    assert new.question == QUESTION
    assert (new.priority, new.wants) == (3, NONE)


def test_a_priority_is_changed(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    assert do(member, job_id, "priority", priority="-7").status_code == 303
    assert queue.get(job_id).priority == -7
    for wrong in ("", "x", "1e3", "99999999999999999999", "1.5"):
        found = do(member, job_id, "priority", priority=wrong)
        assert found.status_code == 400
        assert "whole number" in found.text
    assert queue.get(job_id).priority == -7


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ({"action": "frobnicate"}, "frobnicate"),
        ({}, "action"),
        ({"action": "resume"}, "queued"),
        ({"action": "pause", "state": "done"}, "state"),
    ],
)
def test_a_wrong_form_changes_nothing(
    member: Client, queue: JobQueue, form: dict[str, str], word: str
) -> None:
    job_id = put(queue)
    before = events_after(queue, job_id)
    for path in (f"/jobs/{job_id}", f"/api/v1/jobs/{job_id}"):
        found = member.ask("POST", path, data=form)
        assert found.status_code == 400
        assert word in found.text
    assert events_after(queue, job_id) == before


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{"),
        ("application/json", b"[1]"),
        ("application/json", b'{"action": {"a": 1}}'),
        ("application/json", b"[" * 20_000),
        ("application/x-www-form-urlencoded", b"action=%ff\xff"),
        ("application/x-www-form-urlencoded", b"&".join(b"a%d=1" % i for i in range(300))),
        ("text/plain", b"frobnicate"),
    ],
)
def test_a_body_that_is_not_a_form_is_refused(
    member: Client, queue: JobQueue, kind: str, body: bytes
) -> None:
    job_id = put(queue)
    found = member.ask("POST", f"/jobs/{job_id}", content=body, headers={"content-type": kind})
    assert found.status_code == 400
    assert queue.get(job_id).state is State.QUEUED


def test_what_a_page_does_a_script_can_do(member: Client, queue: JobQueue, access: Any) -> None:
    job_id = put(queue)
    script = Client(member.bench, authorization="Bearer a-token-of-the-tests")
    found = script.ask("POST", f"/api/v1/jobs/{job_id}", json={"action": "pause"})
    assert found.status_code == 200
    assert found.json()["job"]["state"] == "paused"
    actions = script.get(f"/api/v1/jobs/{job_id}").json()["actions"]
    assert actions == ["resume", "stop", "clone", "edit"]
    found = script.ask("POST", f"/api/v1/jobs/{job_id}", json={"action": "edit", "epochs": 5})
    assert "epochs=5" in found.json()["job"]["question"]["settings"]


def test_a_form_without_the_page_as_its_origin_changes_nothing(
    member: Client, queue: JobQueue, access: Any
) -> None:
    job_id = put(queue)
    for origin in ("http://evil.example.org", "null", "http://127.0.0.1:9"):
        found = member.ask(
            "POST", f"/jobs/{job_id}", data={"action": "stop"}, headers={"origin": origin}
        )
        assert found.status_code == 403
    stranger = Client(member.bench, origin=OWN)
    assert do(stranger, job_id, "stop").status_code == 401
    assert queue.get(job_id).state is State.QUEUED


def test_the_list_is_filtered_and_has_pages(member: Client, queue: JobQueue) -> None:
    ids = [put(queue) for _ in range(5)]
    queue.pause(ids[1])
    assert ">paused" in member.get("/jobs").text
    found = member.get("/api/v1/jobs?state=paused").json()
    assert [job["job_id"] for job in found["jobs"]] == [ids[1]]
    assert found["counts"] == {"queued": 4, "paused": 1}
    seen: list[int] = []
    after = ""
    while True:
        page = member.get(f"/api/v1/jobs?limit=2{after}").json()
        seen += [job["job_id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        after = f"&before={page['next']}"
    assert seen == ids[::-1]
    assert 'rel="next"' in member.get("/jobs?limit=2").text


def test_a_sweep_shows_its_jobs(member: Client, queue: JobQueue) -> None:
    sweep = queue.submit([QUESTION, QUESTION], [NONE, NONE], sweep=QUESTION)
    page = member.get(f"/jobs/{sweep.job_id}").text
    for child in sweep.children:
        assert f'href="/jobs/{child}"' in page
    found = member.get(f"/api/v1/jobs?sweep={sweep.job_id}").json()
    assert sorted(job["job_id"] for job in found["jobs"]) == list(sweep.children)
    do(member, sweep.job_id, "stop")
    assert {queue.get(child).state for child in sweep.children} == {State.STOPPED}


def test_the_time_left_has_its_interval(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    eta = {"eta_s": 240.0, "eta_low_s": 180.0, "eta_high_s": 300.0}
    hold(queue).renew({"fraction": 0.5, "run": 2, "runs": 4, **eta})
    page = member.get(f"/jobs/{job_id}").text
    assert "4 min" in page
    assert "(3 min to 5 min)" in page
    assert 'value="0.375"' in page


def test_curves_are_those_of_the_chosen_run(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    lease = hold(queue)
    lease.renew(
        events=[
            ("points", {"run": 1, "series": "training_loss", "points": [[1, 2.0], [2, None]]}),
            ("points", {"run": 2, "series": "samples_per_s", "points": [[0.5, 100.0]]}),
        ]
    )
    latest = member.get(f"/api/v1/jobs/{job_id}/curves").json()
    assert (latest["run"], latest["runs"]) == (2, [1, 2])
    assert [one["series"] for one in latest["curves"]] == ["samples_per_s"]
    first = json.loads(
        member.get(f"/api/v1/jobs/{job_id}/curves?run=1").text, parse_constant=pytest.fail
    )
    assert first["curves"][0]["y"] == [2.0, None]
    assert "not finite" in member.get(f"/jobs/{job_id}/curves?run=1").text
    events, _ = events_after(queue, job_id, latest["cursor"])
    assert not [one for one in events if one.kind == "points"]


def test_sensors_have_charts_below_those_of_the_training(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    names = ("cpu_utilization_percent", "training_loss", "gpu_power_watts", "validation_loss")
    points = [
        ("points", {"run": 1, "series": name, "points": [[0.5, 70.0], [1.0, 80.0]]})
        for name in names
    ]
    hold(queue).renew(events=points)
    found = member.get(f"/api/v1/jobs/{job_id}/curves").json()["curves"]
    assert [(one["name"], one["unit"], one["x_name"]) for one in found] == [
        ("training loss", "", "step"),
        ("validation loss", "", "epoch"),
        ("GPU power", "W", "seconds"),
        ("CPU utilization", "%", "seconds"),
    ]
    assert found[2]["y"] == [70.0, 80.0]


def test_a_store_that_is_read_only_refuses_with_a_sentence(
    queue: JobQueue, store: Store, access: Any
) -> None:
    job_id = put(queue)
    with Store.open(store.name, read_only=True) as reading:
        bench = Workbench(reading, access, Rules(), secure=False)
        member = Client(bench, cookie=f"{access.cookie}={access.new_session()}", origin=OWN)
        assert member.get("/jobs").status_code == 200
        found = do(member, job_id, "stop")
    assert found.status_code == 500
    assert "<h1>" in found.text
    assert "Traceback" not in found.text
    assert queue.get(job_id).state is State.QUEUED


def test_what_is_expected_is_with_what_is_measured(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    lease = hold(queue)
    expected = {
        "samples_per_s": 200.0,
        "low": 180.0,
        "high": 220.0,
        "source": "2 runs",
        "run_ids": [],
    }
    run = {"run": 1, "work": "train", "network": "little-cnn", "framework": "null"}
    points = {"run": 1, "series": "samples_per_s", "points": [[0.5, 100.0], [1.0, 150.0]]}
    events = [("run", {**run, "expected": expected}), ("points", points)]
    lease.renew({"samples_per_s": 150.0}, events)
    assert "75 % of the expected 200 samples/s (180 to 220), from 2 runs" in (
        member.get(f"/jobs/{job_id}").text
    )
    (curve,) = member.get(f"/api/v1/jobs/{job_id}/curves").json()["curves"]
    assert curve["expected"] == expected
    lease.renew({"samples_per_s": 150.0}, [("run", {**run, "expected": None})])
    assert "of the expected" not in member.get(f"/jobs/{job_id}").text


BY_FUNCTION: dict[str, Callable[[int, Store], Any]] = {
    "pause": lambda job_id, store: api.pause_job(job_id, store=store),
    "resume": lambda job_id, store: api.resume_job(job_id, store=store),
    "stop": lambda job_id, store: api.stop_job(job_id, store=store),
    "stop-at-checkpoint": lambda job_id, store: api.stop_job(
        job_id, at_checkpoint=True, store=store
    ),
    "clone": lambda job_id, store: api.clone_job(job_id, store=store),
    "priority": lambda job_id, store: api.prioritize_job(job_id, 5, store=store),
    "edit": lambda job_id, store: api.edit_job(job_id, {"epochs": 9}, store=store),
}
BY_COMMAND = {"stop-at-checkpoint": ["stop", "--at-checkpoint"]}
FIELDS = {"priority": {"priority": "5"}, "edit": {"epochs": "9"}}
WORDS = {"priority": ["5"], "edit": ["--set", "epochs=9"]}


def test_every_action_of_the_page_is_compared_below() -> None:
    assert set(BY_FUNCTION) == set(job_page.ACTIONS)


@pytest.mark.parametrize(
    ("action", "held"),
    [
        *((action, False) for action in BY_FUNCTION if action != "stop-at-checkpoint"),
        *((action, True) for action in ("pause", "stop-at-checkpoint", "edit")),
    ],
)
def test_an_action_is_the_same_by_page_function_and_command(
    member: Client, queue: JobQueue, store: Store, cubemesh: Any, action: str, held: bool
) -> None:
    ids = [put(queue) for _ in range(3)]
    for job_id in ids:
        if held:
            hold(queue)
        if action == "resume":
            queue.pause(job_id)
    by_page, by_function, by_command = ids
    assert do(member, by_page, action, **FIELDS.get(action, {})).status_code == 303
    BY_FUNCTION[action](by_function, store)
    verb, *options = BY_COMMAND.get(action, [action])
    words = ["jobs", verb, str(by_command), *WORDS.get(action, []), *options]
    found = cubemesh(*words, "--store", store.name)
    assert found.returncode == 0, found.stderr

    def result(job_id: int) -> tuple[Any, ...]:
        job = queue.get(job_id)
        last = events_after(queue, job_id)[0][-1]
        return job.state, job.control, job.priority, job.question, last.kind, last.value

    if action == "clone":  # the copies are compared
        by_command, by_function, by_page = (job.job_id for job in queue.list(limit=3))
    assert result(by_page) == result(by_function) == result(by_command)


def test_a_waiting_job_is_edited(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    page = member.get(f"/jobs/{job_id}").text
    assert 'name="epochs" value="2"' in page
    assert all(f'id="e-{name}"' in page for name in EDITABLE)
    unchanged = {"epochs": "2", "learning_rate": ""}
    found = do(member, job_id, "edit", **(unchanged | {"learning_rate": "0.5"}))
    assert found.status_code == 303
    assert queue.get(job_id).question.settings == (*QUESTION.settings, "learning_rate=0.5")
    for wrong, word in (
        (unchanged, "Nothing changes"),
        ({"epochs": "few"}, "epochs"),
        ({"framework": "pytorch"}, "framework"),
    ):
        refused = do(member, job_id, "edit", **wrong)
        assert refused.status_code == 400
        assert word in refused.text
    assert do(member, job_id, "pause", epochs="9").status_code == 400
    assert queue.get(job_id).state is State.QUEUED


def test_a_running_job_is_edited_at_its_next_checkpoint(member: Client, queue: JobQueue) -> None:
    job_id = put(queue)
    lease = hold(queue)
    assert "Edit at the next checkpoint" in member.get(f"/jobs/{job_id}").text
    assert do(member, job_id, "edit", epochs="7").status_code == 303
    assert lease.control() == "edit"
    assert queue.get(job_id).question == QUESTION
    lease.release("It paused to be edited.")
    assert "epochs=7" in queue.get(job_id).question.settings


def test_what_is_no_training_or_done_has_no_settings_to_edit(
    member: Client, queue: JobQueue
) -> None:
    other = queue.submit([Question(names=("minibatch",))], [NONE]).job_id
    sweep = queue.submit([QUESTION, QUESTION], [NONE, NONE], sweep=QUESTION)
    job_id = put(queue, priority=1)
    hold(queue).end(State.DONE)
    for one in (other, sweep.job_id, job_id):
        assert 'value="edit"' not in member.get(f"/jobs/{one}").text
        assert "edit" not in member.get(f"/api/v1/jobs/{one}").json()["actions"]
    assert do(member, job_id, "edit", epochs="7").status_code == 400


def test_a_run_that_is_slower_than_expected_says_so_with_its_signs(
    member: Client, queue: JobQueue
) -> None:
    job_id = put(queue)
    lease = hold(queue)
    sign = {"series": "input_wait_percent", "now": 40.0, "before": 1.0}
    slow = {"since_s": 50.0, "for_s": 148.0, "samples_per_s": 100.0, "share": 0.5, "signs": [sign]}
    lease.renew({"samples_per_s": 100.0, "slow": slow})
    assert member.get(f"/api/v1/jobs/{job_id}").json()["slow"] == slow
    page = member.get(f"/jobs/{job_id}").text
    assert "Slower than expected for 2 min 28 s: 100 samples/s, 50 % of the expected" in page
    assert "input wait 40 % (before 1 %)" in page
    lease.renew({"samples_per_s": 200.0, "slow": None})
    assert "Slower than expected" not in member.get(f"/jobs/{job_id}").text
    lease.renew({"samples_per_s": 100.0, "slow": slow})
    lease.end(State.DONE)
    assert member.get(f"/api/v1/jobs/{job_id}").json()["slow"] is None


@pytest.mark.parametrize(
    "progress",
    [
        {"fraction": "x", "eta_s": [], "samples_per_s": "<b>", "loss": {}, "note": 7},
        {"run": 0, "runs": "x", "fraction": 1, "eta_exact": 3},
        {"slow": 7},
        {"fraction": 10**400, "eta_s": 10**400, "samples_per_s": 10**400, "loss": 10**400},
        {"slow": {"since_s": 0, "for_s": 1, "samples_per_s": 2, "share": 1, "signs": [{}]}},
    ],
)
def test_a_damaged_progress_hides_neither_its_job_nor_others(
    member: Client, queue: JobQueue, progress: dict[str, Any]
) -> None:
    job_id, other = put(queue), put(queue)
    hold(queue).renew(progress)
    for path in ("/", "/jobs", f"/jobs/{job_id}"):
        page = member.get(path)
        assert page.status_code == 200
    assert f'href="/jobs/{other}"' in member.get("/jobs").text


def test_home_shows_jobs_that_run_or_wait(member: Client, queue: JobQueue) -> None:
    running, waiting, paused = put(queue), put(queue), put(queue)
    assert hold(queue).job_id == running
    queue.pause(paused)
    page = member.get("/").text
    assert page.index(f'href="/jobs/{running}"') < page.index(f'href="/jobs/{waiting}"')
    assert f'href="/jobs/{paused}"' not in page
    jobs = member.get("/api/v1/home").json()["jobs"]
    assert [job["job_id"] for job in jobs] == [running, waiting]
