"""A machine over time: change points of a workload's throughput, and what changed at them."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

import cubemesh
import report_sample
from cubemesh.schema import Figure
from cubemesh.store import Store
from cubemesh.web.app import Workbench
from cubemesh.web.security.gate import Rules
from web_pages import OWN, Client


def test_a_change_is_shown_with_what_changed(tmp_path: Path, access: Any) -> None:
    draw = random.Random(5)
    machine = report_sample.machine()
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        store.save_machine(machine)
        for night in range(20):
            one = report_sample.record(8)
            new = night >= 10
            rate = (95.0 if new else 100.0) * (1 + 0.004 * draw.gauss(0, 1))
            key = dataclasses.replace(
                one.key, repeat=night, code_version="0.2.0" if new else "0.1.0"
            )
            record = dataclasses.replace(
                one,
                run_id=f"{night:012x}",
                key=key,
                started_utc=f"2026-11-{night + 1:02d}T02:00:00+00:00",
                figures={"throughput_per_s": Figure(value=rate, unit="samples/s")},
            )
            store.save(record, ())
        bench = Workbench(store, access, Rules(), secure=False)
        client = Client(bench, cookie=f"{access.cookie}={access.new_session()}", origin=OWN)
        found = client.get(f"/api/v1/machines/{machine.machine_id}").json()
        page = client.get(f"/machines/{machine.machine_id}").text
    ((change,),) = [one["changes"] for one in found["history"]]
    assert change["run_id"] == f"{10:012x}"
    assert change["low"] < 0.95 < change["high"] < 1
    assert change["differs"] == [{"what": "cubemesh", "first": "0.1.0", "second": "0.2.0"}]
    assert "since 11 Nov" in page
    assert "cubemesh 0.1.0 → 0.2.0" in page


def test_workloads_of_one_name_are_shown_with_what_differs(tmp_path: Path, access: Any) -> None:
    machine = report_sample.machine()
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        store.save_machine(machine)
        for number, image_size in enumerate((32, 64, 64)):
            one = report_sample.record(8)
            work = dataclasses.replace(one.spec.work, image_size=image_size)
            spec = dataclasses.replace(one.spec, work=work)
            key = dataclasses.replace(one.key, repeat=number, spec_id=spec.spec_id)
            figures = {"throughput_per_s": Figure(value=100.0 - 1e-3 * number, unit="samples/s")}
            record = dataclasses.replace(
                one, run_id=f"{number:012x}", key=key, spec=spec, figures=figures
            )
            store.save(record, ())
        bench = Workbench(store, access, Rules(), secure=False)
        client = Client(bench, cookie=f"{access.cookie}={access.new_session()}", origin=OWN)
        page = client.get(f"/machines/{machine.machine_id}").text
        listed = client.get("/machines").text
    assert "image size 32" in page
    assert "image size 64" in page
    assert "+0.0 % from the run before" in page
    assert f"id {machine.machine_id[:8]}" in listed


def test_the_last_acceptance_is_shown_with_its_badge(
    tmp_path: Path, access: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = str(tmp_path / "results.sqlite")
    with Store.open(path) as store:
        store.save_machine(report_sample.machine())
    for rate in (1000, 100):  # 256 MiB in 2 ms are 134 GB/s
        tested = cubemesh.accept(
            quick=True,
            store=path,
            framework="null",
            script="step=0.002",
            parts="disk",
            disk_gb_per_s=rate,
        )
    machine_id = tested.experiments[0].experiment_run.machine_id
    address = f"/machines/{machine_id}"
    with Store.open(path) as store:
        bench = Workbench(store, access, Rules(), secure=False)
        client = Client(bench, cookie=f"{access.cookie}={access.new_session()}", origin=OWN)
        badge = client.get(f"{address}/badge.svg")
        page, document = client.get(address).text, client.get(f"/api/v1{address}").json()
        other = f"/machines/{report_sample.machine().machine_id}"
        untested = client.get(f"{other}/badge.svg").text
        assert client.get(f"/api/v1{other}/badge.svg").json()["verdict"] is None
        assert client.get(f"/api/v1{address}/badge.svg").json()["verdict"] == "pass"
        assert "This machine was not tested." in client.get(other).text
    assert badge.headers["content-type"] == "image/svg+xml"
    assert badge.headers["cache-control"] == "no-cache"
    assert "acceptance: pass · " in badge.text
    assert "acceptance: none" in untested
    assert "acceptance: pass" in page
    for words in ("disk read", "134 GB/s", "disk_gb_per_s", "Pass: 1 of 1 judged check passed."):
        assert words in page
    assert document["acceptance"]["verdict"] == "pass"
    assert document["acceptance"]["answer"]["tables"][0]["title"] == "Checks"
