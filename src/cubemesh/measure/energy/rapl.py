"""RAPL: energy of the CPU packages and their memory.

Linux shows Intel's and AMD's running average power limit (RAPL) counters under /sys/class/powercap:
a folder `intel-rapl:N` for each package (AMD's too), within it `intel-rapl:N:M` for its parts, each
with a `name`, the energy in microjoules and the value at which it wraps to zero
(Documentation/power/powercap/powercap.rst of the Linux kernel). The package's figure does not
include the memory's. Since 2020 only root may read them (CVE-2020-8694); virtual machines mostly
lack them. `missing` has the reason for every missing counter.

A counter that falls has wrapped, or has restarted (a suspended machine, a reloaded driver). Where a
wrap would mean more than `MAX_WATTS`, it has restarted: what was used since the reading before is
unknown, and this reading is NaN.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/class/powercap")
PACKAGE, DRAM = "cpu_package_joules", "dram_joules"
MAX_WATTS = 5000.0
"""More than any CPU package or its memory draws."""
READABLE = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"


@dataclass
class _Zone:
    """One counter, unwrapped."""

    file: Path
    range_uj: int
    last_uj: int
    last_s: float
    grown_uj: int = 0

    def joules(self, now_s: float) -> float:
        """Joules so far; NaN at the first reading after a restart."""
        now = _number(self.file)
        more = grown(self.last_uj, now, self.range_uj)
        restarted = now < self.last_uj and more > 1e6 * MAX_WATTS * (now_s - self.last_s)
        self.last_uj, self.last_s = now, now_s
        if restarted:
            return math.nan
        self.grown_uj += more
        return self.grown_uj / 1e6


class RaplReader:
    """Reads the joules of the packages and of their memory since its creation, summed over
    packages. `clock` is in seconds."""

    device = "host"

    def __init__(self, root: Path = ROOT, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.missing: dict[str, str] = {}
        self._zones: dict[str, list[_Zone]] = {}
        found: dict[str, list[Path]] = {PACKAGE: [], DRAM: []}
        for folder in _folders(root):
            part = _part(folder)
            if part:
                found[part].append(folder)
        for part, folders in found.items():
            self._open(part, folders, root)

    def read(self) -> dict[str, float]:
        """Joules so far, by name; a counter that cannot be read at the moment is left out, and one
        that has restarted is NaN."""
        found = {}
        for part, zones in self._zones.items():
            with suppress(OSError, ValueError):
                found[part] = sum([zone.joules(self._clock()) for zone in zones])
        return found

    def needs(self) -> None:
        """See `Meter.needs`."""

    def _open(self, part: str, folders: list[Path], root: Path) -> None:
        if not folders:
            self.missing[part] = _why_none(part, root)
            return
        try:
            self._zones[part] = [
                _Zone(
                    file=folder / "energy_uj",
                    range_uj=_number(folder / "max_energy_range_uj"),
                    last_uj=_number(folder / "energy_uj"),
                    last_s=self._clock(),
                )
                for folder in folders
            ]
        except PermissionError:
            self.missing[part] = f"only root may read {folders[0]}/energy_uj"
        except (OSError, ValueError) as error:
            self.missing[part] = f"{folders[0]} cannot be read: {error}"


def grown(before_uj: int, now_uj: int, range_uj: int) -> int:
    """Growth of a counter that wraps after `range_uj`, at most once between two readings."""
    if now_uj >= before_uj:
        return now_uj - before_uj
    return range_uj - before_uj + now_uj


def _folders(root: Path) -> Iterator[Path]:
    # intel-rapl-mmio may show the same package again: it is left out.
    if root.is_dir():
        yield from sorted(f for f in root.iterdir() if f.name.startswith("intel-rapl:"))


def _part(folder: Path) -> str | None:
    try:
        name = (folder / "name").read_text().strip()
    except OSError:
        return None
    if name.startswith("package"):
        return PACKAGE
    return DRAM if name == "dram" else None


def _why_none(part: str, root: Path) -> str:
    if not root.is_dir():
        return f"{root} does not exist: a virtual machine or container without RAPL counters"
    what = "package" if part == PACKAGE else "dram"
    return f"no RAPL counter named {what} in {root}"


def _number(file: Path) -> int:
    return int(file.read_text())
