"""Inference runs of real engines, each in a worker of its own."""

import dataclasses

import pytest

from cubemesh.experiments.inference import EXPERIMENT, Settings
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.runs import Executor
from cubemesh.schema import Infer, InferLoad, Placement, ProgramSettings, Status
from cubemesh.schema.comparison import RATIO
from cubemesh.schema.spec import Against
from cubemesh.store import Store

pytest.importorskip("torch")

ENGINES = [n for n in ("pytorch", "onnxruntime", "openvino") if FRAMEWORKS[n].installed]


@pytest.fixture(scope="module")
def specs(null_spec):
    """Specs of short runs, by name."""

    def work_of(scenario):
        return Infer(network="little-cnn", batch_per_device=2, scenario=scenario)

    def spec(framework, scenario="single-stream", **fields):
        base = null_spec(framework=framework, steps=12, windows=6, instances=2)
        work = work_of(scenario)
        return dataclasses.replace(base, work=work, **fields)

    two = Placement(devices=2, oversubscribe=True)
    nhwc = Against(
        work=work_of("single-stream"), program=ProgramSettings(framework="pytorch", layout="nhwc")
    )
    return {
        **{name: spec(name) for name in ENGINES},
        "offline": spec("pytorch", scenario="offline"),
        "load": dataclasses.replace(
            spec("pytorch"),
            work=InferLoad(network="little-cnn", batch_per_device=1, percentile=50),
        ),
        "two devices": spec("pytorch", placement=two),
        "interleaved": spec("pytorch", against=nhwc),
    }


@pytest.fixture(scope="module")
def records(tmp_path_factory, small_machine, specs):
    folder = tmp_path_factory.mktemp("inference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with (
            Store.open(str(folder / "mine.sqlite")) as store,
            Executor(store, machine=small_machine, runs_folder=folder / "runs") as executor,
        ):
            return dict(zip(specs, executor.run(list(specs.values())), strict=True))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_measured(records, name):
    found = records[name]
    assert found.ok, found.outcome
    assert found.figures["latency_p50_s"].value <= found.figures["latency_max_s"].value
    assert found.figures["latency_p50_s"].n >= 12
    assert found.figure("throughput_per_s") > 0
    assert found.figure("model_flops_per_s") > 0


def test_queued_batches_have_a_throughput_and_no_latency(records):
    assert records["offline"].ok
    assert records["offline"].figure("latency_p50_s") is None


def test_a_load_test_is_recorded(records):
    pytest.importorskip("mlperf_loadgen")
    found = records["load"]
    assert found.ok, found.outcome
    assert found.figure("latency_p50_s") > 0
    assert found.figures["latency_p50_s"].method == "LoadGen"
    assert found.figure("throughput_per_s") > 0


def test_two_programs_are_interleaved(records):
    found = records["interleaved"]
    assert found.ok, found.outcome
    assert found.figure(RATIO) > 0


def test_inference_runs_on_one_device(records):
    outcome = records["two devices"].outcome
    assert outcome.status is Status.UNSUPPORTED
    assert "inference runs on one device" in outcome.message


def test_the_answer_has_every_engine(records):
    answer = EXPERIMENT.answer(Settings(), [records[name] for name in ENGINES])
    (table,) = answer.tables
    assert {row[1].text for row in table.rows} == {FRAMEWORKS[n].title for n in ENGINES}
    first = [c.name for c in table.columns].index("first answer")
    assert all(row[first].value > 0 for row in table.rows)
