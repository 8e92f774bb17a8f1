"""Accuracy by batch size and learning rate: plan and answer."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.experiments.batch_accuracy.experiment import EXPERIMENT, Settings
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Placement, RunSpec, Status, Train


def train(batch, epochs=30):
    return RunSpec(work=Train(network="little-cnn", batch_per_device=batch, epochs=epochs))


def test_full_scale_has_the_settings_of_the_paper(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.FULL)
    planned, _ = play(EXPERIMENT.plan(Settings(), context), record_of)
    works = [s.work for s in planned]
    assert {(w.epochs, w.optimizer, w.learning_rate, w.data) for w in works} == {
        (30, "rmsprop", 1e-4, "digits")
    }
    assert [w.batch_per_device for w in works] == [16, 32, 64, 128, 256, 512, 1024]


def test_settings_override_the_defaults(machine, play, record_of):
    settings = Settings(batch_sizes=(4,), epochs=2, learning_rates=(0.1,), networks=("cifarnet",))
    planned, _ = play(EXPERIMENT.plan(settings, Context(machine=machine)), record_of)
    (work,) = [s.work for s in planned]
    assert (work.batch_per_device, work.epochs, work.learning_rate, work.network) == (
        4,
        2,
        0.1,
        "cifarnet",
    )


def test_a_significantly_lower_accuracy(record_of):
    records = [record_of(train(16), accuracy=0.76), record_of(train(2048), accuracy=0.50)]
    answer = EXPERIMENT.answer(Settings(), records)
    best, lower = answer.findings
    assert (best.code, best.value) == ("highest-accuracy", pytest.approx(76))
    assert best.question
    assert (lower.code, lower.value) == ("lower-accuracy", pytest.approx(-26))
    assert "2048" in lower.text
    assert answer.warnings == ()


def test_a_difference_within_the_intervals_is_not_significant(record_of):
    records = [record_of(train(16), accuracy=0.76), record_of(train(64), accuracy=0.74)]
    answer = EXPERIMENT.answer(Settings(), records)
    assert [f.code for f in answer.findings] == ["highest-accuracy", "equal-accuracy"]


def test_fewer_epochs_than_the_paper_are_a_warning(record_of):
    answer = EXPERIMENT.answer(Settings(), [record_of(train(16, epochs=4), accuracy=0.4)])
    assert [w.code for w in answer.warnings] == ["reduced"]


def test_curves_by_epoch_and_missing_points(record_of):
    records = [
        record_of(train(16), accuracy=0.8),
        record_of(train(64), status=Status.DIVERGED, message="the loss was not finite in epoch 2"),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    by_batch, by_epoch = answer.charts
    assert [p.y for p in by_batch.lines[0].points] == [pytest.approx(80.0), None]
    assert "diverged" in by_batch.lines[0].points[1].reason
    assert [line.name for line in by_epoch.lines] == ["batch size 16"]
    assert len(by_epoch.lines[0].points) == 30


def test_on_several_devices_the_batch_size_is_global(record_of):
    specs = [dataclasses.replace(train(b), placement=Placement(devices=4)) for b in (16, 64)]
    records = [record_of(spec, accuracy=0.8) for spec in specs]
    answer = EXPERIMENT.answer(Settings(), records)
    assert [row[0].text for row in answer.tables[0].rows] == ["64", "256"]
    assert "devices 4" in answer.title


def test_an_update_of_several_devices_counts_once(record_of):
    record = record_of(train(16), accuracy=0.8)
    second = tuple(dataclasses.replace(w, rank=1) for w in record.windows)
    both = dataclasses.replace(record, windows=(*record.windows, *second))
    updates = [
        EXPERIMENT.answer(Settings(), [r]).tables[0].rows[0][3].value for r in (record, both)
    ]
    assert updates[0] == updates[1] > 0


def grid_of(record_of, accuracies, **failed):
    records = []
    for (batch, rate), accuracy in accuracies.items():
        work = Train(network="little-cnn", batch_per_device=batch, epochs=30, learning_rate=rate)
        more = {"accuracy": accuracy} if accuracy is not None else failed
        records.append(record_of(RunSpec(work=work), **more))
    return records


def test_a_grid_runs_every_pair(machine, play, record_of):
    settings = Settings(batch_sizes=(16, 64), learning_rates=(1e-3, 1e-4), epochs=2)
    planned, _ = play(EXPERIMENT.plan(settings, Context(machine=machine)), record_of)
    assert {(s.batch_per_device, s.work.learning_rate) for s in planned} == {
        (b, r) for b in (16, 64) for r in (1e-3, 1e-4)
    }


def test_a_grid_has_its_best_point_and_a_heat_map(record_of):
    accuracies = {(16, 1e-4): 0.70, (16, 1e-3): None, (256, 1e-4): 0.50, (256, 1e-3): 0.90}
    records = grid_of(record_of, accuracies, status=Status.DIVERGED, message="the loss became nan")
    answer = EXPERIMENT.answer(Settings(learning_rates=(1e-4, 1e-3)), records)
    best, rates, failed = answer.findings
    assert (best.code, best.value) == ("highest-accuracy", pytest.approx(90))
    assert in_order(best.text, "256", "0.001")
    assert rates.code == "best-learning-rates"
    assert in_order(rates.text, "0.0001", "16", "70.0 %")
    assert failed.code == "failed-run"
    assert "the loss became nan" in failed.text
    (chart,) = answer.charts
    assert (chart.kind, chart.rows) == ("heat", "learning rate")
    assert [line.name for line in chart.lines] == ["0.0001", "0.001"]
    assert [p.y for p in chart.lines[1].points] == [None, pytest.approx(90)]
    assert len(answer.tables[0].rows) == 4


def test_a_grid_names_points_without_a_significant_difference(record_of):
    records = grid_of(record_of, {(16, 1e-4): 0.88, (16, 1e-3): 0.90})
    answer = EXPERIMENT.answer(Settings(learning_rates=(1e-4, 1e-3)), records)
    text = answer.findings[0].text
    assert in_order(text, "16", "0.001", "16", "0.0001")
