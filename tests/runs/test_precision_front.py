"""A network is trained and judged in every precision, in a worker of its own."""

import dataclasses

import pytest

from cubemesh.experiments.inference_precision import EXPERIMENT, Settings, timed_candidates
from cubemesh.kernels.cpu.int8.library import unsupported
from cubemesh.measure.log import Log
from cubemesh.onnx.engines import ENGINES
from cubemesh.runs import Executor
from cubemesh.schema import Figure, InferPrecision, Placement, Status
from cubemesh.store import Store
from cubemesh.worker.run.precision_front import TrainingLog

pytest.importorskip("torch")
pytest.importorskip("onnx")
if not any(line.installed for line in ENGINES.values()):
    pytest.skip("no engine is installed", allow_module_level=True)


@pytest.fixture(scope="module")
def records(tmp_path_factory, small_machine, null_spec):
    folder = tmp_path_factory.mktemp("front")
    work = InferPrecision(
        network="little-cnn",
        batch_per_device=2,
        image_size=8,
        data="digits",
        epochs=1,
        optimizer="rmsprop",
        learning_rate=1e-3,
    )
    spec = null_spec(framework="pytorch", steps=2, windows=2)
    spec = dataclasses.replace(spec, work=work, placement=Placement(threads=1))
    random = dataclasses.replace(spec, work=dataclasses.replace(work, data="synthetic"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with (
            Store.open(str(folder / "mine.sqlite")) as store,
            Executor(store, machine=small_machine, runs_folder=folder / "runs") as executor,
        ):
            return executor.run([spec, random])


def test_every_candidate_has_time_and_accuracy(records):
    record = records[0]
    assert record.ok, record.outcome
    assert record.windows == ()  # those of the training are not of inference
    assert 0 < record.figure("accuracy") <= 1
    found = timed_candidates([record])
    engines = {name for name, line in ENGINES.items() if line.installed}
    assert {one.engine for one in found if one.precision == "fp32"} == engines
    own = set() if unsupported() else {"cpu-int8"}
    assert {one.engine for one in found if one.precision == "int8"} == engines | own
    methods = {one.seconds.method for one in found if one.precision == "int8"}
    assert {"min-max", "percentile", "entropy", "mse"} <= methods
    for one in found:
        assert one.seconds.value > 0
        assert (one.paired is None) == (one.precision == "fp32")
        assert one.paired is None or one.paired.samples == 359
    answer = EXPERIMENT.answer(Settings(), [record])
    assert answer.findings[0].code == "fastest-accurate"
    assert len(answer.tables[0].rows) == len(found)


def test_random_labels_are_refused(records):
    outcome = records[1].outcome
    assert outcome.status is Status.UNSUPPORTED
    assert "Set data=digits" in outcome.message


def test_the_log_of_a_training_keeps_its_figures():
    class Kept(Log):
        def __init__(self):
            self.events = []

        def emit(self, event, **fields):
            self.events.append(event)

    kept = Kept()
    log = TrainingLog(kept)
    log.figure("accuracy", Figure(value=0.9, unit=""))
    with log.phase("evaluate"):
        log.progress("train", 1, 0.1, 0.5)
    assert kept.events == ["progress"]
    assert log.figures["accuracy"].value == 0.9
