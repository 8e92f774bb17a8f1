"""What the benchmark of `tune` compares, and what it says, with runs of the scripted framework."""

import dataclasses

import pytest

from cubemesh.experiments.tune.search_space import Configuration
from cubemesh.schema import RunKey, RunRecord, Window
from cubemesh.schema.outcome import Outcome, Status


@pytest.fixture
def finds(script):
    return script("tune_finds")


def record(finds, configuration, step_s):
    spec = finds.spec_of(configuration, "little-cnn", 1, 20)
    windows = tuple(
        Window(start_s=float(n), elapsed_s=step_s * (1 + 0.01 * (-1) ** n), steps=1, samples=64)
        for n in range(12)
    )
    return RunRecord(
        run_id="run",
        spec=spec,
        key=RunKey(spec_id="s", machine_id="m", software_id="w", code_version="c"),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=1.0,
        outcome=Outcome(status=Status.OK),
        windows=windows,
    )


def test_the_grid_has_every_setting_once(finds):
    cells = finds.grid(64, ["pytorch", "pytorch-compiled"], (1,))
    assert len(cells) == len(set(cells)) == 3 * 2 * 2 * 2
    assert {c.batch_per_device for c in cells} == {64}


def test_each_round_is_a_run_and_only_the_first_logs_losses(finds):
    first = Configuration(framework="pytorch", batch_per_device=64)
    specs = [finds.spec_of(first, "little-cnn", number, 20) for number in range(4)]
    assert len({s.spec_id for s in specs}) == 4
    assert [s.work.losses for s in specs] == [20, 0, 0, 0]


def test_the_result_is_the_ratio_of_tuned_to_best(finds):
    stock = Configuration(framework="pytorch", batch_per_device=64)
    other = dataclasses.replace(stock, layout="nhwc")
    best = finds.Cell(stock, record(finds, stock, 0.1), [record(finds, stock, 0.1)] * 3)
    found = finds.Cell(other, record(finds, other, 0.102), [record(finds, other, 0.102)] * 3)
    result = finds.result_of(best, found, stock, 170.0)
    assert result["ratio"] == pytest.approx(1 / 1.02, rel=1e-3)
    assert result["low"] < result["ratio"] < result["high"]
    assert (result["found"], result["best"]) == ("nhwc", "stock")
    assert finds.result_of(best, best, stock, 170.0)["same"]


def test_a_single_round_is_refused(finds, capsys):
    with pytest.raises(SystemExit):
        finds.arguments(["--rounds", "1"])
    assert "has no interval" in capsys.readouterr().err
