"""Expected throughput: from earlier runs of the same workload, else a forecast, else nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import report_sample
from cubemesh.jobs.expect import (
    SLOW_S,
    Slowdown,
    expected_throughput,
    from_records,
    slowdown,
    speed_id,
)
from cubemesh.schema import Figure, RunRecord, RunSpec, TrainSteps
from cubemesh.schema.work import Train
from cubemesh.store import Store

MACHINE = report_sample.machine()
WORK = TrainSteps(network="little-cnn", batch_per_device=8)


def measured(rate: float, place: int, spec: RunSpec, machine_id: str = "") -> RunRecord:
    one = report_sample.record(8)
    key = replace(
        one.key,
        spec_id=spec.spec_id,
        machine_id=machine_id or MACHINE.machine_id,
        repeat=place,
    )
    figures = {**one.figures, "throughput_per_s": Figure(value=rate, unit="1/s")}
    return replace(one, run_id=f"{place:012x}", spec=spec, key=key, figures=figures)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as opened:
        opened.save_machine(MACHINE)
        yield opened


def test_earlier_runs_are_expected_again_with_the_interval_of_a_prediction(store: Store) -> None:
    spec = RunSpec(work=WORK)
    for place, rate in enumerate((90.0, 100.0, 110.0)):
        store.save(measured(rate, place, spec), ())
    store.save(measured(1e6, 7, spec, "another"), ())
    store.save(measured(1e6, 8, RunSpec(work=replace(WORK, data="digits"))), ())
    found = expected_throughput(store, spec, MACHINE)
    assert found is not None
    logs = [math.log(rate) for rate in (90.0, 100.0, 110.0)]
    middle = sum(logs) / 3
    spread = math.sqrt(sum((x - middle) ** 2 for x in logs) / 2)
    half = 4.30265 * spread * math.sqrt(4 / 3)
    assert found.samples_per_s == pytest.approx(math.exp(middle))
    assert found.low == pytest.approx(math.exp(middle - half), rel=1e-4)
    assert found.high == pytest.approx(math.exp(middle + half), rel=1e-4)
    assert "3 earlier runs" in found.source
    assert len(found.run_ids) == 3


def test_one_run_without_a_known_spread_has_no_band() -> None:
    found = from_records([measured(100.0, 0, RunSpec(work=WORK))])
    assert found is not None
    assert (found.low, found.high) == (None, None)
    assert "spread" in found.source


def test_what_decides_no_speed_makes_no_other_workload() -> None:
    work = Train(network="little-cnn", batch_per_device=8, data="digits")
    other = replace(work, learning_rate=0.5, epochs=9, seed=3)
    larger = replace(work, batch_per_device=16)
    ids = [speed_id(RunSpec(work=one)) for one in (work, other, larger)]
    assert ids[0] == ids[1] != ids[2]


def test_without_earlier_runs_a_forecast_is_expected_where_there_is_one(store: Store) -> None:
    machine = report_sample.machine(gpus=1)
    spec = RunSpec(work=TrainSteps(network="resnet-50", batch_per_device=64))
    found = expected_throughput(store, spec, machine)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.samples_per_s < found.high
    assert "forecast" in found.source
    assert found.run_ids == ()


def test_nothing_is_expected_where_nothing_is_known(store: Store) -> None:
    assert expected_throughput(store, RunSpec(work=WORK), MACHINE) is None
    simulated = RunSpec(work=WORK)
    simulated = replace(simulated, program=replace(simulated.program, framework="null"))
    assert expected_throughput(store, simulated, report_sample.machine(gpus=1)) is None


def course(seed: int, factors: Sequence[float]) -> list[list[float | None]]:
    """Throughput by time: windows of 2,000 samples at 1,000/s with noise of 4 %, each times its
    factor, and an evaluation of three seconds after every tenth."""
    rng, time_s, points = np.random.default_rng(seed), 0.0, list[list[float | None]]()
    for place, factor in enumerate(factors):
        rate = 1000 * float(rng.normal(1, 0.04)) * factor
        time_s += 2000 / rate
        points.append([time_s, rate])
        time_s += 3.0 if place % 10 == 9 else 0.0
    return points


def found_in(points: list[list[float | None]], windows: int) -> Slowdown | None:
    return slowdown(1000.0, 950.0, {"samples_per_s": points[:windows]})


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_slowdown_is_found_within_a_minute_and_none_in_a_clean_run(seed: int) -> None:
    clean = course(seed, [1.0] * 150)
    assert not any(found_in(clean, n) for n in range(151))
    planted = course(seed, [1.0] * 100 + [0.8] * 50)
    begin_s = planted[99][0] or 0.0
    first = next(n for n in range(101, 151) if found_in(planted, n))
    assert (planted[first - 1][0] or 0.0) - begin_s <= 60.0
    found = found_in(planted, 150)
    assert found is not None
    assert found.since_s == pytest.approx(begin_s, abs=10)
    assert found.share == pytest.approx(0.8, abs=0.03)
    assert found.samples_per_s == pytest.approx(1000 * found.share)


def test_a_slowdown_that_is_over_is_no_more_and_a_short_one_is_none() -> None:
    assert found_in(course(1, [0.8] * 20), 20) is None  # less than a minute is measured
    whole = found_in(course(1, [0.8] * 60), 60)
    assert whole is not None
    assert whole.since_s == pytest.approx(0.0, abs=3.0)
    over = course(1, [1.0] * 50 + [0.7] * 50 + [1.0] * 40)
    assert found_in(over, 100) is not None
    assert found_in(over, 140) is None
    assert SLOW_S == 60.0


def test_a_slow_run_within_its_band_is_expected() -> None:
    points = course(2, [0.85] * 60)
    assert slowdown(1000.0, None, {"samples_per_s": points}) is not None
    assert slowdown(1000.0, 700.0, {"samples_per_s": points}) is None
    assert slowdown(1000.0, 950.0, {}) is None


def test_signs_are_the_readings_that_changed() -> None:
    points = course(3, [1.0] * 60 + [0.7] * 60)
    begin_s = points[59][0] or 0.0

    def sensor(before: float, after: float) -> list[list[float | None]]:
        times = np.arange(0.5, 280.0, 0.5)
        return [[float(x), before if x <= begin_s else after] for x in times]

    curves = {
        "samples_per_s": points,
        "input_wait_percent": sensor(1.0, 25.0),
        "gpu_clock_sm_mhz": sensor(1900.0, 1890.0),
        "cpu_utilization_percent": sensor(90.0, 60.0),
        "gpu_power_watts": sensor(600.0, 300.0),
    }
    found = slowdown(1000.0, 950.0, curves)
    assert found is not None
    assert [sign.series for sign in found.signs] == [
        "input_wait_percent",
        "cpu_utilization_percent",
    ]
    (wait, _) = found.signs
    assert wait.before == pytest.approx(1.0, abs=2.0)
    assert wait.now == pytest.approx(25.0, abs=2.0)
