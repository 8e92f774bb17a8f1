import dataclasses

from cubemesh.experiments.core.settings import request
from cubemesh.experiments.model_size import EXPERIMENT, Settings
from cubemesh.experiments.registry import Context, Scale
from cubemesh.experiments.runner import run_experiment
from cubemesh.machines import probe
from cubemesh.runs import Executor
from cubemesh.schema import Curve, Figure, ProgramSettings, RunSpec, TrainSteps
from cubemesh.store import Store


def test_full_settings_are_the_papers(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.FULL)
    settings = Settings(ceiling=False)
    planned, sent = play(EXPERIMENT.plan(settings, context), record_of)
    assert [s.work.network for s in planned] == ["little-cnn", "resnet-50", "vgg16"]
    assert {(s.work.image_size, s.batch_per_device, s.budget.steps) for s in planned} == {
        (224, 32, 960)
    }
    assert EXPERIMENT.answer(Settings(), sent).warnings == ()


def test_a_cpu_runs_less_with_a_warning(machine, play, record_of):
    settings = Settings(ceiling=False)
    planned, sent = play(EXPERIMENT.plan(settings, Context(machine=machine)), record_of)
    assert {(s.work.image_size, s.batch_per_device) for s in planned} == {(80, 4)}
    (warning,) = EXPERIMENT.answer(Settings(), sent).warnings
    assert "4 instead of 32" in warning.cause
    assert "80 instead of 224" in warning.cause


def trained(record_of, network, percent, step_s=0.1, on="host"):
    work = TrainSteps(network=network, batch_per_device=32, image_size=224)
    spec = RunSpec(work=work, program=ProgramSettings(data_location=on))
    return record_of(spec, step_s=step_s, gpu_percent=percent)


def test_utilization_and_its_curve_over_time(record_of):
    records = [
        trained(record_of, "little-cnn", 62.0),
        trained(record_of, "resnet-50", 88.0),
        trained(record_of, "vgg16", 92.0),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    first = answer.findings[0]
    assert (first.code, first.value) == ("device-utilization", 62)
    assert "resnet-50 (88 %) and vgg16 (92 %)" in first.text
    bars, over_time = answer.charts
    assert [p.x for p in bars.lines[0].points] == ["little-cnn", "resnet-50", "vgg16"]
    assert [line.name for line in over_time.lines] == ["little-cnn", "resnet-50", "vgg16"]
    assert [p.y for p in over_time.lines[2].points] == [92.0, 92.0, 92.0]


def test_host_compared_with_device(record_of):
    records = [
        trained(record_of, "little-cnn", 40.0, 0.2),
        trained(record_of, "little-cnn", 95.0, 0.1, on="device"),
    ]
    answer = EXPERIMENT.answer(Settings(networks=("little-cnn",), data_location="both"), records)
    assert any(f.code == "input-bound" and "2.00×" in f.text for f in answer.findings)
    assert [line.name for line in answer.charts[0].lines] == [
        "data on the host",
        "data on the device",
    ]


def test_a_run_for_real_samples_utilization_over_time(tmp_path):
    """The scripted framework on the real clock: the sampler, the record and the chart are real."""
    texts = {
        "networks": "little-cnn",
        "ceiling": "false",
        "framework": "null",
        "script": "step=0.01,real=1",
        "seconds": "1.2",
        "warmup_seconds": "0.2",
    }
    machine = probe()
    with (
        Store.open(str(tmp_path / "s.sqlite")) as store,
        Executor(store, machine=machine, runs_folder=tmp_path / "runs") as executor,
    ):
        context = Context(machine=machine, scale=Scale.QUICK)
        answered = run_experiment(EXPERIMENT, request(EXPERIMENT, texts), context, executor, store)
    (record,) = answered.records
    assert 0 <= record.figures["cpu_utilization_percent"].value < 100
    (line,) = answered.answer.charts[1].lines
    assert len(line.points) >= 1
    assert all(0 < p.x <= record.elapsed_s for p in line.points)


def test_ceilings_run_first_and_utilization_is_in_the_table(machine, play, record_of):
    context = Context(machine=machine)
    planned, sent = play(EXPERIMENT.plan(Settings(networks=("resnet-50",)), context), record_of)
    assert [getattr(s.work, "operation", "") for s in planned] == ["matrix_product", "copy", ""]
    known = {"mfu_percent": Figure(value=41.0, unit="%")}
    sent[-1] = dataclasses.replace(sent[-1], figures={**sent[-1].figures, **known})
    answer = EXPERIMENT.answer(Settings(), sent)
    (table,) = answer.tables
    assert table.columns[-1].name == "MFU"
    assert [row[-1].value for row in table.rows] == [41.0]
    assert any("dense peak" in note for note in answer.notes)


def test_power_of_a_gpu_over_time(record_of):
    work = TrainSteps(network="vgg16", batch_per_device=32, image_size=224)
    record = record_of(RunSpec(work=work), gpu_percent=92.0)
    power = Curve(name="gpu_power_watts", x_name="seconds", x=(0.5, 1.0), y=(610.0, 640.0))
    record = dataclasses.replace(record, curves=(*record.curves, power))
    charts = EXPERIMENT.answer(Settings(), [record]).charts
    assert [c.title for c in charts[1:]] == ["Utilization over time", "Power over time"]
    assert [p.y for p in charts[2].lines[0].points] == [610.0, 640.0]
    assert charts[2].y.unit == "W"
