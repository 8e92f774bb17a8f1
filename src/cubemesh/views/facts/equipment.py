"""Facts of a system of the catalogue: device, memory, drives, power, price and balance.

Balance as of a probed machine (hardware.py): host memory as a multiple of GPU memory, GPUs for each
network port, and the PCIe distance of each port to each GPU.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cubemesh.machines.catalogue.datasheet import Datasheet
from cubemesh.machines.catalogue.equipment import DriveGroup
from cubemesh.machines.catalogue.names import find
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.topology.distances import nic_distances
from cubemesh.schema import Machine
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_number, format_quantity
from cubemesh.untrusted import clean
from cubemesh.views.facts.hardware import (
    INTERFACES,
    Facts,
    decimal_bytes,
    distance_text,
    memory_balance,
)


def equipment_facts(system: System) -> Facts:
    """Devices, memory, drives, power, price and balance of a system of the catalogue."""
    facts = [*_device_facts(system), *_memory_facts(system)]
    for group in system.storage:
        facts.append((f"{group.use} drives", _drives(group)))
    equipment = system.equipment
    if equipment.power_watts is not None:
        watts = format_number(equipment.power_watts, 4)
        facts.append(("maximum power", f"{watts} W, whole system"))
    if equipment.cooling:
        facts.append(("cooling", equipment.cooling))
    if equipment.price_usd is not None:
        facts.append(("price", f"US$ {equipment.price_usd:,.0f} ({equipment.price_year})"))
    if system.gpus_per_port is not None:
        text = f"{format_number(system.gpus_per_port)} for each network port"
        facts.append(("GPUs per network port", text))
    ports = nic_distances(system.topology)
    for name, distances in ports.items():
        facts.append((f"port {name.removeprefix('nic')}", distance_text(distances)))
    return tuple(facts)


def equipment_json(system: System) -> dict[str, Any]:
    """The same as data; null where no source states it."""
    sheet = system.sheet
    price = None if sheet is None or sheet.price is None else to_plain(sheet.price)
    device = None
    if sheet is not None:
        device = {
            "multiprocessors": sheet.multiprocessors,
            "cores": sheet.cores,
            "tensor_cores": sheet.tensor_cores,
            "clock_hz": sheet.clock_hz,
            "boost_clock_hz": sheet.boost_clock_hz,
            "compute_capability": sheet.compute_capability,
            "memory_bytes": sheet.memory_bytes,
            "memory_bandwidth_bytes_per_s": sheet.memory_bandwidth_bytes_per_s,
            "tdp_watts": sheet.tdp_watts,
            "price": price,
        }
    return {
        "device": device,
        **to_plain(system.equipment),
        "gpu_memory_bytes": system.gpu_memory_bytes,
        "gpu_memory_bandwidth_bytes_per_s": system.gpu_memory_bandwidth_bytes_per_s,
        "host_to_gpu_memory": system.host_to_gpu_memory,
        "gpus_per_port": system.gpus_per_port,
        "nic_distances": nic_distances(system.topology),
    }


def datasheet_facts(machine: Machine) -> Facts:
    """What the catalogue has of a probed machine's GPUs, and their memory bandwidth together."""
    counts = Counter(gpu.name for gpu in machine.gpus)
    sheets = {name: sheet for name in counts if (sheet := find(name)) is not None}
    facts = [(clean(name), device_text(sheet)) for name, sheet in sheets.items()]
    rates = [sheet.memory_bandwidth_bytes_per_s for sheet in sheets.values()]
    if len(counts) == 1 and rates and rates[0] is not None:
        facts.append(("GPU memory bandwidth", _bandwidth(len(machine.gpus), rates[0])))
    return tuple(fact for fact in facts if fact[1])


def _bandwidth(gpus: int, each: float) -> str:
    """`8 × 900 GB/s = 7.2 TB/s`."""
    one = format_quantity(each, "B/s")
    return f"{gpus} × {one} = {format_quantity(gpus * each, 'B/s')}" if gpus > 1 else one


def _device_facts(system: System) -> list[tuple[str, str]]:
    text = "" if system.sheet is None else device_text(system.sheet)
    return [("each device", text)] if text else []


def device_text(sheet: Datasheet) -> str:
    """Units, clocks, compute capability, TDP and price, as far as they are stated."""
    words = [
        f"{count:,} {name}"
        for count, name in (
            (sheet.multiprocessors, "SMs"),
            (sheet.cores, "cores"),
            (sheet.tensor_cores or None, "tensor cores"),
        )
        if count is not None
    ]
    clocks = [f"{hz / 1e6:,.0f}" for hz in (sheet.clock_hz, sheet.boost_clock_hz) if hz]
    if clocks:
        words.append(f"{' to '.join(clocks)} MHz")
    if sheet.compute_capability:
        words.append(f"compute capability {sheet.compute_capability}")
    if sheet.tdp_watts:
        words.append(f"TDP {format_number(sheet.tdp_watts)} W")
    if sheet.price:
        words.append(f"US$ {sheet.price.amount:,.0f} ({sheet.price.year})")
    return ", ".join(words)


def _memory_facts(system: System) -> list[tuple[str, str]]:
    facts = []
    if system.memory_bytes is not None:
        kind = f" {system.equipment.memory_type}" if system.equipment.memory_type else ""
        facts.append(("host memory", f"{decimal_bytes(system.memory_bytes)}{kind}"))
    gpus = len(system.topology.gpus)
    if system.gpu_memory_bytes is not None:
        each = decimal_bytes(system.gpu_memory_bytes / gpus)
        total = decimal_bytes(system.gpu_memory_bytes)
        facts.append(("GPU memory", f"{gpus} × {each} = {total}"))
    rate = system.gpu_memory_bandwidth_bytes_per_s
    if rate is not None:
        facts.append(("GPU memory bandwidth", _bandwidth(gpus, rate / gpus)))
    if system.host_to_gpu_memory is not None:
        facts.append(("host : GPU memory", memory_balance(system.host_to_gpu_memory)))
    return facts


def _drives(group: DriveGroup) -> str:
    interface = INTERFACES.get(group.interface, "")
    kind = " ".join(filter(None, (interface, group.medium.upper())))
    text = f"{group.drives} × {decimal_bytes(group.drive_bytes)} {kind}"
    if group.drives > 1:
        text += f" = {decimal_bytes(group.total_bytes)}"
    if group.raid is not None:
        text += f", RAID {group.raid}"
    if group.read_bytes_per_s is not None:
        text += f", {format_quantity(group.read_bytes_per_s, 'B/s')} streaming read"
    return text
