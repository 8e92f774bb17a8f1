"""Network adapters, and their distance to GPUs in the words of nvidia-smi."""

import pytest

from cubemesh.machines.hardware.network import read_adapters
from cubemesh.machines.hardware.pci import address_in, distance, sysfs_address
from cubemesh.schema import Gpu

ROOT_A, ROOT_B, ROOT_C = (
    "/sys/devices/pci0000:3a",
    "/sys/devices/pci0000:5d",
    "/sys/devices/pci0000:ae",
)
SWITCH = f"{ROOT_A}/0000:3a:00.0/0000:3b:00.0"
PLACES = {
    "0000:3d:00.0": f"{SWITCH}/0000:3c:04.0/0000:3d:00.0",
    "0000:3e:00.0": f"{SWITCH}/0000:3c:08.0/0000:3e:00.0",
    "0000:41:00.0": f"{SWITCH}/0000:3c:0c.0/0000:3f:00.0/0000:40:00.0/0000:41:00.0",
    "0000:44:00.0": f"{ROOT_A}/0000:3a:02.0/0000:44:00.0",
    "0000:5e:00.0": f"{ROOT_B}/0000:5d:00.0/0000:5e:00.0",
    "0000:af:00.0": f"{ROOT_C}/0000:ae:00.0/0000:af:00.0",
}
NODES = {"0000:5e:00.0": 0, "0000:af:00.0": 1}


def two_sockets(make_tree, link):
    """A switch below a root port with a switch below it, two more root complexes, two nodes."""
    files = {f"{PLACES[a]}/numa_node": f"{NODES.get(a, 0)}\n" for a in PLACES}
    files |= {f"/sys/devices/system/node/node{i}/cpulist": "0\n" for i in (0, 1)}
    tree = make_tree(files)
    for address, place in PLACES.items():
        link(f"/sys/bus/pci/devices/{address}", place)
    return tree


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ("0000:3e:00.0", "PIX"),
        ("0000:41:00.0", "PXB"),
        ("0000:44:00.0", "PHB"),
        ("0000:5e:00.0", "NODE"),
        ("0000:af:00.0", "SYS"),
        ("0000:99:00.0", None),
    ],
)
def test_distances(make_tree, link, other, word):
    tree = two_sockets(make_tree, link)
    assert distance(tree, "0000:3d:00.0", other) == word
    assert distance(tree, other, "0000:3d:00.0") == word


def test_without_numa_nodes_other_host_bridges_are_near(make_tree, link):
    tree = make_tree({"/sys/devices/system/node/node0/cpulist": "0\n"})
    for address in ("0000:3d:00.0", "0000:af:00.0"):
        link(f"/sys/bus/pci/devices/{address}", PLACES[address])
    assert distance(tree, "0000:3d:00.0", "0000:af:00.0") == "NODE"


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:00:02.0", "00010000:00:02.0"),
        ("FFFFFFFF:FF:FF.0", None),
        ("", None),
    ],
)
def test_addresses_of_nvml(bus_id, address):
    assert sysfs_address(bus_id) == address


def test_the_last_address_of_a_path_counts():
    assert address_in(f"{PLACES['0000:5e:00.0']}/virtio0/net/eth0") == "0000:5e:00.0"
    assert address_in("/sys/devices/virtual/net/lo") is None
    assert address_in(None) is None


def infiniband(make_tree, link):
    """An EDR adapter with its IP interface, one of two ports, an Ethernet port that is down, and a
    bridge without a device."""
    tree = two_sockets(make_tree, link)
    port = "/sys/class/infiniband/mlx5_10/ports/1"
    make_tree(
        {
            f"{port}/rate": "100 Gb/sec (4X EDR)\n",
            f"{port}/state": "4: ACTIVE\n",
            f"{port}/link_layer": "InfiniBand\n",
            "/sys/class/infiniband/mlx5_2/ports/1/state": "1: DOWN\n",
            "/sys/class/infiniband/mlx5_2/ports/1/rate": "10 Gb/sec (4X SDR)\n",
            "/sys/class/net/ib0/type": "32\n",
            "/sys/class/net/ib0/operstate": "up\n",
            "/sys/class/net/eno1/type": "1\n",
            "/sys/class/net/eno1/speed": "-1\n",
            "/sys/class/net/eno1/operstate": "down\n",
            "/sys/class/net/br0/operstate": "up\n",
        }
    )
    link("/sys/class/infiniband/mlx5_10/device", PLACES["0000:3e:00.0"])
    link("/sys/class/infiniband/mlx5_2/device", PLACES["0000:af:00.0"])
    link("/sys/class/net/ib0/device", PLACES["0000:3e:00.0"])
    link("/sys/class/net/eno1/device", PLACES["0000:44:00.0"])
    link(f"{PLACES['0000:3e:00.0']}/driver", "/sys/bus/pci/drivers/mlx5_core")
    return tree


def test_adapters_with_driver_rate_and_distance(make_tree, link):
    gpus = [Gpu(index=i, name="V100", uuid=f"G{i}", pci_address=a) for i, a in enumerate(PLACES)]
    tree = infiniband(make_tree, link)
    found = read_adapters(tree, [gpus[0], gpus[5]])
    ethernet, down, edr = found.adapters
    assert (edr.name, edr.interfaces, edr.kind) == ("mlx5_10", ("ib0",), "infiniband")
    assert (edr.driver, edr.rate_bits_per_s, edr.up) == ("mlx5_core", 100e9, True)
    assert (edr.pci_address, edr.numa_node) == ("0000:3e:00.0", 0)
    assert (ethernet.name, ethernet.kind, ethernet.up) == ("eno1", "ethernet", False)
    assert (ethernet.rate_bits_per_s, down.rate_bits_per_s, down.up) == (None, None, False)
    words = {(x.nic, x.gpu): x.distance for x in found.links}
    assert (words["mlx5_10", 0], words["mlx5_10", 5]) == ("PIX", "SYS")
    assert (words["eno1", 0], words["mlx5_2", 0]) == ("PHB", "SYS")
    assert tree.unknown == []


def test_a_gpu_of_unknown_place_is_noted(make_tree, link):
    tree = infiniband(make_tree, link)
    found = read_adapters(tree, [Gpu(index=0, name="V100", uuid="G")])
    assert found.links == ()
    assert len(tree.unknown) == 3


def test_damaged_files_and_links_are_not_an_error(make_tree, tmp_path):
    tree = make_tree(
        {
            "/sys/class/net/eth0/device/vendor": "\x00",
            "/sys/class/net/eth0/speed": "fast",
            "/sys/class/net/eth0/type": "9" * 50,
            "/sys/class/infiniband/mlx5_0/ports/1/rate": "1.2.3 Gb/sec",
            "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            "/sys/class/infiniband/mlx5_0/ports/x/rate": "",
        }
    )
    (tmp_path / "sys/class/net/out").mkdir()
    (tmp_path / "sys/class/net/out/device").symlink_to("/")
    (tmp_path / "sys/class/net/self").mkdir()
    (tmp_path / "sys/class/net/self/device").symlink_to("device")
    found = read_adapters(tree)
    assert {a.name for a in found.adapters} == {"mlx5_0", "eth0", "out", "self"}
    assert all(a.rate_bits_per_s is None and a.pci_address is None for a in found.adapters)
