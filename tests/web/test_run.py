"""The page of a run: its main figure in large print."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import report_sample
from cubemesh.jobs.queue import JobQueue
from cubemesh.schema import Figure, RunSpec, TrainSteps
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.store import Store
from cubemesh.web.app import Workbench
from cubemesh.web.equivalence_form import equivalence_fields
from cubemesh.web.security.gate import Rules
from web_pages import OWN, Client


@pytest.mark.parametrize("accuracy", [None, Figure(value=0.85, unit="", low=0.81, high=0.89)])
def test_the_main_figure_is_the_throughput(
    filled: Path, access: Any, accuracy: Figure | None, tmp_path: Path
) -> None:
    own = shutil.copy(filled, tmp_path / "results.sqlite")
    rate = Figure(value=1234.0, unit="samples/s", low=1224.0, high=1244.0, n=9)
    figures = {"throughput_per_s": rate} | ({"accuracy": accuracy} if accuracy else {})
    with Store.open(str(own)) as store:
        row = next(r for r in store.each_run() if r.network == "resnet-50" and r.outcome == "ok")
        record = next(iter(store.records([row.run_id])))
        run_id = f"feed{row.run_id[4:]}"
        store.save(dataclasses.replace(record, run_id=run_id, figures=figures), ())
        bench = Workbench(store, access, Rules(host_names=()), secure=False)
        client = Client(bench, cookie=f"{access.cookie}={access.new_session()}")
        found = client.get(f"/runs/{run_id}").text
    big = re.search(r'<p class="big">(.*?)</p>', found, re.S)
    assert big is not None
    words = re.sub(r"<[^>]+>", "", big[1]).split()
    assert words == ["1,234", "images/s", "±", "10"]


def test_one_click_asks_whether_several_devices_compute_the_same(
    tmp_path: Path, access: Any
) -> None:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        store.save_machine(report_sample.machine())
        record = report_sample.record(8)
        store.save(record, ())
        bench = Workbench(store, access, Rules(), secure=False)
        member = Client(bench, cookie=f"{access.cookie}={access.new_session()}", origin=OWN)
        page = member.get(f"/runs/{record.run_id}").text
        (form,) = re.findall(r'"/ask/sequential-equivalence" method="post">(.*?)</form>', page)
        assert "Do 2 devices compute the same?" in form
        fields = {
            name: html.unescape(value)
            for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)
        }
        found = member.ask("POST", "/ask/sequential-equivalence", data=fields)
        assert found.status_code == 303, found.text
        queue = JobQueue(store.database)
        job = queue.get(int(found.headers["location"].removeprefix("/jobs/")))
    assert job.question.names == ("sequential-equivalence",)
    assert not job.children
    assert set(job.question.settings) >= {"networks=little-cnn", "devices=1,2"}


@pytest.mark.parametrize(
    ("devices", "sync", "batch"),
    [(3, "all-reduce", "18"), (4, "parameter-server", "16"), (1, "none", "16")],
)
def test_the_question_has_the_devices_and_the_strategy_of_the_run(
    devices: int, sync: str, batch: str
) -> None:
    work = TrainSteps(network="little-cnn", batch_per_device=8)
    spec = RunSpec(
        work=work,
        placement=Placement(devices=devices),
        program=ProgramSettings(sync=sync),
    )
    fields = equivalence_fields(spec, None)
    assert fields is not None
    assert fields["devices"] == f"1,{max(2, devices)}"
    assert fields["global_batch_sizes"] == batch
    assert fields["device"] == "cpu"
    assert fields.get("strategies") == (sync if devices > 1 else None)
    asynchronous = dataclasses.replace(spec, program=ProgramSettings(sync="asynchronous"))
    assert devices == 1 or equivalence_fields(asynchronous, None) is None
    simulated = dataclasses.replace(spec, program=ProgramSettings(framework="null"))
    assert equivalence_fields(simulated, None) is None
