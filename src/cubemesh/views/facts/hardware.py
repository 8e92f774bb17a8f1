"""Facts of a machine's storage, network adapters, GPU errors, balance and power, as text.

Balance: host memory as a multiple of GPU memory (DGX-1 V100 white paper [002], section 2.1: four
times, twice is enough), GPUs for each network adapter, and the nearest adapter of each GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cubemesh.machines.advice import ENOUGH
from cubemesh.machines.hardware.pci import DISTANCES
from cubemesh.schema import (
    Drive,
    Gpu,
    GpuErrors,
    Machine,
    Mount,
    NetworkAdapter,
    RaidArray,
)
from cubemesh.units import format_bytes, format_number
from cubemesh.untrusted import clean

Facts = tuple[tuple[str, str], ...]
INTERFACES = {"nvme": "NVMe", "sas": "SAS", "sata": "SATA", "usb": "USB", "mmc": "MMC"}
_KINDS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}


def decimal_bytes(size: float) -> str:
    """Sizes as makers state them, in powers of 1,000: `480 GB`, `7.68 TB`."""
    if size >= 1e12:
        return f"{format_number(size / 1e12)} TB"
    return f"{format_number(size / 1e9)} GB"


def storage_facts(machine: Machine) -> Facts:
    """File systems, then drives and arrays."""
    arrays = {array.name: array for array in machine.raid_arrays}
    facts = [(mount.path, _mount(mount, arrays)) for mount in machine.mounts]
    facts += [(array.name, _array(array)) for array in machine.raid_arrays]
    facts += [(drive.name, _drive(drive)) for drive in machine.drives]
    return tuple((clean(name), clean(value)) for name, value in facts)


def _mount(mount: Mount, arrays: Mapping[str, RaidArray]) -> str:
    array = arrays.get(mount.device or "")
    on = mount.device or (mount.source if mount.source != mount.file_system else "")
    if array is not None and array.level:
        on += f" ({_level(array.level)})"
    if mount.drives and mount.drives != (mount.device,):
        on += f" of {', '.join(mount.drives)}"
    words = [mount.file_system + (f" on {on}" if on else "")]
    if mount.server:
        by = f" over {mount.transport}" if mount.transport else ""
        words.append(f"server {mount.server}{by}")
    if mount.size_bytes is not None and mount.free_bytes is not None:
        words.append(f"{format_bytes(mount.size_bytes)}, {format_bytes(mount.free_bytes)} free")
    if mount.read_only:
        words.append("read-only")
    return ", ".join(words)


def _level(level: str) -> str:
    """`RAID 0` of `raid0`."""
    return level.replace("raid", "RAID ") if level.startswith("raid") else level


def _array(array: RaidArray) -> str:
    words = [_level(array.level or "array") + (f" of {', '.join(array.members)}")]
    if array.size_bytes:
        words.append(format_bytes(array.size_bytes))
    if array.chunk_bytes:
        words.append(f"stripes of {format_bytes(array.chunk_bytes)}")
    if not array.active:
        words.append("inactive")
    if array.members_expected != array.members_present:
        words.append(f"degraded: {array.members_present} of {array.members_expected} members")
    if array.failed:
        words.append(f"failed: {', '.join(array.failed)}")
    if array.recovery:
        words.append(array.recovery)
    return ", ".join(words)


def _drive(drive: Drive) -> str:
    medium = {True: "disk", False: "SSD", None: "drive"}[drive.rotational]
    interface = INTERFACES.get(drive.interface or "", drive.interface or "")
    if drive.interface == "virtio":  # whose host decides what it is
        medium = "drive"
    words = [f"{interface} {medium}".strip()]
    if drive.size_bytes:
        words.append(decimal_bytes(drive.size_bytes))
    if drive.model:
        words.append(drive.model)
    return ", ".join(words)


def network_facts(machine: Machine) -> Facts:
    """Each adapter with its link, driver, and distance to each GPU."""
    distances: dict[str, dict[str, list[int]]] = {}
    for link in machine.nic_links:
        distances.setdefault(link.nic, {}).setdefault(link.distance, []).append(link.gpu)
    return tuple(
        (clean(adapter.name), clean(_adapter(adapter, distances.get(adapter.name, {}))))
        for adapter in machine.network_adapters
    )


def _adapter(adapter: NetworkAdapter, distances: Mapping[str, list[int]]) -> str:
    words = [_KINDS.get(adapter.kind or "", adapter.kind or "network")]
    if adapter.rate_bits_per_s:
        words[0] += f" {format_number(adapter.rate_bits_per_s / 1e9)} Gb/s"
    if adapter.up is not None:
        words.append("up" if adapter.up else "down")
    if adapter.driver:
        words.append(f"driver {adapter.driver}")
    others = [name for name in adapter.interfaces if name != adapter.name]
    if others:
        words.append(f"interface {', '.join(others)}")
    if adapter.numa_node is not None:
        words.append(f"NUMA node {adapter.numa_node}")
    text = ", ".join(words)
    return f"{text}; {distance_text(distances)}" if distances else text


def distance_text(distances: Mapping[str, Iterable[int]]) -> str:
    """`PIX to GPU 0, 1; SYS to GPU 2, 3`, the nearest first."""
    return "; ".join(
        f"{word} to GPU {', '.join(map(str, distances[word]))}"
        for word in sorted(distances, key=DISTANCES.index)
    )


def gpu_error_facts(machine: Machine) -> Facts:
    """The counters of each GPU that reports any."""
    return tuple((f"GPU {gpu.index}", _errors(gpu.errors)) for gpu in _reporting(machine.gpus))


def _reporting(gpus: Iterable[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if gpu.errors is not None]


def _errors(errors: GpuErrors | None) -> str:
    if errors is None:
        return ""
    words = []
    if errors.ecc_enabled is not None:
        words.append(f"ECC {'on' if errors.ecc_enabled else 'off'}")
    for name, now, ever in (
        ("corrected", errors.corrected, errors.corrected_lifetime),
        ("uncorrected", errors.uncorrected, errors.uncorrected_lifetime),
    ):
        if now is not None:
            lifetime = "" if ever is None else f" ({ever:,} in its lifetime)"
            words.append(f"{now:,} {name}{lifetime}")
    if errors.remapped_rows_corrected is not None:
        rows = errors.remapped_rows_corrected + (errors.remapped_rows_uncorrected or 0)
        words.append(f"{rows:,} remapped rows")
    if errors.remap_pending:
        words.append("a row is remapped at the next reset")
    if errors.remap_failed:
        words.append("remapping failed")
    if errors.retired_pages:
        words.append(f"{errors.retired_pages:,} retired pages")
    words += [f"Xid {xid.code} × {xid.count:,}" for xid in errors.xids]
    return ", ".join(words)


def balance_facts(machine: Machine) -> Facts:
    """Host memory for GPU memory, and network adapters for GPUs; empty without GPUs."""
    facts = []
    if machine.host_to_gpu_memory is not None:
        facts.append(("host : GPU memory", memory_balance(machine.host_to_gpu_memory)))
    if machine.gpus_per_adapter is not None:
        text = f"{format_number(machine.gpus_per_adapter)} for each of the fastest adapters"
        facts.append(("GPUs per network adapter", text))
    nearest = {
        gpu.index: min(
            (link.distance for link in machine.nic_links if link.gpu == gpu.index),
            key=DISTANCES.index,
            default="",
        )
        for gpu in machine.gpus
    }
    by_word: dict[str, list[int]] = {}
    for index, word in nearest.items():
        if word:
            by_word.setdefault(word, []).append(index)
    if by_word:
        facts.append(("nearest network adapter", distance_text(by_word)))
    return tuple(facts)


def memory_balance(times: float) -> str:
    """`4 times, enough: 2 times is normally enough, and a DGX-1 has 4`."""
    verdict = "enough" if times >= ENOUGH else "less than enough"
    enough = format_number(ENOUGH)
    return (
        f"{format_number(times)} times, {verdict}: {enough} times is normally enough, and a DGX-1 "
        "has 4"
    )


def power_facts(machine: Machine) -> Facts:
    """The readings of the probe."""
    return tuple(
        (clean(one.label or "whole machine"), f"{format_number(one.watts)} W ({clean(one.source)})")
        for one in machine.power
    )
