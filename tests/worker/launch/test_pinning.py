"""Which processors are chosen, on machines whose files are written here, and binding for real."""

import json
import os
import subprocess
import sys

import pytest

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema import Placement
from cubemesh.worker.launch.pinning import (
    Processor,
    choose,
    near_gpu,
    pin,
    read_processors,
    whole_cores,
)

# Two nodes of four cores with two hardware threads each, numbered as Linux numbers most servers:
# first threads 0-3 and 4-7, second threads 8-11 and 12-15.
SERVER = [Processor(number=n, node=n % 8 // 4, core=n % 8) for n in range(16)]
LAPTOP = [Processor(number=n, node=0, core=n) for n in range(4)]


@pytest.mark.parametrize(
    ("pinning", "threads", "chosen"),
    [
        ("compact", 2, (0, 8)),
        ("compact", 4, (0, 1, 8, 9)),
        ("compact", 8, (0, 1, 2, 3, 8, 9, 10, 11)),
        ("spread", 2, (0, 4)),
        ("spread", 4, (0, 1, 4, 5)),
        ("spread", 8, (0, 1, 2, 3, 4, 5, 6, 7)),
        ("spread", 10, (0, 1, 2, 3, 4, 5, 6, 7, 8, 12)),
        ("cores", 2, (0, 1)),
        ("cores", 6, (0, 1, 2, 3, 4, 5)),
        ("cores", 9, (0, 1, 2, 3, 4, 5, 6, 7, 8)),
        ("compact", 40, tuple(range(16))),
        ("none", 2, tuple(range(16))),
    ],
)
def test_compact_and_spread_on_a_server_with_two_nodes(pinning, threads, chosen):
    assert choose(SERVER, pinning, threads) == chosen


@pytest.mark.parametrize("pinning", ["compact", "spread", "cores"])
def test_compact_and_cores_are_alike_without_hardware_threads(pinning):
    assert choose(LAPTOP, pinning, 2) == (0, 1)


def test_topology_is_read_from_the_kernels_files(tmp_path):
    for cpu in range(4):
        topology = tmp_path / f"cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        name = "core_cpus_list" if cpu % 2 else "thread_siblings_list"
        (topology / name).write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    for node, cpus in ((0, "0,2"), (1, "1,3")):
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(f"{cpus}\n")
    assert whole_cores(range(4), tmp_path) == (0, 1)
    assert whole_cores({1, 2, 3}, tmp_path) == (2, 1), "node by node"
    assert read_processors({0, 1, 3}, tmp_path) == [
        Processor(number=0, node=0, core=0),
        Processor(number=1, node=1, core=1),
        Processor(number=3, node=1, core=1),
    ]


def test_a_processor_without_topology_is_a_core(tmp_path):
    assert read_processors({5, 2}, tmp_path) == [
        Processor(number=2, node=0, core=2),
        Processor(number=5, node=0, core=5),
    ]


def test_an_unknown_numa_node_is_refused():
    with pytest.raises(Unsupported, match="numa_node=4096"):
        pin(Placement(numa_node=4096), 1)


def test_without_pinning_nothing_is_bound():
    before = os.sched_getaffinity(0)
    assert pin(Placement(), 1) == ()
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def made(tmp_path):
    """Writes the kernel's files of a machine: (NUMA node, processors) of each GPU, hardware threads
    of each core; returns the folders and the GPUs' addresses."""

    def write(gpus, nodes, cores):
        sys, pci = tmp_path / "system", tmp_path / "pci"
        for node, cpus in nodes.items():
            (sys / f"node/node{node}").mkdir(parents=True)
            (sys / f"node/node{node}/cpulist").write_text(cpus)
        for core in cores:
            for cpu in core:
                (sys / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
                text = ",".join(map(str, core))
                (sys / f"cpu/cpu{cpu}/topology/core_cpus_list").write_text(text)
        online = ",".join(str(cpu) for core in cores for cpu in core)
        (sys / "cpu/online").write_text(f"{online}\n")
        addresses = [f"0000:{n:02x}:00.0" for n in range(len(gpus))]
        for address, node in zip(addresses, gpus, strict=True):
            (pci / address).mkdir(parents=True)
            (pci / address / "numa_node").write_text(f"{node}\n")
            (pci / address / "local_cpulist").write_text(nodes.get(node, online))
        return addresses, sys, pci

    return write


SERVER_CORES = [(n, n + 8) for n in range(8)]
SERVER_NODES = {0: "0-3,8-11", 1: "4-7,12-15"}


@pytest.mark.parametrize(
    ("gpus", "shares"),
    [
        ([0, 1], [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]),
        ([0, 0, 1, 1], [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]),
        ([1, 0, 1, 1], [(4, 12), (0, 1, 2, 3, 8, 9, 10, 11), (5, 13), (6, 14)]),
        ([0] * 4, [(0, 8), (1, 9), (2, 10), (3, 11)]),
        ([0] * 5, [()] * 5),  # no core for each
        ([0, -1], [(), ()]),  # the firmware names no node
    ],
)
def test_ranks_share_the_cores_near_their_gpus(made, gpus, shares):
    addresses, sys, pci = made(gpus, SERVER_NODES, SERVER_CORES)
    ranks = range(len(gpus))
    assert [near_gpu(addresses, n, range(16), sys, pci) for n in ranks] == shares
    assert near_gpu(addresses, 0, range(15), sys, pci) == (), "somebody has bound it"
    assert near_gpu((), 0, range(16), sys, pci) == (), "NVML names no address"
    assert near_gpu([*addresses, "0000:ff:00.0"], 0, range(16), sys, pci) == ()


BIND = """
import json, os, sys
from pathlib import Path
from cubemesh.frameworks.fork_launcher import launch
from cubemesh.worker.launch.pinning import near_gpu

def rank(folder):
    own = near_gpu(
        json.loads(sys.argv[2]), int(os.environ["LOCAL_RANK"]), os.sched_getaffinity(0),
        Path(folder, "system"), Path(folder, "pci"),
    )
    os.sched_setaffinity(0, own)
    Path(folder, os.environ["RANK"]).write_text(json.dumps(sorted(os.sched_getaffinity(0))))

print(launch(rank, sys.argv[1], 2))
"""


def test_forked_ranks_are_on_different_nodes(made, tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two processors")
    nodes = {0: str(cpus[0]), 1: ",".join(map(str, cpus[1:]))}
    addresses, _, _ = made([1, 0], nodes, [(cpu,) for cpu in cpus])
    words = [sys.executable, "-c", BIND, str(tmp_path), json.dumps(addresses)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "{}\n", done.stderr
    assert json.loads((tmp_path / "0").read_text()) == cpus[1:]
    assert json.loads((tmp_path / "1").read_text()) == cpus[:1]


def test_threads_started_afterwards_are_bound_too():
    code = """
import json, os, threading
from cubemesh.schema import Placement
from cubemesh.worker.launch.pinning import pin
bound = pin(Placement(pinning="compact"), 1)
seen = []
thread = threading.Thread(target=lambda: seen.append(sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
print(json.dumps([bound, seen[0]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    bound, seen = json.loads(done.stdout)
    assert bound == seen
    assert len(bound) == 1
