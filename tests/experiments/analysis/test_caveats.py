"""Answers of simulated runs carry the warning `simulated`."""

import dataclasses

from cubemesh.experiments.analysis.caveats import mark_simulated
from cubemesh.schema import Answer, Ceiling, Finding, ProgramSettings, RunSpec, TrainSteps

FOUND = Answer(
    experiment="minibatch",
    question="How fast?",
    title="little-cnn",
    findings=(
        Finding(code="throughput", text="Fast.", caveats=("drift",)),
        Finding(code="drift", text="Still."),
    ),
)


def runs(record_of, *frameworks):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
    return [
        record_of(
            dataclasses.replace(spec, program=ProgramSettings(framework=framework)), step_s=0.01
        )
        for framework in frameworks
    ]


def test_measured_runs_leave_an_answer_unchanged(record_of):
    assert mark_simulated(FOUND, runs(record_of, "pytorch", "jax")) == FOUND
    assert mark_simulated(FOUND, []) == FOUND


def test_every_finding_of_a_simulated_run_has_the_caveat(record_of):
    answer = mark_simulated(FOUND, runs(record_of, "null"))
    assert answer.simulated
    assert [f.caveats for f in answer.findings] == [("simulated", "drift"), ("simulated",)]
    assert [w.code for w in answer.warnings] == ["simulated"]
    mixed = mark_simulated(FOUND, runs(record_of, "pytorch", "null", "null"))
    assert "2 of these 3 runs" in mixed.warnings[0].cause


def test_a_framework_that_was_removed_is_not_simulated(record_of):
    assert not mark_simulated(FOUND, runs(record_of, "caffe")).simulated


def test_a_disk_that_was_read_is_not_simulated(record_of):
    spec = RunSpec(
        work=Ceiling(operation="disk_read", folder="/data"),
        program=ProgramSettings(framework="null"),
    )
    scripted = dataclasses.replace(
        spec, program=ProgramSettings(framework="null", script="step=0.01")
    )
    assert not mark_simulated(FOUND, [record_of(spec)]).simulated
    assert mark_simulated(FOUND, [record_of(scripted)]).simulated
