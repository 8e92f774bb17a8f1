"""Forms of experiments: every experiment has one, fields are checked by name, sweeps are queued."""

from __future__ import annotations

from typing import Any

import pytest

from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.jobs.queue import JobQueue
from cubemesh.web.question_form import NOT_FROM_PAGES
from web_pages import HOSTILE, Client


def ask(member: Client, form: dict[str, str], experiment: str = "train") -> Any:
    return member.ask("POST", f"/ask/{experiment}", data=form)


def test_every_experiment_is_offered(client: Client) -> None:
    offered = client.get("/ask").text
    assert [name for name in EXPERIMENTS if f'href="/ask/{name}"' not in offered] == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_form(client: Client, name: str) -> None:
    page = client.get(f"/ask/{name}")
    assert page.status_code == 200
    for forbidden in NOT_FROM_PAGES:
        assert f'name="{forbidden}"' not in page.text
    found = client.get(f"/api/v1/ask/{name}").json()
    assert found["question"] == EXPERIMENTS[name].question
    assert found["settings"] or found["fields"]


def test_a_form_shows_the_defaults_of_the_plan(client: Client) -> None:
    found = client.get("/api/v1/ask/train").json()
    fields = {one["name"]: one for one in found["fields"]}
    assert (fields["data"]["default"], fields["epochs"]["default"]) == ("digits", "10")
    assert fields["schedule"]["choices"] == ["constant", "step", "cosine"]
    assert "constant" in fields["schedule"]["default"]


def test_a_list_of_choices_is_shown_once(client: Client) -> None:
    page = client.get("/ask/acceptance").text
    assert page.count("matrix-product | memory-copy") == 1
    assert page.count('<option value="burn-in"></option>') == 1
    fields = {one["name"]: one for one in client.get("/api/v1/ask/acceptance").json()["settings"]}
    assert fields["precisions"]["type"] == "(fp64 | fp32 | tf32 | bf16 | fp16),…"
    assert fields["precisions"]["choices"] == ["fp64", "fp32", "tf32", "bf16", "fp16"]
    assert fields["networks"]["choices"] == []


def test_a_form_queues_a_job(member: Client, queue: JobQueue) -> None:
    form = {"framework": "null", "epochs": "3", "schedule": "", "scale": "quick"}
    found = ask(member, {**form, "job_priority": "7"})
    assert found.status_code == 303
    job = queue.get(int(found.headers["location"].removeprefix("/jobs/")))
    assert sorted(job.question.settings) == ["epochs=3", "framework=null"]
    assert (job.question.names, job.question.scale, job.priority) == (("train",), "quick", 7)
    again = member.get(f"/ask/train?job={job.job_id}").text
    assert 'name="epochs" value="3"' in again
    assert "Change and run again" in member.get(f"/jobs/{job.job_id}").text


def test_several_values_are_a_sweep(member: Client, queue: JobQueue) -> None:
    form = {"framework": "null", "learning_rate": "0.1, 0.01", "seed": "0,1"}
    found = ask(member, form)
    assert found.status_code == 303, found.text
    sweep = queue.get(int(found.headers["location"].removeprefix("/jobs/")))
    assert len(sweep.children) == 4
    found = ask(member, {"framework": "null", "data": "digits, synthetic"})
    assert found.status_code == 303, found.text


@pytest.mark.parametrize(
    ("form", "field", "word"),
    [
        ({"epochs": "ten"}, "epochs", "integer"),
        ({"learning_rate": "0.1, x"}, "learning_rate", "number"),
        ({"schedule": "square"}, "schedule", "cosine"),
        ({"networks": "frobnicate"}, "networks", "frobnicate"),
        ({"on_devices": "lots"}, "on_devices", "lots"),
        ({"job_priority": "high"}, "job_priority", "number"),
        ({"scale": "huge"}, "scale", "quick"),
    ],
)
def test_what_is_wrong_is_next_to_its_field(
    member: Client, queue: JobQueue, form: dict[str, str], field: str, word: str
) -> None:
    form = {"framework": "null", **form}
    found = ask(member, form)
    assert found.status_code == 400
    start = found.text.index(f'id="f-{field}"')
    own = found.text[start : found.text.index("</div>", start)]
    assert "problem" in own
    assert word in own
    answer = member.ask("POST", "/api/v1/ask/train", json=form)
    assert answer.status_code == 400
    assert word in answer.json()["fields"][field]
    assert queue.list() == []


@pytest.mark.parametrize("name", sorted(NOT_FROM_PAGES))
def test_settings_that_name_files_and_hosts_are_refused(
    member: Client, queue: JobQueue, name: str
) -> None:
    for experiment in ("train", "cluster", "devices", "ceilings", "inference"):
        found = ask(member, {name: "/etc/passwd"}, experiment)
        assert found.status_code == 400
        assert name in found.text
    assert queue.list() == []


def test_a_form_shows_again_what_was_typed_and_escapes_it(member: Client) -> None:
    found = ask(member, {"epochs": HOSTILE})
    assert found.status_code == 400
    assert "<img" not in found.text
    assert "alert(2)</script>" not in found.text


def test_an_unknown_experiment_is_not_found(member: Client) -> None:
    assert member.get("/ask/frobnicate").status_code == 404
    assert ask(member, {}, "frobnicate").status_code == 404
    assert member.get("/ask/minibatch?job=1").status_code == 404
