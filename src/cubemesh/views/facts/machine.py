"""Facts of a machine in groups, each a name and a value, for a page or a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cubemesh.schema import Cpu, Gpu, GpuLink, Machine, Memory, Software, Table
from cubemesh.units import format_bytes, format_number
from cubemesh.untrusted import clean
from cubemesh.views.facts.hardware import (
    balance_facts,
    gpu_error_facts,
    network_facts,
    power_facts,
    storage_facts,
)
from cubemesh.views.tables import table_of_texts

if TYPE_CHECKING:
    from cubemesh.machines.stack import StackDifference
    from cubemesh.machines.topology.analysis import TopologyAnalysis


@dataclass(frozen=True, kw_only=True)
class FactGroup:
    """Facts that belong together."""

    title: str
    facts: tuple[tuple[str, str], ...]


def machine_groups(machine: Machine) -> tuple[FactGroup, ...]:
    """Processor, memory, storage, network, GPUs, balance, power, environment, software."""
    groups = [
        FactGroup(title="Processor", facts=tuple(_processor(machine.cpu))),
        FactGroup(title="Memory", facts=tuple(_memory(machine.memory))),
        FactGroup(title="Storage", facts=storage_facts(machine)),
        FactGroup(title="Network", facts=network_facts(machine)),
        FactGroup(title="GPU datasheets", facts=_datasheets(machine)),
        FactGroup(title="GPU errors", facts=gpu_error_facts(machine)),
        FactGroup(title="Balance", facts=balance_facts(machine)),
        FactGroup(title="Power", facts=power_facts(machine)),
        FactGroup(title="Environment", facts=tuple(_place(machine))),
        FactGroup(title="Software", facts=tuple(_software(machine.software))),
    ]
    return tuple(group for group in groups if group.facts)


_GPU_COLUMNS = (
    *("GPU", "name", "memory", "compute", "clock", "power limit"),
    *("PCIe gen × lanes", "NVLink"),
)


def gpu_table(gpus: tuple[Gpu, ...]) -> Table:
    """One row a GPU."""
    return table_of_texts("GPUs", _GPU_COLUMNS, map(_gpu_row, gpus))


def _gpu_row(gpu: Gpu) -> tuple[object, ...]:
    return (
        gpu.index,
        gpu.name,
        "" if gpu.memory_bytes is None else format_bytes(gpu.memory_bytes),
        gpu.compute_capability or "",
        "" if gpu.sm_clock_max_mhz is None else f"{gpu.sm_clock_max_mhz:,} MHz",
        "" if gpu.power_limit_watts is None else f"{format_number(gpu.power_limit_watts)} W",
        _joined(gpu.pcie_generation, " × ", gpu.pcie_width),
        "" if gpu.nvlinks is None else f"{gpu.nvlinks} links",
    )


def gpu_topology(machine: Machine) -> TopologyAnalysis | None:
    """Links and rings of several GPUs; None for fewer, or where the links are not known."""
    if len(machine.gpus) < 2:
        return None
    from cubemesh.machines.topology.analysis import analysis_of  # loads networkx

    return analysis_of(machine)


def difference_table(differences: tuple[StackDifference, ...]) -> Table:
    """One row for each item that differs between a recorded stack and this one."""
    rows = ((d.group, clean(d.what), clean(d.first), clean(d.second)) for d in differences)
    return table_of_texts("Differences", ("kind", "item", "recorded", "this machine"), rows)


def link_sentences(links: tuple[GpuLink, ...]) -> tuple[str, ...]:
    """`0–1, 0–2: NVLink, 2 links`: the pairs of GPUs by the link between them."""
    pairs: dict[tuple[str, int | None], list[str]] = {}
    for link in links:
        pairs.setdefault((link.kind, link.links), []).append(f"{link.first}–{link.second}")
    return tuple(
        clean(f"{', '.join(names)}: {kind}" + (f", {count} links" if count else ""))
        for (kind, count), names in pairs.items()
    )


def _datasheets(machine: Machine) -> tuple[tuple[str, str], ...]:
    if not machine.gpus:
        return ()
    from cubemesh.views.facts.equipment import datasheet_facts  # reads the catalogue

    return datasheet_facts(machine)


def _processor(cpu: Cpu) -> list[tuple[str, str]]:
    facts = []
    if cpu.model:
        facts.append(("model", clean(cpu.model)))
    cores = _joined(cpu.physical_cores, " physical, ", cpu.logical_cores)
    if cpu.physical_cores is not None and cpu.logical_cores is not None:
        cores += " logical"
    if cores:
        facts.append(("cores", cores))
    facts.append(("usable cores", str(cpu.usable_cores)))
    if cpu.cgroup_cores is not None:
        facts.append(("cgroup limit", f"{format_number(cpu.cgroup_cores)} cores"))
    if cpu.sockets is not None:
        facts.append(("sockets", str(cpu.sockets)))
    if cpu.max_mhz is not None:
        facts.append(("maximum clock", f"{format_number(cpu.max_mhz, 4)} MHz"))
    if cpu.instruction_sets:
        facts.append(("instruction sets", clean(", ".join(cpu.instruction_sets))))
    for cache in cpu.caches:
        kind = "" if cache.kind == "unified" else f" {cache.kind}"
        size = f"{cache.instances} × {format_bytes(cache.size_bytes)}"
        facts.append((clean(f"L{cache.level}{kind} cache"), size))
    if len(cpu.numa_nodes) > 1:
        facts.append(("NUMA nodes", str(len(cpu.numa_nodes))))
    return facts


def _memory(memory: Memory) -> list[tuple[str, str]]:
    sizes = (
        ("total", memory.total_bytes),
        ("available", memory.available_bytes),
        ("cgroup limit", memory.cgroup_limit_bytes),
        ("swap", memory.swap_bytes),
    )
    return [(name, format_bytes(size)) for name, size in sizes if size is not None]


def _place(machine: Machine) -> list[tuple[str, str]]:
    return [
        ("hostname", clean(machine.hostname)),
        ("virtual machine", clean(machine.virtualization or "none detected")),
        ("container", clean(machine.container or "none detected")),
        ("GPUs", str(len(machine.gpus)) if machine.gpus else "none"),
        ("machine id", machine.machine_id),
    ]


def _software(software: Software) -> list[tuple[str, str]]:
    facts = [("Python", software.python), ("system", software.system)]
    named = (
        ("driver", software.driver),
        ("CUDA", software.cuda),
        ("cuDNN", software.cudnn),
        ("NCCL", software.nccl),
        ("C++ compiler", software.cpp_compiler),
    )
    facts += [(name, value) for name, value in named if value]
    facts += [*software.packages.items(), *software.variables.items()]
    return [(clean(name), clean(value)) for name, value in facts]


def _joined(first: int | None, sign: str, second: int | None) -> str:
    return sign.join(f"{n:,}" for n in (first, second) if n is not None)
