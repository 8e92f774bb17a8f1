import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from answers import finding
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.minibatch.experiment import Settings
from cubemesh.experiments.minibatch.max_batch import (
    FIRST,
    forecast_bytes,
    max_batch,
    max_batch_findings,
    search,
)
from cubemesh.experiments.registry import EXPERIMENTS, Context
from cubemesh.networks import build
from cubemesh.networks.memory import forecast
from cubemesh.schema import Outcome, Placement, ProgramSettings, RunSpec, Status, TrainSteps


def specs_of(batch):
    return [RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=batch))]


def holding(record_of, most, **facts):
    """Records of a machine that holds `most` samples."""

    def make(spec):
        fits = spec.batch_per_device is None or spec.batch_per_device <= most
        record = record_of(spec, status=Status.OK if fits else Status.OOM)
        if fits:
            return record
        return dataclasses.replace(record, outcome=Outcome(status=Status.OOM, facts=facts))

    return make


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(most=st.integers(1, 3000))
def test_the_result_fits_and_an_eighth_more_does_not(most, machine, play, record_of):
    asked, sent = play(search(specs_of, machine), holding(record_of, most))
    found = max_batch(sent)
    assert found.fits <= most < found.refused
    assert found.refused - found.fits <= max(1, found.fits // 8)
    assert len(asked) <= 16
    batches = [spec.batch_per_device for spec in asked]
    assert len(set(batches)) == len(batches)


def test_the_batch_size_that_a_refused_run_forecasts_is_tried_next(machine, play, record_of):
    asked, _ = play(search(specs_of, machine), holding(record_of, 100, largest_batch_that_fits=99))
    assert [s.batch_per_device for s in asked][:6] == [8, 16, 32, 64, 128, 96]


def test_nothing_fits(machine, play, record_of):
    asked, sent = play(search(specs_of, machine), holding(record_of, 0))
    assert [s.batch_per_device for s in asked] == [FIRST, 4, 2, 1]
    assert max_batch(sent) == (None, 1)
    assert next(max_batch_findings(sent)).value is None


def test_the_number_of_samples_limits_the_search(machine, play, record_of):
    asked, sent = play(search(specs_of, machine, most=20), holding(record_of, 10**6))
    assert [s.batch_per_device for s in asked] == [8, 16, 20]
    assert max_batch(sent) == (20, None)
    assert next(max_batch_findings(sent)).value == 20


def test_crashed_runs_do_not_count_as_out_of_memory(record_of):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
    crashed = record_of(spec, status=Status.CRASHED, message="segmentation fault")
    assert max_batch([crashed]) == (None, None)
    assert next(max_batch_findings([crashed])).value is None


def test_a_doubling_far_beyond_the_memory_is_not_tried(machine, play, record_of):
    limit_bytes = forecast(build("little-cnn"), 40).total_bytes

    def limited(batch):
        (spec,) = specs_of(batch)
        budget = dataclasses.replace(spec.budget, memory_limit_bytes=limit_bytes // 3)
        return [dataclasses.replace(spec, budget=budget)]

    asked, _ = play(search(limited, machine), holding(record_of, 33))
    assert 64 not in [s.batch_per_device for s in asked]


def test_a_crash_ends_the_search(machine, play, record_of):
    asked, _ = play(search(specs_of, machine), lambda s: record_of(s, status=Status.CRASHED))
    assert len(asked) == 1


def test_minibatch_with_auto_reports_the_largest_batch_size(machine, play, record_of):
    experiment = EXPERIMENTS["minibatch"]
    wanted = request(experiment, {"batch_sizes": "auto"}).settings
    assert wanted == Settings(batch_sizes="auto")
    _, sent = play(experiment.plan(wanted, Context(machine=machine)), holding(record_of, 100))
    answer = experiment.answer(wanted, sent)
    found = finding(answer, "max-batch-size")
    assert found.value == 96
    assert "104" in found.text
    rows = [int(row[0].text) for row in answer.tables[0].rows]
    assert rows == sorted(rows)


def test_the_forecast_is_that_of_the_strategy():
    """A stage of a pipeline has half of the weights."""
    whole, stage = (
        forecast_bytes(
            RunSpec(
                work=TrainSteps(network="resnet-18", batch_per_device=8),
                placement=Placement(devices=2),
                program=ProgramSettings(sync=sync),
            ),
            1,
            "cuda:0",
        )
        for sync in ("all-reduce", "pipeline")
    )
    assert stage < whole
