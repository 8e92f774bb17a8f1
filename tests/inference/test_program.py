"""A plan as a side of a comparison: what it computes, what it refuses, and what is planned."""

from dataclasses import replace

import numpy as np
import pytest

import cubemesh
from cubemesh import Plan, build_plan, networks
from cubemesh.batches import Batch
from cubemesh.errors import UsageError
from cubemesh.experiments import inference, inference_load
from cubemesh.experiments.inference import PLAN, compared_plan, programs
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.program import BuildRequest, SupportsInference, Unsupported
from cubemesh.inference import device, runtime
from cubemesh.inference.plan_file import describe_plan, read_plan, write_plan
from cubemesh.parallel.strategy import NoSync
from cubemesh.schema import Infer, Placement, ProgramSettings

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A plan of LittleCNN for batch sizes 1 and 4."""
    folder = tmp_path_factory.mktemp("plan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        build_plan(
            "little-cnn",
            folder / "little.plan",
            batches=(1, 4),
            engines=["onnxruntime"],
            seconds=0.01,
            threads=1,
        )
    return folder / "little.plan"


def request(file, network="little-cnn", image_size=None, batch=4, threads=None, **program):
    settings = {"framework": PLAN, "plan_file": None if file is None else str(file), **program}
    return BuildRequest(
        network=networks.build(network, image_size),
        work=Infer(network=network, batch_per_device=batch),
        placement=Placement(),
        program=ProgramSettings(**settings),
        sync=NoSync(),
        device="cpu",
        threads=threads or 1,
    )


def loaded(file, **changes):
    asked = request(file, **changes)
    program = FRAMEWORKS[PLAN].load().build(asked)
    program.load(asked.network.draw(0))
    return program


def test_its_scores_are_those_of_the_plan(file):
    images = np.random.default_rng(0).random((4, 3, 32, 32), np.float32)
    program = loaded(file)
    assert isinstance(program, SupportsInference)
    placed = program.place(Batch(images, labels=np.zeros(4, np.int64)))
    found = program.fetch(program.infer(placed))
    with Plan.load(file, threads=1) as plan:
        assert np.array_equal(found, plan.run(images))
    program.close()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch": 2}, "the batch sizes 1 and 4, and this run has 2"),
        ({"network": "cifarnet"}, "the plan is of little-cnn, and this run of cifarnet"),
        ({"image_size": 16}, "takes image 3×32×32, and this run has image 3×16×16"),
        ({"plan_checksum": "0"}, "has changed since this run was planned"),
        ({"threads": 99}, "threads?, and 99 are used"),
    ],
)
def test_what_a_plan_does_not_fit_is_refused_with_the_reason(file, changes, sentence):
    with pytest.raises(Unsupported, match=sentence):
        loaded(file, **changes)


def test_another_device_a_missing_file_and_no_plan(file, tmp_path, monkeypatch):
    with pytest.raises(Unsupported, match="is not a file"):
        loaded(tmp_path / "no.plan")
    with pytest.raises(Unsupported, match="set plan=FILE"):
        loaded(None)
    elsewhere = replace(device.this_device(1), cpu="Another CPU")
    monkeypatch.setattr(runtime, "this_device", lambda threads=None, device="cpu": elsewhere)
    with pytest.raises(Unsupported, match="and this is Another CPU"):
        loaded(file)


def test_a_plan_comes_after_the_engines_once(file):
    compared = compared_plan(str(file))
    assert (compared.network, compared.batch_sizes) == ("little-cnn", (1, 4))
    found = programs(("onnxruntime", PLAN), ("fp32", "bf16"), compared)
    assert [(p.framework, p.precision) for p in found] == [
        ("onnxruntime", "fp32"),
        ("onnxruntime", "bf16"),
        (PLAN, "fp32"),
    ]
    assert found[-1].plan_file == str(file)
    assert PLAN not in {p.framework for p in programs((), ("fp32",), None)}
    with pytest.raises(UsageError, match="is not a file"):
        compared_plan(str(file.parent / "no.plan"))


def test_runs_of_different_plans_are_not_confused(file, tmp_path):
    document, models = read_plan(file)
    write_plan(tmp_path / "other.plan", replace(document, source="another"), models)
    assert describe_plan(tmp_path / "other.plan")[1] != describe_plan(file)[1]


@pytest.mark.parametrize("experiment", [inference.EXPERIMENT, inference_load.EXPERIMENT])
def test_what_the_setting_sets_is_not_set_itself(experiment):
    with pytest.raises(UsageError, match="Use --set plan="):
        cubemesh.run(experiment.name, settings={"plan_file": "x.plan"})


def test_a_run_compares_a_plan_with_an_engine(file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    result = cubemesh.run(
        "inference",
        settings={
            "plan": str(file),
            "frameworks": "onnxruntime",
            "batch_sizes": "1,2",
            "steps": "5",
            "seconds": "0.1",
            "warmup_seconds": "0.1",
            "threads": "1",
        },
        store=str(tmp_path / "s.sqlite"),
    )
    records = {
        (r.spec.program.framework, r.spec.batch_per_device): r.outcome for r in result.records
    }
    assert {key for key, outcome in records.items() if outcome.status == "ok"} == {
        ("onnxruntime", 1),
        ("onnxruntime", 2),
        (PLAN, 1),
    }
    assert "this run has 2" in records[PLAN, 2].message
    (table,) = result.answer.tables
    assert ("plan", "its own") in {(row[1].text, row[2].text) for row in table.rows}
    assert any(f.text.startswith("plan, batch size 2: ") for f in result.answer.findings)
