from dataclasses import replace

import pytest

from cubemesh.measure.telemetry.gpu_set import gpu_of, visible
from cubemesh.runs.devices import gpus_of, lock_names
from cubemesh.schema import (
    Cpu,
    Gpu,
    Machine,
    Memory,
    Placement,
    ProgramSettings,
    RunSpec,
    Software,
    TrainSteps,
)
from cubemesh.schema.spec import Against

GPUS = tuple(Gpu(index=i, name="H200", uuid=f"GPU-{i}{i}-abcd") for i in range(3))
MACHINE = Machine(
    hostname="h",
    cpu=Cpu(),
    memory=Memory(),
    gpus=GPUS,
    software=Software(python="3", system="Linux"),
)


def spec(device, devices=1):
    work = TrainSteps(network="little-cnn", batch_per_device=1)
    return RunSpec(work=work, placement=Placement(device=device, devices=devices))


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-11", [1]),
        ("GPU-", []),
        ("0,9,1", [0]),
        ("", []),
        ("-1", []),
    ],
)
def test_gpus_are_numbered_as_cuda_numbers_them(chosen, indices):
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert [g.index for g in visible(MACHINE.gpus, environ)] == indices


def test_a_device_of_cuda_is_a_gpu():
    assert gpu_of("cuda:1", GPUS) is GPUS[1]
    assert gpu_of("cuda:3", GPUS) is gpu_of("cuda", GPUS) is gpu_of("cpu", GPUS) is None


def test_a_run_locks_the_devices_that_it_may_use():
    assert lock_names(spec("cpu"), MACHINE, {}) == ("cpu",)
    assert lock_names(spec("auto"), MACHINE, {}) == ("GPU-00-abcd",)
    assert lock_names(spec("cuda", 2), MACHINE, {"CUDA_VISIBLE_DEVICES": "2,1"}) == (
        "GPU-11-abcd",
        "GPU-22-abcd",
    )
    assert lock_names(spec("auto"), MACHINE, {"CUDA_VISIBLE_DEVICES": ""}) == ("cpu",)
    assert [g.index for g in gpus_of(spec("auto"), MACHINE, {})] == [0]


def test_a_run_without_a_device_locks_none():
    null = replace(spec("cpu"), program=ProgramSettings(framework="null"))
    assert lock_names(null, MACHINE, {}) == ()
    side = Against(work=null.work, placement=null.placement, program=spec("cpu").program)
    assert lock_names(replace(null, against=side), MACHINE, {}) == ("cpu",)
    two_cores = replace(MACHINE, cpu=Cpu(usable_cores=2))
    assert lock_names(spec("cuda", 4), two_cores, {}) == ()
    assert lock_names(spec("cpu", 3), two_cores, {}) == ()
    assert lock_names(spec("cpu", 2), two_cores, {}) == ("cpu",)
    shared = replace(
        spec("cpu", 3), placement=Placement(devices=3, oversubscribe=True, device="cpu")
    )
    assert lock_names(shared, two_cores, {}) == ("cpu",)
