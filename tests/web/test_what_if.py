"""What if: the forecast of `cubemesh predict` behind a form, calibrated by a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cubemesh
from cubemesh.store import Store
from cubemesh.views.prediction import document
from web_pages import Client


@pytest.fixture
def run_id(filled: Path) -> str:
    """A run of training steps on an H200, at the network's own size."""
    with Store.open(str(filled), read_only=True) as store:
        rows = (row for row in store.each_run() if row.work == "train_steps")
        return next(r.run_id for r in rows if r.samples_per_s and r.device == "cuda")


def points(client: Client, query: str) -> Any:
    found = client.get(f"/api/v1/what-if?{query}")
    assert found.status_code == 200, found.text
    return found.json()["points"]


def test_it_is_the_forecast_of_predict(client: Client) -> None:
    query = "network=resnet-50&machine=dgx-a100&devices=1,4&precision=bf16&batch_per_device=32"
    own = cubemesh.predict(
        "resnet-50", "dgx-a100", devices=[1, 4], precision="bf16", batch_per_device=32
    )
    found = client.get(f"/api/v1/what-if?{query}").json()
    assert found["prediction"] == document(own)
    for one, point in zip(found["points"], own.points, strict=True):
        assert one["samples_per_s"] == pytest.approx(point.point.samples_per_s)
        assert one["time_s"] == pytest.approx(1e6 / point.point.samples_per_s)
        assert one["time_low_s"] < one["time_s"] < one["time_high_s"]
    assert "cubemesh predict resnet-50" in client.get(f"/what-if?{query}").text


def test_prices_and_samples_give_time_energy_and_cost(client: Client) -> None:
    query = "network=resnet-50&machine=dgx-a100&devices=2&samples=7200000"
    (plain,) = points(client, query)
    assert plain["cost"] is None
    (priced,) = points(client, f"{query}&kwh_price=0.5&device_hour_price=3")
    hours = plain["time_s"] / 3600
    assert priced["cost"] == pytest.approx(0.5 * plain["energy_kwh"] + 3 * 2 * hours)
    assert f"{plain['devices']}" in client.get(f"/what-if?{query}").text


def test_a_run_calibrates_it(client: Client, run_id: str) -> None:
    rate = client.get(f"/api/v1/runs/{run_id}").json()["record"]["figures"]["throughput_per_s"]
    (one,) = points(client, f"run={run_id}&devices=1")
    assert one["samples_per_s"] == pytest.approx(rate["value"], rel=1e-6)
    (other,) = points(client, f"run={run_id}&devices=1&machine=hgx-h100")
    assert other["samples_per_s"] != one["samples_per_s"]
    assert f"/what-if?run={run_id}" in client.get(f"/runs/{run_id}").text


def test_without_a_network_and_a_machine_it_is_a_form(client: Client) -> None:
    assert client.get("/api/v1/what-if").json()["points"] is None
    assert "Choose a network and a machine" in client.get("/what-if").text


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("network=frobnicate", "frobnicate"),
        ("machine=/etc/passwd", "passwd"),
        ("machine=../hgx-h100.toml", "hgx-h100"),
        ("devices=0", "devices"),
        ("devices=1,2,3,4,5,6,7,8,9", "devices"),
        ("devices=99999", "devices"),
        ("precision=fp2", "precision"),
        ("batch_per_device=-1", "batch_per_device"),
        ("samples=nan", "samples"),
        ("kwh_price=-1", "kwh_price"),
        ("framework=null", "framework"),
    ],
)
def test_a_value_that_is_not_valid_gets_a_sentence(client: Client, query: str, word: str) -> None:
    for path in ("/what-if", "/api/v1/what-if"):
        found = client.get(f"{path}?{query}")
        assert found.status_code == 400
        assert word in found.text


def test_an_unknown_run_is_not_found(client: Client) -> None:
    assert client.get("/what-if?run=ffffffffffff").status_code == 404
