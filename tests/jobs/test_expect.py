"""Expected throughput: from earlier runs of the same workload, else a forecast, else nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import report_sample
from cubemesh.jobs.expect import expected_throughput, from_records, speed_id
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
