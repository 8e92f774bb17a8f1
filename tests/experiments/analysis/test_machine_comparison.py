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
    assert (first, second) == ("H100 (a)", "H100 (c)")
    sources = (replace(one, source=f"{name}.sqlite") for name in "ab")
    assert labels(*sources) == ("H100 (a.sqlite)", "H100 (b.sqlite)")
    assert labels(one, one) == ("H100 (this store)", "H100 (the other store)")
    other = replace(H100, gpus=(replace(H100.gpus[0], uuid="GPU-3"),))
    assert labels(one, replace(one, machine=other)) == (
        f"H100 ({H100.machine_id[:6]})",
        f"H100 ({other.machine_id[:6]})",
    )


def test_measurements_of_two_days_on_the_same_machine_are_distinguished(record_of):
    days = [
        replace(record_of(SPEC), started_utc=f"2026-01-0{day}T00:00:00+00:00") for day in (2, 5)
    ]
    one, two = (
        Side(machine=H100, runs=(), records={"a": record}, source=f"{record.started_utc}.sqlite")
        for record in days
    )
    assert labels(one, two) == ("H100 (2 Jan 2026)", "H100 (5 Jan 2026)")
    torch = replace(H100.software, packages={"torch": "2.12.0"})
    older = replace(H100.software, packages={"torch": "2.11.0"})
    one = replace(one, machine=replace(H100, software=torch))
    two = replace(two, machine=replace(H100, software=older))
    assert labels(one, two) == ("H100 (torch 2.12.0)", "H100 (torch 2.11.0)")


def test_the_finding_has_the_verdict_of_the_table(record_of):
    """Two ratios are judged together: one that would be significant by itself is not."""
    specs = [
        SPEC,
        replace(SPEC, work=TrainSteps(network="vgg16", batch_per_device=8)),
        replace(SPEC, work=TrainSteps(network="alexnet", batch_per_device=8)),
    ]
    own, other = (
        {
            f"{side} {i}": replace(record_of(spec, step_s=0.01 * times), run_id=f"{side} {i}")
            for i, spec in enumerate(specs)
        }
        for side, times in (("own", 1.0), ("other", 1.01))
    )
    answer = machine_comparison(
        Side(machine=H200, runs=[run("q", *own)], records=own),
        Side(machine=H100, runs=[run("r", *other)], records=other),
    )
    shown = texts(answer.tables[0], "this machine is")
    found = [f.verdict for f in findings(answer, "machine-ratio")]
    assert sorted(found) == sorted(shown)
    assert all(text.startswith("no significant difference (") for text in found)
