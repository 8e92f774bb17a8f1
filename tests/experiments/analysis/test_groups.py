from dataclasses import replace

from cubemesh.experiments.analysis.groups import conditions, titled
from cubemesh.schema import Placement, ProgramSettings, RunSpec, TrainSteps

SPEC = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))


def test_default_settings_are_not_named(record_of):
    assert (
        titled("little-cnn against minibatch", [record_of(SPEC)]) == "little-cnn against minibatch"
    )


def test_settings_that_differ_from_the_default_are_named(record_of):
    program = ProgramSettings(
        framework="null", precision="bf16", data_location="device", script="step=1"
    )
    spec = replace(SPEC, program=program, placement=Placement(threads=3))
    expected = "null, bf16, data on device, simulated, 3 threads"
    assert conditions([record_of(spec)]) == expected
    assert titled("a", [record_of(spec)]) == f"a · {expected}"


def test_settings_that_records_do_not_share_are_not_named(record_of):
    other = replace(SPEC, program=ProgramSettings(precision="bf16"))
    assert conditions([record_of(SPEC), record_of(other)]) == ""
