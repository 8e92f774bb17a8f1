import math
from dataclasses import replace

import pytest

from answers import codes, column, findings, texts
from cubemesh.experiments.analysis.machine_comparison import (
    Side,
    labels,
    machine_comparison,
    pairs,
)
from cubemesh.schema import Answer, ExperimentRun, Gpu, ProgramSettings, RunSpec, TrainSteps
from record_fixtures import MACHINE

SPEC = RunSpec(
    work=TrainSteps(network="resnet-50", batch_per_device=8),
    program=ProgramSettings(precision="bf16"),
)
H100 = replace(MACHINE, hostname="a", gpus=(Gpu(index=0, uuid="GPU-1", name="H100"),))
H200 = replace(MACHINE, hostname="b", gpus=(Gpu(index=0, uuid="GPU-2", name="H200"),))


def run(name: str, *run_ids: str, experiment: str = "minibatch", **settings) -> ExperimentRun:
    return ExperimentRun(
        experiment_run_id=name,
        experiment=experiment,
        settings=settings,
        machine_id="m",
        started_utc="2026-01-01T00:00:00+00:00",
        run_ids=run_ids,
    )


@pytest.fixture
def compared(record_of):
    """Compares a run of this spec on an H200 with one of another on an H100."""

    def compare(first: RunSpec, second: RunSpec, times: float = 2.0) -> Answer:
        own = replace(record_of(first, step_s=0.01), run_id="own")
        other = replace(record_of(second, step_s=0.01 * times), run_id="other")
        return machine_comparison(
            Side(machine=H200, runs=[run("q", "own")], records={"own": own}),
            Side(machine=H100, runs=[run("r", "other")], records={"other": other}),
        )

    return compare


def test_equal_work_has_a_ratio_with_its_interval(compared):
    answer = compared(SPEC, SPEC)
    (found,) = findings(answer, "machine-ratio")
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2 * 0.99 ** math.sqrt(2), rel=1e-3)
    assert found.high == pytest.approx(2 * 1.01 ** math.sqrt(2), rel=1e-3)
    assert found.question == "How fast is this machine compared with H100?"
    assert texts(answer.tables[0], "this machine is") == ["faster"]
    assert [c.run_id for c in column(answer.tables[0], "H200")] == ["own"]
    assert [c.run_id for c in column(answer.tables[0], "H100")] == ["other"]
    assert answer.run_ids == ("own", "other")


@pytest.mark.parametrize(
    ("times", "result"), [(0.5, "slower"), (1.01, "no significant difference"), (1.5, "faster")]
)
def test_a_ratio_has_its_significance(compared, times, result):
    (cell,) = texts(compared(SPEC, SPEC, times).tables[0], "this machine is")
    assert cell.partition(" (")[0] == result


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"batch_per_device": 16}, "batch size 8 here, 16 there"),
        ({"image_size": 80}, "image size none here, 80 there"),
        ({"precision": "fp32"}, "precision bf16 here, fp32 there"),
    ],
)
def test_different_work_has_no_ratio_and_its_reason(compared, change, reason):
    work = {k: v for k, v in change.items() if k != "precision"}
    program = {k: v for k, v in change.items() if k == "precision"}
    other = RunSpec(work=replace(SPEC.work, **work), program=replace(SPEC.program, **program))
    answer = compared(SPEC, other)
    assert codes(answer) == ["no-common-workload"]
    (cell,) = column(answer.tables[0], "this / other")
    assert (cell.value, cell.reason) == (None, f"not comparable: {reason}")
    assert [c.value for c in column(answer.tables[0], "H100")] != [None], "its figure is shown"


def test_another_program_is_compared_and_named(compared):
    other = replace(SPEC, program=replace(SPEC.program, framework="pytorch-compiled"))
    answer = compared(SPEC, other)
    assert codes(answer) == ["machine-ratio"]
    assert texts(answer.tables[0], "other differences") == [
        "framework pytorch here, pytorch-compiled there"
    ]


def test_other_files_under_the_same_path_are_named(record_of):
    own, other = (
        replace(
            one := record_of(SPEC, step_s=0.01), run_id=name, key=replace(one.key, data_id=name)
        )
        for name in ("own", "other")
    )
    answer = machine_comparison(
        Side(machine=H200, runs=[run("q", "own")], records={"own": own}),
        Side(machine=H100, runs=[run("r", "other")], records={"other": other}),
    )
    assert texts(answer.tables[0], "other differences") == [
        "digest of data files own here, other there"
    ]


def test_a_workload_of_one_machine_has_a_reason(compared):
    vgg = replace(SPEC, work=TrainSteps(network="vgg16", batch_per_device=8))
    answer = compared(SPEC, vgg)
    (cell,) = column(answer.tables[0], "this / other")
    assert cell.reason == "not measured on the other machine"


def test_runs_are_paired_by_settings_first_and_need_a_common_network():
    own = [run("a", networks=["vgg16"]), run("b", networks=["resnet-50"], steps=2)]
    other = [run("c", networks=["resnet-50"], steps=3), run("d", networks=["resnet-50"], steps=2)]
    found = [(one.experiment_run_id, two.experiment_run_id) for one, two in pairs(own, other)]
    assert found == [("b", "d")]
    assert pairs([run("a")], [run("b", experiment="ceilings")]) == []


def test_machines_with_the_same_devices_have_different_labels():
    one, two = (Side(machine=m, runs=(), records={}) for m in (H100, H200))
    assert labels(one, two) == ("H100", "H200")
    twin = replace(two, machine=replace(H100, hostname="c"))
    first, second = labels(one, twin)
    assert first == f"H100 ({H100.machine_id[:6]})"
    assert second == f"H100 ({twin.machine.machine_id[:6]})"
    assert labels(one, replace(one, source="b.sqlite")) == (
        "H100 (this store)",
        "H100 (b.sqlite)",
    )
