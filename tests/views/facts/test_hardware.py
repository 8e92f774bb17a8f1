"""Facts of drives, adapters, errors, balance and power, of probed machines and known systems."""

import io

import pytest
from rich.console import Console

from cubemesh.machines.catalogue.systems import load_system
from cubemesh.schema import (
    Cpu,
    Drive,
    Gpu,
    GpuErrors,
    Machine,
    Memory,
    Mount,
    NetworkAdapter,
    NicLink,
    PowerReading,
    RaidArray,
    Software,
    XidCount,
)
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.views import terminal
from cubemesh.views.facts.equipment import equipment_facts, equipment_json
from cubemesh.views.facts.machine import machine_groups

GIB = 1 << 30
SERVER = Machine(
    hostname="dgx",
    cpu=Cpu(),
    memory=Memory(total_bytes=512 * GIB),
    gpus=tuple(
        Gpu(
            index=i,
            name="Tesla V100-SXM2-16GB",
            uuid=f"GPU-{i}",
            memory_bytes=16 * GIB,
            errors=GpuErrors(
                ecc_enabled=True,
                corrected=2,
                corrected_lifetime=1700,
                uncorrected=0,
                remapped_rows_corrected=1,
                remap_pending=True,
                xids=(XidCount(code=79, count=2),),
            )
            if i == 0
            else None,
        )
        for i in range(8)
    ),
    drives=(
        Drive(name="sda", size_bytes=1920383410176, rotational=False, interface="sas", model="PM"),
    ),
    raid_arrays=(
        RaidArray(
            name="md0",
            level="raid0",
            members=("sda", "sdb"),
            size_bytes=7501212672 << 10,
            chunk_bytes=512 << 10,
        ),
        RaidArray(
            name="md1",
            level="raid1",
            members=("nvme0n1p2",),
            members_expected=2,
            members_present=1,
            recovery="recovery 12.6%",
        ),
    ),
    mounts=(
        Mount(
            path="/raid",
            file_system="xfs",
            source="/dev/md0",
            device="md0",
            drives=("sda", "sdb"),
            size_bytes=7 << 40,
            free_bytes=1 << 40,
        ),
        Mount(path="/data", file_system="nfs4", source="nas:/x", server="nas", transport="rdma"),
    ),
    network_adapters=(
        *(
            NetworkAdapter(
                name=f"mlx5_{i}",
                kind="infiniband",
                driver="mlx5_core",
                rate_bits_per_s=100e9,
                up=True,
            )
            for i in range(4)
        ),
        NetworkAdapter(name="eno1", kind="ethernet", rate_bits_per_s=10e9, up=True),
    ),
    nic_links=tuple(
        NicLink(nic="mlx5_0", gpu=i, distance=word)
        for i, word in enumerate(("PIX", "PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"))
    ),
    power=(
        PowerReading(source="ipmitool dcmi", watts=2344.0),
        PowerReading(source="hwmon pmbus", watts=55.5, label="pin\x1b[31m"),
    ),
    software=Software(python="3.12", system="Linux"),
)


def facts(machine: Machine) -> dict[str, dict[str, str]]:
    return {group.title: dict(group.facts) for group in machine_groups(machine)}


def test_storage_of_a_probed_machine():
    found = facts(SERVER)["Storage"]
    assert found["/raid"] == "xfs on md0 (RAID 0) of sda, sdb, 7 TiB, 1 TiB free"
    assert found["/data"] == "nfs4 on nas:/x, server nas over rdma"
    assert found["sda"] == "SAS SSD, 1.92 TB, PM"
    assert "stripes of 512 KiB" in found["md0"]
    assert "degraded: 1 of 2 members" in found["md1"]


def test_network_errors_and_power():
    found = facts(SERVER)
    assert found["Network"]["mlx5_0"] == (
        "InfiniBand 100 Gb/s, up, driver mlx5_core; PIX to GPU 0, 1; PHB to GPU 2, 3; "
        "SYS to GPU 4, 5, 6, 7"
    )
    assert list(found["GPU errors"]) == ["GPU 0"]
    assert found["GPU errors"]["GPU 0"] == (
        "ECC on, 2 corrected (1,700 in its lifetime), 0 uncorrected, 1 remapped rows, a row is "
        "remapped at the next reset, Xid 79 × 2"
    )
    assert found["Power"]["whole machine"] == "2,340 W (ipmitool dcmi)"
    assert all("\x1b" not in name for name in found["Power"])


def test_datasheets_of_a_probed_machines_gpus():
    found = facts(SERVER)["GPU datasheets"]
    assert found["Tesla V100-SXM2-16GB"].startswith("80 SMs, 5,120 cores")
    assert found["GPU memory bandwidth"] == "8 × 900 GB/s = 7.2 TB/s"


def test_balance_of_a_probed_machine():
    found = facts(SERVER)["Balance"]
    assert found["host : GPU memory"].startswith("4 times, enough")
    assert found["GPUs per network adapter"].startswith("2 ")
    assert found["nearest network adapter"] == (
        "PIX to GPU 0, 1; PHB to GPU 2, 3; SYS to GPU 4, 5, 6, 7"
    )


def test_a_machine_of_an_older_version_has_no_such_groups():
    old = Machine(hostname="h", cpu=Cpu(), memory=Memory(), software=SERVER.software)
    assert facts(old).keys() == {"Processor", "Environment", "Software"}
    plain = to_plain(old)
    for added in ("drives", "raid_arrays", "mounts", "network_adapters", "nic_links", "power"):
        del plain[added]
    assert from_plain(Machine, plain) == old
    assert from_plain(Machine, to_plain(SERVER)) == SERVER
    assert SERVER.machine_id == from_plain(Machine, to_plain(SERVER)).machine_id


def test_the_terminal_has_them():
    console = Console(record=True, width=120, file=io.StringIO())
    terminal.print_machine(console, SERVER)
    text = console.export_text()
    assert "RAID 0" in text
    assert "Xid 79" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host memory", "512 GB"),
        ("GPU memory", "8 × 16 GB = 128 GB"),
        ("GPU memory bandwidth", "8 × 900 GB/s = 7.2 TB/s"),
        ("host : GPU memory", "4 times, enough: 2 times is normally enough, and a DGX-1 has 4"),
        ("data drives", "4 × 1.92 TB SAS SSD = 7.68 TB, RAID 0, 2 GB/s streaming read"),
        ("maximum power", "3,500 W, whole system"),
        ("price", "US$ 149,000 (2017)"),
        ("GPUs per network port", "2 for each network port"),
        ("port 0", "PIX to GPU 0, 1; PHB to GPU 2, 3; SYS to GPU 4, 5, 6, 7"),
    ],
)
def test_a_dgx1_of_the_catalogue(name, value):
    assert dict(equipment_facts(load_system("dgx1-v100")))[name] == value


def test_the_devices_of_a_system():
    each = dict(equipment_facts(load_system("dgx1-v100")))["each device"]
    assert each == (
        "80 SMs, 5,120 cores, 640 tensor cores, 1,312 to 1,530 MHz, compute capability 7.0, "
        "TDP 300 W"
    )
    data = equipment_json(load_system("dgx1-v100"))
    assert data["gpu_memory_bandwidth_bytes_per_s"] == 7.2e12
    assert data["device"]["cores"] == 5120
    assert equipment_json(load_system("pcie-tree-4"))["device"] is None
