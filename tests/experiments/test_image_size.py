import dataclasses

import pytest

from answers import in_order
from cubemesh.experiments.image_size import EXPERIMENT, Settings
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Gpu, ProgramSettings, RunSpec, Status, TrainSteps


def asked_for(planned):
    return [(s.work.image_size, s.batch_per_device, s.program.data_location) for s in planned]


def test_the_papers_sizes_on_a_gpu(machine, play, record_of):
    gpu = Gpu(index=0, name="NVIDIA H200", uuid="GPU-0")
    context = Context(machine=dataclasses.replace(machine, gpus=(gpu,)))
    planned, sent = play(EXPERIMENT.plan(Settings(), context), record_of)
    batches = (16, 32, 64, 128, 256)
    assert asked_for(planned) == [(s, b, "host") for s in (32, 224) for b in batches]
    assert EXPERIMENT.answer(Settings(), sent).warnings == ()


def test_a_cpu_runs_smaller_images_until_runs_get_long(machine, play, record_of):
    def make(spec):
        return record_of(spec, step_s=1e-6 * spec.work.image_size**2 * spec.batch_per_device)

    context = Context(machine=machine, scale=Scale.QUICK)
    planned, sent = play(EXPERIMENT.plan(Settings(), context), make)
    assert asked_for(planned)[:5] == [(32, b, "host") for b in (16, 32, 64, 128, 256)]
    assert asked_for(planned)[5:] == [(80, 16, "host"), (80, 32, "host"), (80, 64, "host")]
    (warning,) = EXPERIMENT.answer(Settings(), sent).warnings
    assert in_order(warning.cause, "80", "224")
    assert in_order(warning.cause, "64", "256", "80")


def test_both_data_locations(machine, play, record_of):
    settings = Settings(image_sizes=(32,), batch_sizes=(16,), data_location="both")
    planned, _ = play(EXPERIMENT.plan(settings, Context(machine=machine)), record_of)
    assert asked_for(planned) == [(32, 16, "host"), (32, 16, "device")]


def records(record_of, step_s, percent=None, on="host"):
    return [
        record_of(
            RunSpec(
                work=TrainSteps(network="little-cnn", batch_per_device=b, image_size=size),
                program=ProgramSettings(data_location=on),
            ),
            step_s=t,
            gpu_percent=None if percent is None else percent[size, b],
        )
        for (size, b), t in step_s.items()
    ]


STEPS = {(32, 16): 0.016, (32, 64): 0.064 / 2.8, (224, 16): 0.16, (224, 64): 0.64 / 1.3}
PERCENT = {(32, 16): 20.0, (32, 64): 45.0, (224, 16): 72.0, (224, 64): 96.0}


def test_larger_images_gain_less_from_batch_size_with_higher_utilization(record_of):
    answer = EXPERIMENT.answer(Settings(), records(record_of, STEPS, PERCENT))
    growth = [f.value for f in answer.findings if f.code == "throughput-growth"]
    assert growth == [pytest.approx(2.8), pytest.approx(1.3)]
    busy = [f for f in answer.findings if f.code == "device-utilization"]
    assert [f.value for f in busy] == [45, 96]
    assert "72 % at batch size 16" in busy[1].text
    speed, busy = answer.charts
    assert [line.name for line in speed.lines] == ["32 × 32", "224 × 224"]
    assert [p.y for p in busy.lines[1].points] == [72.0, 96.0]


def test_input_bound_sizes_and_batch_sizes_are_named(record_of):
    host = records(record_of, STEPS, PERCENT)
    device = records(record_of, {k: t / 2 for k, t in STEPS.items()}, PERCENT, on="device")
    answer = EXPERIMENT.answer(Settings(data_location="both"), [*host, *device])
    found = next(f.text for f in answer.findings if f.code == "input-bound")
    assert in_order(found, "2.00×", "32", "16", "20 %")
    assert not in_order(found, "224", "64")
    assert answer.charts[0].lines[0].name == "32 × 32, data on the host"


def test_failed_runs_have_a_reason(record_of):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=16, image_size=224))
    failed = record_of(spec, status=Status.OOM, message="out of memory: 27 GiB")
    answer = EXPERIMENT.answer(Settings(), [failed])
    assert answer.findings[0].code == "failed-run"
    assert in_order(answer.findings[0].text, "224", "16", "out of memory", "27 GiB")
    assert answer.charts[0].lines[0].points[0].reason == "out of memory: 27 GiB"
    assert answer.tables[0].rows[0][3].reason == "out of memory: 27 GiB"
    assert pytest.approx(0) == sum(p.y or 0 for p in answer.charts[0].lines[0].points)
