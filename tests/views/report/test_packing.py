"""Pages of many runs: their size, and that every run stays in them."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cubemesh.schema import RunRecord, Series
from cubemesh.schema.serialization import from_plain
from cubemesh.views.charts.thinning import most_points
from cubemesh.views.report.packing import RECORDS_BYTES, Details
from cubemesh.views.report.timeline import WIDTH

FEW, SOME, MANY = 60, 300, 800
POINTS = 10_000


def records_of(made: Any, count: int) -> dict[str, RunRecord]:
    like = made.record(64)
    return {f"{i:012x}": replace(like, run_id=f"{i:012x}") for i in range(count)}


def telemetry(seed: int, points: int) -> tuple[Series, ...]:
    draw = np.random.default_rng(seed)
    times = tuple(np.arange(points, dtype=float).tolist())
    return tuple(
        Series(name=name, times_s=times, values=tuple(draw.uniform(1, 99, points).tolist()))
        for name in ("cpu_utilization_percent", "gpu_power_watts")
    )


@pytest.fixture(scope="module")
def few(made: Any, written: Any) -> str:
    """Some dozen runs of ten thousand points each."""
    records = records_of(made, FEW)
    like = [telemetry(seed, POINTS // 2) for seed in range(3)]
    series = {run_id: like[i % 3] for i, run_id in enumerate(records)}
    path: Path = written(made.sample(), answers=(), records=records, series=series)
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def some(made: Any, written: Any) -> str:
    """So many runs that the details of the last ones are packed."""
    records = records_of(made, SOME)
    like = telemetry(0, POINTS // 2)
    series = dict.fromkeys(records, like)
    path: Path = written(made.sample(), answers=(), records=records, series=series)
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def many(made: Any, written: Any) -> str:
    """So many runs that their details are packed."""
    records = records_of(made, MANY)
    series = {run_id: telemetry(i, 600) for i, run_id in enumerate(list(records)[::100])}
    path: Path = written(made.sample(), answers=(), records=records, series=series)
    return path.read_text("utf-8")


def packs(source: str) -> dict[str, str]:
    found = re.findall(r'<script type="application/gzip" id="([^"]+)">([^<]+)</script>', source)
    return {name: gzip.decompress(base64.b64decode(text)).decode() for name, text in found}


def details(source: str) -> dict[str, str]:
    """What is packed, by run."""
    found: dict[str, str] = {}
    for name, text in packs(source).items():
        if name.startswith("pack-"):
            own = json.loads(text)
            assert not own.keys() & found.keys()
            assert all(f'id="run-{i}" data-pack="{name}"' in source for i in own)
            found |= own
    return found


def test_sixty_runs_of_ten_thousand_points_take_three_megabytes(few):
    assert len(few.encode()) < 3_000_000
    assert len(set(re.findall(r'id="run-(\w+)"', few))) == FEW


def test_a_curve_has_no_more_points_than_pixels_show(few):
    curves = re.findall(r'<path class="spark-line" style="[^"]+"[^>]* d="([^"]+)"', few)
    assert curves
    assert max(len(re.findall("[ML]", d)) for d in curves) <= most_points(WIDTH)


def test_dozens_of_runs_read_without_scripts(few):
    assert details(few) == {}
    assert "data-curve" not in few[: few.rindex("<script>")]


def test_the_first_runs_read_without_scripts_and_the_others_are_packed(some):
    packed = details(some)
    first = next(iter(packed))
    assert list(packed) == [
        run_id for run_id in re.findall(r'id="run-(\w+)"', some) if run_id >= first
    ]
    assert 0 < len(packed) < SOME
    assert f"The details of {len(packed)} runs are compressed" in some
    assert "data-curve" not in some[: some.index("data-pack")]
    letters = re.findall(r'data-curve="([^"]+)"', "".join(packed.values()))
    assert letters
    assert all(len(text.replace(" ", "")) <= most_points(WIDTH) for text in letters)


def test_every_run_of_a_large_page_stays_in_it(many):
    packed = details(many)
    assert list(packed) == re.findall(r'id="run-(\w+)"', many)
    assert len(packed) == MANY
    assert all("<dt>median step time</dt>" in body for body in packed.values())
    assert sum("<h4>Telemetry" in body for body in packed.values()) == MANY / 100
    assert len(many.encode()) < 2_500_000


def test_packed_records_are_the_records(many, made):
    document = json.loads(packs(many)["records"])
    back = [from_plain(RunRecord, record) for record in document["records"]]
    assert back == list(records_of(made, MANY).values())
    assert sum(len(json.dumps(r)) for r in document["records"]) > RECORDS_BYTES


def test_a_page_of_few_small_runs_packs_nothing(page):
    source = page.read_text("utf-8")
    assert packs(source) == {}
    assert "are compressed in this page" not in source


def test_packs_are_closed_in_order():
    packing = Details(runs=10_000)
    assert packing.full
    names = [packing.pack(f"{i}", f"<p>{i}</p>") for i in range(70)]
    assert list(dict.fromkeys(names)) == [name for name, _ in packing.packs()]
    assert packing.count == 70


def test_hostile_details_stay_text(made, written, monkeypatch):
    monkeypatch.setattr("cubemesh.views.report.packing.DETAILS_BYTES", 0)
    source = written(made.hostile()).read_text("utf-8")
    bodies = "".join(details(source).values())
    assert "&lt;img" in bodies
    assert "<img" not in bodies
    assert "<script" not in bodies
