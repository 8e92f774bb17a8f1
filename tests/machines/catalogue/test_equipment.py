"""Memory, drives, power and price of systems: the DGX-1's figures, and what files may not have."""

import pytest

from cubemesh.errors import DataError
from cubemesh.machines.catalogue.system_file import read_system
from cubemesh.machines.catalogue.systems import load_system, system

OWN = """\
name = "own"
title = "Own"
sources = ["the order"]
[gpus]
device = "h100-pcie-80gb"
count = 2
[cpus]
count = 1
[pcie]
generation = 5
gpu_to_cpu = [0, 0]
[memory]
gb = 160
[[storage]]
use = "data"
drives = 2
gb = 3840
medium = "ssd"
interface = "nvme"
raid = 1
[power]
watts = 1200
[price]
usd = 1000
year = 2026
"""


def test_a_dgx1_with_v100():
    """DGX-1 V100 white paper [002], section 2.1."""
    found = load_system("dgx1-v100")
    assert found.memory_bytes == 512e9
    assert found.gpu_memory_bytes == 128e9
    assert found.gpu_memory_bandwidth_bytes_per_s == 7.2e12
    assert found.host_to_gpu_memory == 4
    assert found.gpus_per_port == 2
    assert found.power_watts == 3500
    boot, data = found.storage
    assert (boot.use, boot.drives, boot.drive_bytes) == ("boot", 1, 480e9)
    assert (data.drives, data.interface, data.raid, data.read_bytes_per_s) == (4, "sas", 0, 2e9)
    assert data.total_bytes == pytest.approx(7.68e12)


def test_a_cluster_has_the_equipment_of_its_systems():
    assert load_system("dgx1-v100-edr").memory_bytes == 512e9


def test_what_is_not_stated_is_missing():
    found = load_system("knl-7250")
    assert found.memory_bytes == 96e9
    assert (found.gpu_memory_bytes, found.host_to_gpu_memory, found.gpus_per_port) == (None,) * 3
    assert (found.storage, found.power_watts, found.equipment.price_usd) == ((), None, None)
    assert load_system("pcie-tree-4").host_to_gpu_memory is None


def test_an_own_system():
    found = read_system(OWN, "own.toml", system)
    assert found.host_to_gpu_memory == 1
    assert (found.equipment.price_usd, found.equipment.price_year) == (1000, 2026)
    assert found.storage[0].raid == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gb = 160", "gb = 0", "line 13, memory.gb: is 0"),
        ("gb = 160", "", "line 12, memory.gb: is missing"),
        ("gb = 160", "gb = 160\ntipe = 1", "line 14, memory.tipe: unknown field; nearest: type"),
        ('"data"', '"swap"', r"line 15, storage\[0\].use: is 'swap'; known: data, boot"),
        ("raid = 1", "raid = 7", r"storage\[0\].raid: is 7; known: 0, 1, 5, 6, 10"),
        ("drives = 2", "drives = 0", r"storage\[0\].drives: is 0"),
        ("[[storage]]", "[storage]", r"storage: is .* \[\[storage\]\]"),
        ('"nvme"', '"ide"', r"storage\[0\].interface: is 'ide'"),
        ("watts = 1200", "watts = -5", "power.watts: is -5"),
        ("year = 2026", "", "price.year: is missing"),
        ("year = 2026", "year = 1066", "price.year: is 1066"),
    ],
)
def test_what_does_not_fit_is_named(old, new, words):
    assert old in OWN
    with pytest.raises(DataError, match=words):
        read_system(OWN.replace(old, new), "own.toml", system)
