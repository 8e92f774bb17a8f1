"""The page of a run: its main figure in large print."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cubemesh.schema import Figure
from cubemesh.store import Store
from cubemesh.web.app import Workbench
from cubemesh.web.security.gate import Rules
from web_pages import Client


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
