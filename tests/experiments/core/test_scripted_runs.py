"""What a script played says so wherever it is shown."""

import dataclasses

from cubemesh.experiments.core.scripted_runs import told
from cubemesh.schema import Answer, Finding, ProgramSettings, RunSpec, TrainSteps

FOUND = Answer(
    experiment="minibatch",
    question="How fast?",
    title="little-cnn",
    findings=(Finding(text="Fast.", caveats=("drift",)), Finding(text="Still.")),
)


def runs(record_of, *frameworks):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
    return [
        record_of(
            dataclasses.replace(spec, program=ProgramSettings(framework=framework)), step_s=0.01
        )
        for framework in frameworks
    ]


def test_what_was_measured_stays_as_it_is(record_of):
    assert told(FOUND, runs(record_of, "pytorch", "jax")) == FOUND
    assert told(FOUND, []) == FOUND
    assert not FOUND.simulated


def test_every_finding_of_a_script_is_in_doubt(record_of):
    answer = told(FOUND, runs(record_of, "null"))
    assert answer.simulated
    assert [f.caveats for f in answer.findings] == [("simulated", "drift"), ("simulated",)]
    assert answer.warnings[0].cause.startswith("This run was played by a script")
    both = told(FOUND, runs(record_of, "null", "null"))
    assert both.warnings[0].cause.startswith("These 2 runs were played by a script")
    mixed = told(FOUND, runs(record_of, "pytorch", "null", "null"))
    assert mixed.warnings[0].cause.startswith("2 of these 3 runs were played by a script")


def test_a_framework_that_is_no_more_is_no_script(record_of):
    assert not told(FOUND, runs(record_of, "caffe")).simulated
