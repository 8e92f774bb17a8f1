"""System checks: properties of a machine that distort measurements, each with its remedy.

Virtual machine, frequency governor, limits of control groups and affinity, size of /dev/shm, NUMA
balancing, and host memory, from the probe and the kernel's files; nothing is changed. Sources:
Documentation/admin-guide/pm/cpufreq.rst and sysctl/kernel.rst of the Linux kernel; NCCL's
troubleshooting page (shared memory).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from cubemesh.machines.advice import advice
from cubemesh.machines.cpu import CPUS
from cubemesh.machines.files import Tree
from cubemesh.schema import Machine
from cubemesh.units import format_bytes, format_number

SHM = "/dev/shm"
SHM_BYTES = 1 << 30
"""Least size of /dev/shm: NCCL's documentation asks for a gibibyte; Docker gives 64 MiB."""
FASTEST = "performance"
"""The governor that keeps the clock at its highest."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One property that was checked."""

    code: str
    """A kebab-case noun phrase such as `cpu-governor`."""
    problem: bool
    """Whether it distorts measurements or prevents some."""
    found: str
    """What was found, with figures."""
    remedy: str = ""
    """The command or change that mends a problem."""


def system_checks(machine: Machine, tree: Tree) -> list[Check]:
    """The checks of `machine`; `tree` has the kernel's files. What cannot be read has no check."""
    found = (
        _virtual_machine(machine),
        _governor(tree),
        _cpu_limit(machine),
        _memory_limit(machine),
        _host_memory(machine),
        _shared_memory(tree),
        _numa_balancing(machine, tree),
    )
    return [check for check in found if check is not None]


def _virtual_machine(machine: Machine) -> Check:
    name = machine.virtualization
    if name is None:
        return Check(code="virtual-machine", problem=False, found="no hypervisor")
    return Check(
        code="virtual-machine",
        problem=True,
        found=f"This is a virtual machine ({name}): other guests can slow it down, and clocks and "
        "energy counters are mostly hidden.",
        remedy="Measure on bare metal, or show the variation between processes: --set repeats=3.",
    )


def _governor(tree: Tree) -> Check | None:
    """None where the kernel does not control the clock, as in most virtual machines."""
    cpus = tree.numbered(CPUS, "cpu")
    read = (tree.text(f"{CPUS}/cpu{n}/cpufreq/scaling_governor") for n in cpus)
    governors = Counter(name for name in read if name)
    if not governors:
        return None
    others = {name: n for name, n in governors.items() if name != FASTEST}
    if not others:
        return Check(code="cpu-governor", problem=False, found=f"governor {FASTEST}")
    shown = ", ".join(f"{name} on {n}" for name, n in others.items())
    return Check(
        code="cpu-governor",
        problem=True,
        found=f"The CPU frequency governor is {shown} of {governors.total()} processors: the clock "
        "follows the load, and short steps run slower.",
        remedy=f"sudo cpupower frequency-set --governor {FASTEST}",
    )


def _cpu_limit(machine: Machine) -> Check:
    cpu, container = machine.cpu, machine.container
    logical = cpu.logical_cores or cpu.usable_cores
    if cpu.cgroup_cores is not None and cpu.cgroup_cores < logical:
        remedy = {
            "docker": "Raise --cpus of docker run.",
            "podman": "Raise --cpus of podman run.",
            "kubernetes": "Raise limits.cpu of the pod.",
            "slurm": "Raise --cpus-per-task of the job.",
        }.get(container or "", "Raise cpu.max of the control group (systemd: CPUQuota=).")
        return Check(
            code="cpu-limit",
            problem=True,
            found=f"The control group grants {format_number(cpu.cgroup_cores)} of {logical} "
            "processors; the kernel stops every thread when that time is used up.",
            remedy=remedy,
        )
    if cpu.affinity_cores is not None and cpu.affinity_cores < logical:
        return Check(
            code="cpu-limit",
            problem=True,
            found=f"The affinity mask allows {cpu.affinity_cores} of {logical} processors.",
            remedy="Start without taskset or numactl, or ask the scheduler for more processors.",
        )
    return Check(code="cpu-limit", problem=False, found=f"{logical} of {logical} processors")


def _memory_limit(machine: Machine) -> Check:
    memory = machine.memory
    limit, total = memory.cgroup_limit_bytes, memory.total_bytes
    if limit is None or total is None or limit >= total:
        return Check(code="memory-limit", problem=False, found="no memory limit")
    remedy = {
        "docker": "Raise --memory of docker run.",
        "podman": "Raise --memory of podman run.",
        "kubernetes": "Raise limits.memory of the pod.",
        "slurm": "Raise --mem of the job.",
    }.get(machine.container or "", "Raise memory.max of the control group (systemd: MemoryMax=).")
    return Check(
        code="memory-limit",
        problem=True,
        found=f"The control group grants {format_bytes(limit)} of {format_bytes(total)} of memory.",
        remedy=remedy,
    )


def _host_memory(machine: Machine) -> Check | None:
    if machine.host_to_gpu_memory is None:
        return None
    for warning in advice(machine):
        return Check(code="host-memory", problem=True, found=warning.cause, remedy=warning.remedy)
    times = format_number(machine.host_to_gpu_memory)
    return Check(code="host-memory", problem=False, found=f"{times} times the GPUs' memory")


def _shared_memory(tree: Tree) -> Check | None:
    try:
        status = os.statvfs(f"{tree.root}{SHM}")
    except OSError:
        return None
    size = status.f_frsize * status.f_blocks
    if size >= SHM_BYTES:
        return Check(code="shared-memory", problem=False, found=f"{SHM} of {format_bytes(size)}")
    return shared_memory_problem(size)


def shared_memory_problem(size_bytes: int) -> Check:
    """The problem of a /dev/shm of this size."""
    return Check(
        code="shared-memory",
        problem=True,
        found=f"{SHM} has {format_bytes(size_bytes)}; NCCL needs {format_bytes(SHM_BYTES)} for "
        "several GPUs of one host.",
        remedy=f"sudo mount -o remount,size=8G {SHM}, or --shm-size=8g of docker run",
    )


def _numa_balancing(machine: Machine, tree: Tree) -> Check | None:
    """None on a machine with one NUMA node, where it has no effect."""
    setting = tree.number("/proc/sys/kernel/numa_balancing")
    if setting is None or len(machine.cpu.numa_nodes) < 2:
        return None
    if setting == 0:
        return Check(code="numa-balancing", problem=False, found="off")
    return Check(
        code="numa-balancing",
        problem=True,
        found="Automatic NUMA balancing moves pages between nodes while steps run.",
        remedy="sudo sysctl kernel.numa_balancing=0",
    )
