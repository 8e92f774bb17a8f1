"""The rule of the DGX-1 V100 white paper [002]: twice the GPUs' memory is enough."""

import pytest

from cubemesh.machines import advice
from cubemesh.schema import WARNINGS, Cpu, Gpu, Machine, Memory, Software

GIB = 1 << 30


def machine(memory: Memory, *gpu_gib: int | None) -> Machine:
    gpus = tuple(
        Gpu(index=i, name="GPU", uuid=f"GPU-{i}", memory_bytes=None if g is None else g * GIB)
        for i, g in enumerate(gpu_gib)
    )
    software = Software(python="3.11.0", system="Linux")
    return Machine(hostname="host", cpu=Cpu(), memory=memory, gpus=gpus, software=software)


def total(gib: int, **more: int) -> Memory:
    return Memory(total_bytes=gib * GIB, **{k: v * GIB for k, v in more.items()})


@pytest.mark.parametrize(
    ("memory", "gpus"),
    [
        (total(512), (16,) * 8),  # a DGX-1
        (total(256), (16,) * 8),  # exactly twice
        (total(31, present_bytes=256), (16,) * 8),  # will grow to twice
        (total(512, cgroup_limit_bytes=300), (16,) * 8),
        (total(8), ()),
        (total(8), (None,)),
        (Memory(), (16,)),
    ],
)
def test_enough_or_unknown_memory_gives_no_warning(memory, gpus):
    assert advice(machine(memory, *gpus)) == ()


def test_less_than_twice_gives_a_warning_with_its_figures():
    (warning,) = advice(machine(total(255), *(16,) * 8))
    assert warning.code == "low-host-memory"
    assert warning.code in WARNINGS
    assert "255 GiB" in warning.cause
    assert "128 GiB" in warning.cause
    assert "1.99 times" in warning.cause
    assert "256 GiB" in warning.remedy
    assert "limit" not in warning.remedy


def test_the_control_groups_limit_counts_and_can_be_raised():
    (warning,) = advice(machine(total(512, cgroup_limit_bytes=64), 64, 64))
    assert "control group" in warning.cause
    assert "64 GiB" in warning.cause
    assert "0.5 times" in warning.cause
    assert "256 GiB" in warning.remedy
    assert "limit" in warning.remedy


def test_memory_that_may_be_added_counts():
    (warning,) = advice(machine(total(31, present_bytes=200), 141))
    assert "200 GiB" in warning.cause
    assert "control group" not in warning.cause
