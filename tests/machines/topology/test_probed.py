"""From a probed machine to its graph."""

import subprocess
from dataclasses import replace
from itertools import combinations

import pytest

from cubemesh.errors import DataError
from cubemesh.machines import probe
from cubemesh.machines.topology import find_rings
from cubemesh.machines.topology.probed import topology_of
from cubemesh.machines.topology.smi_matrix import read_smi_matrix
from cubemesh.schema import Cpu, Gpu, GpuLink, Machine, Memory, Software


def machine(count: int, kind: str, links: int | None, capability: str = "9.0") -> Machine:
    return Machine(
        hostname="node7",
        cpu=Cpu(),
        memory=Memory(),
        gpus=tuple(
            Gpu(
                index=i,
                name="NVIDIA H200",
                uuid=f"GPU-{i}",
                compute_capability=capability,
                pcie_generation=5,
                pcie_width=16,
            )
            for i in range(count)
        ),
        gpu_links=tuple(
            GpuLink(first=a, second=b, kind=kind, links=links)
            for a, b in combinations(range(count), 2)
        ),
        software=Software(python="3.12", system="Linux"),
    )


def test_eight_h200_behind_switches():
    topology = topology_of(machine(8, "nvlink", 18))
    found = find_rings(topology)
    assert [len(found.rings), found.bandwidth_bytes_per_s] == [18, 450e9]
    assert {n.device for n in topology.gpus} == {"h200-sxm-141gb"}
    assert topology.links_of("gpu0", "pcie")[0].name == "PCIe 5 x16"
    assert not any("PCIe" in note for note in topology.notes)


def test_two_b200_have_faster_links():
    assert find_rings(topology_of(machine(2, "nvlink", 18, "10.0"))).bandwidth_bytes_per_s == 900e9


def test_pcie_alone():
    found = find_rings(topology_of(machine(4, "host-bridge", None)))
    assert (found.reach, len(found.rings)) == ("host-bridge", 1)


def test_one_gpu_has_a_graph_too():
    assert [n.name for n in topology_of(machine(1, "system", None)).gpus] == ["gpu0"]


def test_without_gpus_or_links_there_is_a_reason():
    with pytest.raises(DataError, match="node7 has 0 GPUs"):
        topology_of(machine(0, "system", None))
    with pytest.raises(DataError, match=r"GPU 0 .*GPU 1 .*node7"):
        topology_of(replace(machine(2, "system", None), gpu_links=()))
    with pytest.raises(DataError, match="kind 'tin-can'"):
        topology_of(machine(2, "tin-can", None))


def test_a_cube_mesh_has_two_processors_without_pcie_paths(dgx1_v100):
    """Pairs across the sockets that NVLink does not join say that they are; the others nothing."""
    joined = {
        (a.index, b.index): links[0].count
        for a, b in combinations(dgx1_v100.gpus, 2)
        if (
            links := [
                x for x in dgx1_v100.links_of(a.name, "nvlink") if b.name in (x.first, x.second)
            ]
        )
    }
    bare = machine(8, "system", None, "7.0")
    machine_of_two = replace(
        bare,
        gpu_links=tuple(
            replace(x, kind="nvlink", links=joined[x.first, x.second])
            if (x.first, x.second) in joined
            else x
            for x in bare.gpu_links
        ),
    )
    topology = topology_of(machine_of_two)
    assert len(topology.of_kind("cpu")) == 2
    assert len(topology.links_of("cpu0", "pcie")) == 4
    assert len(find_rings(topology).rings) == 6


@pytest.mark.gpu
def test_the_probe_and_nvidia_smi_agree_on_this_machine():
    own = probe()
    if len(own.gpus) < 2:
        pytest.skip("links need two GPUs, and there are fewer")
    text = subprocess.run(
        ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True
    ).stdout
    probed, reported = topology_of(own), read_smi_matrix(text)
    assert [n.name for n in probed.gpus] == [n.name for n in reported.gpus]
    counts = [
        {(x.first, x.second): x.count for x in t.links if x.kind == "nvlink"}
        for t in (probed, reported)
    ]
    assert counts[0] == counts[1]
    assert len(find_rings(probed).rings) == len(find_rings(reported).rings)
