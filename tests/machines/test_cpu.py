"""Processors of a laptop, a two-socket server and Arm machines, and the cores left to a process."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.machines.cpu import read_cpu, usable_cores
from cubemesh.machines.cpuinfo import read_cpuinfo
from cubemesh.schema import Cache, NumaNode


def cpu_of(tree):
    return read_cpu(tree, read_cpuinfo(tree))


def test_laptop(make_tree, laptop):
    tree = make_tree(laptop)
    cpu = cpu_of(tree)
    assert cpu.model == "11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz"
    assert cpu.vendor == "GenuineIntel"
    assert cpu.architecture == "x86_64"
    assert (cpu.sockets, cpu.physical_cores, cpu.logical_cores) == (1, 4, 8)
    assert (cpu.affinity_cores, cpu.cgroup_cores, cpu.usable_cores) == (8, None, 4)
    assert cpu.max_mhz == 4700.0
    assert cpu.instruction_sets == ("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni")
    assert cpu.caches == (
        Cache(level=1, kind="data", size_bytes=48 << 10, instances=4),
        Cache(level=1, kind="instruction", size_bytes=32 << 10, instances=4),
        Cache(level=2, kind="unified", size_bytes=1280 << 10, instances=4),
        Cache(level=3, kind="unified", size_bytes=12 << 20, instances=1),
    )
    assert tree.unknown == []


def test_two_sockets_with_numa(make_tree, epyc):
    tree = make_tree(epyc)
    cpu = cpu_of(tree)
    assert (cpu.sockets, cpu.physical_cores, cpu.logical_cores) == (2, 8, 16)
    assert {"avx512f", "avx512_vnni", "avx512_bf16"} <= set(cpu.instruction_sets)
    assert Cache(level=3, kind="unified", size_bytes=32 << 20, instances=2) in cpu.caches
    assert cpu.numa_nodes == (
        NumaNode(node=0, cpus=(0, 1, 2, 3, 8, 9, 10, 11), memory_bytes=32000000 << 10),
        NumaNode(node=1, cpus=(4, 5, 6, 7, 12, 13, 14, 15), memory_bytes=32000000 << 10),
    )
    assert [u.what for u in tree.unknown] == ["processor's highest clock"]


def test_arm_is_named_by_its_part_number(make_tree, arm):
    cpu = cpu_of(make_tree(arm()))
    assert (cpu.model, cpu.vendor, cpu.architecture) == ("Neoverse-V1", "ARM", "aarch64")
    assert cpu.instruction_sets == ("neon", "fp16", "dotprod", "bf16", "i8mm", "sve")
    assert (cpu.physical_cores, cpu.usable_cores) == (4, 4)


def test_an_unknown_arm_part_is_noted_with_its_number(make_tree, arm):
    tree = make_tree(arm("0xfff"))
    assert cpu_of(tree).model is None
    why = next(u.why for u in tree.unknown if u.what == "processor model")
    assert "implementer 0x41, part 0xfff" in why


def test_big_and_little_cores_give_both_names_and_common_instruction_sets(make_tree):
    little = "processor: 0\nFeatures: fp asimd\nCPU implementer: 0x41\nCPU part: 0xd05\n"
    big = "processor: 1\nFeatures: asimd bf16\nCPU implementer: 0x41\nCPU part: 0xd0b\n"
    info = read_cpuinfo(make_tree({"/proc/cpuinfo": f"{little}\n{big}\nHardware: BCM2712\n"}))
    assert info.model == "Cortex-A55 + Cortex-A76"
    assert info.instruction_sets == ("neon",)
    assert info.numbers() == (0, 1)


def test_sockets_and_cores_from_cpuinfo_alone(make_tree, epyc):
    cpu = cpu_of(make_tree({"/proc/cpuinfo": epyc["/proc/cpuinfo"]}))
    assert (cpu.sockets, cpu.physical_cores, cpu.logical_cores) == (2, 8, 16)


def test_affinity_to_both_threads_of_one_core_leaves_one_core(make_tree, laptop):
    laptop["/proc/self/status"] = "Cpus_allowed_list:\t1,5\n"
    cpu = cpu_of(make_tree(laptop))
    assert (cpu.affinity_cores, cpu.usable_cores) == (2, 1)


def test_affinity_to_offline_processors_does_not_count(make_tree, laptop):
    laptop["/proc/self/status"] = "Cpus_allowed_list:\t0-127\n"
    assert cpu_of(make_tree(laptop)).affinity_cores == 8


@pytest.mark.parametrize(("quota", "usable"), [(150000, 1), (399999, 3), (50000, 1), (900000, 4)])
def test_granted_time_leaves_its_whole_cores(make_tree, laptop, quota, usable):
    laptop["/sys/fs/cgroup/user.slice/cpu.max"] = f"{quota} 100000\n"
    cpu = cpu_of(make_tree(laptop))
    assert cpu.cgroup_cores == quota / 100000
    assert cpu.usable_cores == usable


def test_unknown_cores_count_every_logical_processor(make_tree):
    tree = make_tree({"/sys/devices/system/cpu/online": "0-5"})
    cpu = cpu_of(tree)
    assert (cpu.logical_cores, cpu.physical_cores, cpu.usable_cores) == (6, None, 6)
    assert {"physical cores", "processor sockets", "processor affinity"} <= {
        u.what for u in tree.unknown
    }


@given(
    st.sets(st.integers(0, 63), min_size=1),
    st.sets(st.integers(0, 63)) | st.none(),
    st.floats(0.01, 100) | st.none(),
    st.sampled_from([1, 2, 4]),
)
def test_usable_cores_never_exceed_any_limit(online, affinity, granted, threads):
    cores = {cpu: str(cpu // threads) for cpu in online}
    reach = None if affinity is None else affinity & online
    usable = usable_cores(online, cores, reach, granted)
    assert 1 <= usable <= len(set(cores.values()))
    assert granted is None or usable <= max(granted, 1)
    assert reach is None or usable <= max(len(reach), 1)


def test_nodes_without_most_of_the_memory_give_no_figure(make_tree, laptop):
    laptop["/sys/devices/system/node/node0/meminfo"] = "Node 0 MemTotal:  5000000 kB\n"
    tree = make_tree(laptop)
    assert cpu_of(tree).numa_nodes == (NumaNode(node=0, cpus=tuple(range(8))),)
    why = next(u.why for u in tree.unknown if u.what == "memory of each NUMA node")
    assert "4.77 GiB" in why
    assert "15.3 GiB" in why


def test_a_node_without_processors_is_listed(make_tree, laptop):
    laptop["/sys/devices/system/node/node1/cpulist"] = "\n"
    laptop["/sys/devices/system/node/node1/meminfo"] = "Node 1 MemTotal:  1000 kB\n"
    nodes = cpu_of(make_tree(laptop)).numa_nodes
    assert nodes[1] == NumaNode(node=1, cpus=(), memory_bytes=1000 << 10)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity calls")
def test_a_process_bound_to_one_processor_has_one_core():
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from cubemesh.machines import probe; c = probe().cpu;"
        "print(c.affinity_cores, c.usable_cores)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1"], done.stderr
