"""A machine over time: change points of a workload's throughput, and what changed at them."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

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
