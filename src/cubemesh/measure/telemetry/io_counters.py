"""Disk, network and memory counters of this machine, whether or not this run caused them.

From the kernel's files: /proc/diskstats (Documentation/admin-guide/iostats.rst; 512-byte sectors on
every disk), /proc/net/dev, /proc/meminfo. psutil reads the same files, and for disks a folder of
each partition too, at several times the cost. Whole disks count, and of stacked ones (mapper, RAID,
loop) only the lowest layer; the network counts without the loopback.
"""

from __future__ import annotations

import os
from pathlib import Path

_SECTOR_BYTES = 512
_STACKED = ("loop", "ram", "dm-", "md", "zram", "sr", "fd")


class IoCounterReader:
    """Reads the counters of disks, network and memory under `root` ("/" is this machine)."""

    device = "host"

    def __init__(self, root: Path = Path("/")) -> None:
        self.missing: dict[str, str] = {}
        self._disk_file, self._net_file = root / "proc/diskstats", root / "proc/net/dev"
        self._memory_file = root / "proc/meminfo"
        self._disks = _whole_disks(root / "sys/block")
        if not self._disks:
            self.missing["disk_read_bytes"] = f"no disk in {root / 'sys/block'}"
        for name, file in (
            ("disk_read_bytes", self._disk_file),
            ("network_receive_bytes", self._net_file),
            ("memory_used_bytes", self._memory_file),
        ):
            if not os.access(file, os.R_OK):
                self.missing[name] = f"{file} cannot be read"

    def read(self) -> dict[str, float]:
        """Bytes so far, and bytes of memory in use, by name."""
        found: dict[str, float] = {}
        if "disk_read_bytes" not in self.missing:
            found["disk_read_bytes"], found["disk_write_bytes"] = self._disk()
        if "network_receive_bytes" not in self.missing:
            received, sent = self._network()
            found |= {"network_receive_bytes": received, "network_transmit_bytes": sent}
        if "memory_used_bytes" not in self.missing:
            found["memory_used_bytes"] = self._memory()
        return found

    def needs(self) -> None:
        """See `Meter.needs`."""

    def _disk(self) -> tuple[float, float]:
        read = written = 0
        for line in self._disk_file.read_text().splitlines():
            fields = line.split(maxsplit=10)
            if fields[2] in self._disks:
                read += int(fields[5])
                written += int(fields[9])
        return float(_SECTOR_BYTES * read), float(_SECTOR_BYTES * written)

    def _network(self) -> tuple[float, float]:
        received = sent = 0
        for line in self._net_file.read_text().splitlines()[2:]:
            name, _, counts = line.partition(":")
            if name.strip() != "lo":
                fields = counts.split()
                received += int(fields[0])
                sent += int(fields[8])
        return float(received), float(sent)

    def _memory(self) -> float:
        known = {}
        with open(self._memory_file) as file:
            for line in file:
                name, _, size = line.partition(":")
                known[name] = size
                if name == "MemAvailable":
                    break
        return 1024.0 * (_kib(known["MemTotal"]) - _kib(known["MemAvailable"]))


def _kib(size: str) -> int:
    return int(size.split()[0])


def _whole_disks(folder: Path) -> frozenset[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return frozenset()
    return frozenset(n for n in names if not n.startswith(_STACKED))
