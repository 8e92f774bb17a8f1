from pathlib import Path

from cubemesh.measure.telemetry.io_counters import IoCounterReader


def machine(root: Path) -> Path:
    for folder in ("proc/net", "sys/block/nvme0n1", "sys/block/loop0", "sys/block/dm-0"):
        (root / folder).mkdir(parents=True)
    (root / "proc/diskstats").write_text(
        " 259 0 nvme0n1 10 0 1000 5 20 0 4000 6 0 0 0\n"
        " 259 1 nvme0n1p1 10 0 900 5 20 0 3000 6 0 0 0\n"
        " 253 0 dm-0 10 0 900 5 20 0 3000 6 0 0 0\n"
        "   7 0 loop0 1 0 50 0 0 0 0 0 0 0 0\n"
    )
    (root / "proc/net/dev").write_text(
        "Inter-|   Receive                            |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n"
        "    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
        "  eth0:7000 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0\n"
        "   ib0: 500 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n"
    )
    (root / "proc/meminfo").write_text(
        "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\nBuffers: 1 kB\n"
    )
    return root


def test_whole_disks_networks_without_loopback_and_used_memory(tmp_path: Path) -> None:
    reader = IoCounterReader(machine(tmp_path))
    assert reader.missing == {}
    assert reader.read() == {
        "disk_read_bytes": 512_000.0,
        "disk_write_bytes": 2_048_000.0,
        "network_receive_bytes": 7500.0,
        "network_transmit_bytes": 320.0,
        "memory_used_bytes": 600 * 1024.0,
    }


def test_unreadable_counters_have_reasons(tmp_path: Path) -> None:
    reader = IoCounterReader(tmp_path)
    assert reader.read() == {}
    assert set(reader.missing) == {"disk_read_bytes", "network_receive_bytes", "memory_used_bytes"}


def test_this_machine(tmp_path: Path) -> None:
    values = IoCounterReader().read()
    assert values["memory_used_bytes"] > 1e6
    assert values["network_receive_bytes"] >= 0
