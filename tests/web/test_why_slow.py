"""Why is this slow: parts that sum to the step, the largest loss, and its remedy as a form."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import report_sample
from cubemesh.experiments.time_breakdown.remedies import breakdown_settings, remedy_settings
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import State
from cubemesh.schema import Budget, RunRecord
from cubemesh.schema.serialization import to_plain
from cubemesh.schema.work import Train
from cubemesh.store import Store
from held_jobs import running
from web_pages import Client


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as opened:
        opened.save_machine(report_sample.machine())
        yield opened


def unattributed(batch: int = 8) -> RunRecord:
    record = report_sample.record(batch)
    return dataclasses.replace(record, run_id="f" * 12)


def training(batch: int = 8) -> RunRecord:
    record = unattributed(batch)
    work = Train(network="little-cnn", batch_per_device=batch, data="digits", epochs=3)
    return dataclasses.replace(record, spec=dataclasses.replace(record.spec, work=work))


def link_of(page: str) -> str:
    (found,) = re.findall(r'href="(/ask/time-breakdown\?[^"]*)">Try it', page)
    return html.unescape(found)


def test_the_parts_sum_to_the_step_and_the_remedy_is_a_form(store: Store, member: Client) -> None:
    record = report_sample.taken_apart(8)
    store.save(record, ())
    found = member.get(f"/api/v1/runs/{record.run_id}").json()["why_slow"]
    assert math.fsum(p["seconds"] for p in found["parts"]) == pytest.approx(found["step_s"])
    assert found["loss"]["name"] == "launch_gaps"
    assert found["loss"]["faster_at_most"] == pytest.approx(1 / (1 - 4.3 / 21.5))
    assert found["changes"] == {"batch_sizes": "16"}
    page = member.get(f"/runs/{record.run_id}").text
    assert "20 % launch gaps" in page
    assert "at most 25 % faster" in page
    form = member.get(link_of(page)).text
    for name, value in found["ask"].items():
        assert f'name="{name}" value="{value}"' in form
    queued = member.ask("POST", "/api/v1/ask/time-breakdown", json=found["ask"])
    assert queued.status_code == 200, queued.text
    settings = queued.json()["job"]["question"]["settings"]
    assert {"networks=little-cnn", "batch_sizes=16", "data=digits"} <= set(settings)


@pytest.mark.parametrize("make", [unattributed, training])
def test_without_an_attribution_a_button_measures_one(
    store: Store, member: Client, make: Any
) -> None:
    record = make()
    store.save(record, ())
    found = member.get(f"/api/v1/runs/{record.run_id}").json()["why_slow"]
    assert (found["measured"], found["parts"], found["loss"]) == (None, [], None)
    page = member.get(f"/runs/{record.run_id}").text
    assert "Measure where its time goes" in page
    queued = member.ask("POST", "/ask/time-breakdown", data=found["ask"])
    assert queued.status_code == 303, queued.text
    job = JobQueue(store.database).get(int(queued.headers["location"].rpartition("/")[2]))
    assert job.question.names == ("time-breakdown",)


def test_another_run_of_the_same_step_answers(store: Store, member: Client) -> None:
    other, own = report_sample.taken_apart(8), training()
    for record in (other, own):
        store.save(record, ())
    assert breakdown_settings(own.spec) == breakdown_settings(other.spec)
    found = member.get(f"/api/v1/runs/{own.run_id}").json()["why_slow"]
    assert found["measured"] == other.run_id
    assert f"/runs/{other.run_id}" in member.get(f"/runs/{own.run_id}").text


def test_a_job_that_ended_says_it_of_its_run(store: Store, member: Client) -> None:
    record = report_sample.taken_apart(8)
    store.save(record, ())
    lease = running(JobQueue(store.database), "minibatch")
    job_id = lease.job_id
    lease.add_run(record.run_id)
    assert member.get(f"/api/v1/jobs/{job_id}").json()["why_slow"] is None
    lease.end(State.DONE, "")
    assert "20 % launch gaps" in member.get(f"/jobs/{job_id}").text
    found = member.get(f"/api/v1/jobs/{job_id}").json()["why_slow"]
    assert found["measured"] == record.run_id


def test_a_running_job_says_it_of_the_same_step(store: Store, member: Client) -> None:
    record = report_sample.taken_apart(8)
    store.save(record, ())
    lease = running(JobQueue(store.database), "minibatch")
    job_id = lease.job_id
    began = {"run": 1, "work": "train_steps", "network": "little-cnn", "framework": "pytorch"}
    plain = dataclasses.replace(record.spec, budget=Budget())
    step = {"spec": to_plain(plain, defaults=False), "machine_id": record.key.machine_id}
    lease.renew(events=[("run", began | step)])
    assert member.get(f"/api/v1/jobs/{job_id}").json()["why_slow"]["measured"] == record.run_id
    page = member.get(f"/jobs/{job_id}").text
    assert "20 % launch gaps" in page
    assert "/what-if?network=little-cnn&amp;batch_per_device=8" in page
    lease.renew(events=[("run", began | step | {"machine_id": "another"})])
    assert "Not known" in member.get(f"/jobs/{job_id}").text
    lease.renew(events=[("run", began | {"spec": {"frobnicate": 1}, "machine_id": ""})])
    assert member.get(f"/api/v1/jobs/{job_id}").json()["why_slow"] is None


@pytest.mark.parametrize(
    ("loss", "program", "device", "change"),
    [
        ("input_stall", {}, "cpu", {"input_threads": 2}),
        ("launch_gaps", {}, "cuda:0", {"framework": "pytorch-compiled"}),
        ("launch_gaps", {"framework": "pytorch-compiled"}, "cuda:0", {"batch_sizes": 16}),
        ("exposed_communication", {}, "cuda:0", {"batch_sizes": 16}),
        ("cpu_contention", {}, "cpu", {}),
        ("throttled_clock", {}, "cuda:0", {}),
        ("", {}, "cpu", {}),
    ],
)
def test_a_remedy_changes_what_causes_the_loss(
    loss: str, program: dict[str, Any], device: str, change: dict[str, Any]
) -> None:
    record = report_sample.record(8)
    spec = dataclasses.replace(
        record.spec, program=dataclasses.replace(record.spec.program, **program)
    )
    ranks = tuple(dataclasses.replace(rank, device=device) for rank in record.ranks)
    assert remedy_settings(dataclasses.replace(record, spec=spec, ranks=ranks), loss) == change


def test_a_field_that_a_form_does_not_have_is_refused(member: Client) -> None:
    for name in ("data_path", "frobnicate"):
        assert member.get(f"/ask/time-breakdown?set={name}=1").status_code == 400
    assert member.get("/ask/time-breakdown?set=steps").status_code == 400
