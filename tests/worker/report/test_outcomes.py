from dataclasses import replace

import pytest

from cubemesh.errors import BusyError, DataError, UsageError
from cubemesh.frameworks.contract.program import (
    Diverged,
    NotInstalled,
    OutOfMemory,
    ReplicasDiffer,
    Unsupported,
)
from cubemesh.networks import build
from cubemesh.networks.memory import forecast
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import (
    Ceiling,
    Forward,
    Placement,
    ProgramSettings,
    RunSpec,
    Status,
    TrainSteps,
)
from cubemesh.worker.report.outcomes import outcome_from_error

SPEC = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=512, optimizer="adam"))


def outcome(error, spec=SPEC, limit_bytes=None, is_out_of_memory=lambda error: False):
    return outcome_from_error(
        error, spec, limit_bytes=limit_bytes, is_out_of_memory=is_out_of_memory
    )


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def test_what_is_in_use_is_marked_for_the_runner():
    found = outcome(BusyError("in use"))
    assert (found.status, found.facts) == (Status.UNSUPPORTED, {"in_use": True})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unsupported("no nhwc"), Status.UNSUPPORTED),
        (UsageError("no such network"), Status.UNSUPPORTED),
        (Diverged("the loss became nan"), Status.DIVERGED),
        (DataError("data_batch_1 is truncated"), Status.CRASHED),
        (ReplicasDiffer("rank 1 has others"), Status.CRASHED),
    ],
)
def test_deliberate_errors_keep_their_message(error, status):
    found = outcome(error)
    assert (found.status, found.message, found.origin) == (status, str(error), "worker")
    assert not found.facts


def test_any_other_error_is_a_crash_with_its_traceback():
    found = outcome(raised(KeyError("weights")))
    assert found.status is Status.CRASHED
    assert "KeyError: 'weights'" in found.message
    assert "in raised" in found.facts["traceback"]
    assert outcome(raised(SystemExit(3))).status is Status.CRASHED


def test_a_missing_framework_is_not_installed_and_another_missing_module_is_a_crash():
    torch_spec = RunSpec(work=SPEC.work, program=ProgramSettings(framework="pytorch"))
    missing = outcome(ModuleNotFoundError("No module named 'torch'", name="torch"), torch_spec)
    assert missing.status is Status.NOT_INSTALLED
    assert "pip install 'cubemesh[torch]'" in missing.message
    package = outcome(NotInstalled("pip install 'cubemesh[images]'"), torch_spec)
    assert package.status is Status.NOT_INSTALLED
    other = outcome(ModuleNotFoundError("No module named 'triton'", name="triton"), torch_spec)
    assert other.status is Status.CRASHED


def test_out_of_memory_has_forecast_limit_and_the_batch_size_that_fits():
    limit = 100 << 20
    found = outcome(OutOfMemory("refused"), limit_bytes=limit)
    network = build("little-cnn")
    fits = found.facts["largest_batch_that_fits"]
    assert found.status is Status.OOM
    assert found.facts["forecast_bytes"] == forecast(network, 512, "fp32", "adam").total_bytes
    assert forecast(network, fits, "fp32", "adam").total_bytes <= limit
    assert forecast(network, fits + 1, "fp32", "adam").total_bytes > limit
    assert (found.facts["largest_batch_that_fits"], found.facts["limit_bytes"]) == (fits, 100 << 20)


def test_the_batch_size_that_fits_is_that_of_the_devices_that_divide_a_network():
    spec = replace(
        SPEC,
        placement=Placement(devices=2),
        program=ProgramSettings(sync="model-parallel"),
    )

    def needed(batch):
        at_batch = replace(spec, work=replace(spec.work, batch_per_device=batch))
        return strategy("model-parallel").memory(at_batch, build("little-cnn"), "cpu").total_bytes

    limit = needed(300) - 1
    facts = outcome(OutOfMemory("refused"), spec, limit).facts
    assert facts["forecast_bytes"] == needed(512)
    assert facts["largest_batch_that_fits"] == 299


def test_out_of_memory_when_no_batch_fits_or_the_forecast_is_below_the_limit():
    nothing = outcome(MemoryError(), limit_bytes=1 << 20)
    assert nothing.facts["largest_batch_that_fits"] == 0
    unexpected = outcome(MemoryError(), limit_bytes=1 << 40)
    assert "largest_batch_that_fits" not in unexpected.facts
    assert "largest_batch_that_fits" not in unexpected.facts
    unlimited = outcome(MemoryError())
    assert unlimited.status is Status.OOM
    assert "limit_bytes" not in unlimited.facts


def test_a_framework_recognizes_its_own_out_of_memory_errors():
    def knows(error):
        return "CUDA" in str(error)

    assert outcome(RuntimeError("CUDA"), is_out_of_memory=knows).status is Status.OOM
    assert outcome(RuntimeError("else"), is_out_of_memory=knows).status is Status.CRASHED


def test_a_forward_pass_has_a_memory_forecast_and_a_ceiling_has_none():
    forward = RunSpec(work=Forward(network="little-cnn", batch_per_device=512))
    needs = forecast(build("little-cnn"), 512, training=False).total_bytes
    assert outcome(MemoryError(), forward, 1 << 20).facts["forecast_bytes"] == needs
    ceiling = outcome(MemoryError(), RunSpec(work=Ceiling()), 1 << 20)
    assert ceiling.facts["limit_bytes"] == 1 << 20
