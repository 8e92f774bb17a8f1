"""Checks of a machine from copies of the kernel's files."""

from dataclasses import replace

import pytest

from cubemesh.machines.probe import probe
from cubemesh.machines.system_checks import Check, shared_memory_problem, system_checks
from cubemesh.schema import Gpu

GOVERNOR = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"


@pytest.fixture
def checked(make_tree, monkeypatch):
    """The checks of a machine with these files, by code; `changes` are made to its description."""

    def check(*files, **changes) -> dict[str, Check]:
        tree = make_tree(*files)
        machine = probe(tree.root)
        for name, value in changes.items():
            part = getattr(machine, name)
            new = replace(part, **value) if isinstance(value, dict) else value
            machine = replace(machine, **{name: new})
        return {c.code: c for c in system_checks(machine, tree)}

    return check


def problems(checks: dict[str, Check]) -> set[str]:
    return {code for code, check in checks.items() if check.problem}


def test_a_laptop_has_no_problem(checked, laptop):
    found = checked(laptop, container=None)
    assert problems(found) == set()
    assert {"virtual-machine", "cpu-limit", "memory-limit"} <= set(found)
    assert "cpu-governor" not in found, "the kernel's files do not name one"


def test_the_governor_counts_the_processors_that_are_not_at_full_clock(checked, laptop):
    files = {GOVERNOR.format(n): "powersave\n" if n < 6 else "performance\n" for n in range(8)}
    check = checked(laptop, files)["cpu-governor"]
    assert check.problem
    assert "powersave on 6 of 8" in check.found
    assert "cpupower" in check.remedy
    fast = {GOVERNOR.format(n): "performance\n" for n in range(8)}
    assert not checked(laptop, fast)["cpu-governor"].problem


@pytest.mark.parametrize(
    ("container", "remedy"), [("docker", "--cpus"), ("slurm", "--cpus-per-task"), (None, "cpu.max")]
)
def test_a_limit_of_the_control_group(checked, laptop, container, remedy):
    files = {"/sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n"}
    check = checked(laptop, files, container=container)["cpu-limit"]
    assert check.problem
    assert "1.5 of 8" in check.found
    assert remedy in check.remedy


def test_an_affinity_mask(checked, laptop):
    files = {"/proc/self/status": "Cpus_allowed_list:\t0-1\n"}
    check = checked(laptop, files)["cpu-limit"]
    assert check.problem
    assert "2 of 8" in check.found


def test_a_memory_limit(checked, laptop):
    files = {"/sys/fs/cgroup/user.slice/memory.max": f"{4 << 30}\n"}
    check = checked(laptop, files, container="docker")["memory-limit"]
    assert check.problem
    assert "4 GiB" in check.found
    assert "--memory" in check.remedy


def test_a_virtual_machine(checked, laptop):
    check = checked(laptop, virtualization="KVM")["virtual-machine"]
    assert check.problem
    assert "KVM" in check.found


def test_numa_balancing_matters_on_several_nodes_only(checked, laptop, epyc):
    on = {"/proc/sys/kernel/numa_balancing": "1\n"}
    assert "numa-balancing" not in checked(laptop, on)
    assert checked(epyc, on)["numa-balancing"].problem


def test_little_host_memory_for_its_gpus(checked, laptop):
    gpu = Gpu(index=0, name="GPU", uuid="GPU-0", memory_bytes=80 << 30)
    assert checked(laptop, gpus=(gpu,))["host-memory"].problem
    small = replace(gpu, memory_bytes=1 << 30)
    assert not checked(laptop, gpus=(small,))["host-memory"].problem


def test_shared_memory(checked, laptop):
    assert "shared-memory" not in checked(laptop), "there is no /dev/shm"
    assert "64 MiB" in shared_memory_problem(64 << 20).found
