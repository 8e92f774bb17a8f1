"""Distance of network ports and GPUs in known systems."""

from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.topology.distances import nic_distances


def test_a_dgx1_has_a_port_for_every_two_gpus():
    found = nic_distances(load_system("dgx1-v100").topology)
    assert found["nic0"] == {"PIX": [0, 1], "PHB": [2, 3], "SYS": [4, 5, 6, 7]}
    assert [d["PIX"] for d in found.values()] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_port_at_the_processor():
    found = nic_distances(load_system("c4130-g").topology)
    assert found == {"nic0": {"PHB": [0, 1], "SYS": [2, 3]}}


def test_without_gpus_or_ports_there_is_no_distance():
    assert nic_distances(load_system("knl-7250").topology) == {}
    assert nic_distances(load_system("pcie-tree-4").topology) == {}


def test_host_bridges_of_one_socket_and_switches_below_switches(tmp_path):
    file = tmp_path / "topo.txt"
    file.write_text(
        "      GPU0  GPU1  NIC0\nGPU0   X    SYS   NODE\nGPU1  SYS    X    SYS\n"
        "NIC0  NODE  SYS   X\n"
    )
    assert nic_distances(load_system(str(file)).topology) == {"nic0": {"NODE": [0], "SYS": [1]}}
