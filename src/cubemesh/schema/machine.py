"""Machine description: CPU, memory, GPUs, links and software, as far as they are known.

A field that is None was looked for and not found; why stands in `Machine.unknown`. Nothing here is
ever a guess. Memory is in bytes, clocks in MHz, link speeds in bytes per second and direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.schema.serialization import digest


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """Something that was looked for and not found, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Cache:
    """One kind of cache."""

    level: int
    kind: str
    """`data`, `instruction` or `unified`."""
    size_bytes: int
    instances: int
    """How many of them the machine has."""


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    """Processors and memory that lie near one another."""

    node: int
    cpus: tuple[int, ...]
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The processors, and what of them this process may use."""

    model: str | None = None
    vendor: str | None = None
    architecture: str = ""
    sockets: int | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    affinity_cores: int | None = None
    """Logical cores the process may be scheduled on."""
    cgroup_cores: float | None = None
    """Cores' worth of time the control group grants; None is no limit."""
    usable_cores: int = 1
    """What is really left: the smallest of the above, one at least."""
    max_mhz: float | None = None
    instruction_sets: tuple[str, ...] = ()
    """Those that matter to training: avx2, fma, avx512f, avx512_bf16, amx_bf16, …"""
    caches: tuple[Cache, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The host's memory."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    """None is no limit."""
    swap_bytes: int | None = None
    present_bytes: int | None = None
    """What the memory blocks hold that the kernel knows of. Well over the total, it means that a
    virtual machine may still grow to it."""

    @property
    def usable_bytes(self) -> int | None:
        """The smaller of what the machine has and what the control group grants."""
        known = [b for b in (self.total_bytes, self.cgroup_limit_bytes) if b is not None]
        return min(known) if known else None

    @property
    def installed_bytes(self) -> int | None:
        """What the machine has, with what it may still grow to and what the kernel keeps."""
        known = [b for b in (self.total_bytes, self.present_bytes) if b is not None]
        return max(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU, in the order of its PCI address."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    compute_capability: str | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_limit_watts: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    """Active NVLink links; 0 is none, None is not known."""


@dataclass(frozen=True, kw_only=True)
class GpuLink:
    """How two GPUs reach one another."""

    first: int
    second: int
    kind: str
    """`nvlink`, or the nearest point their PCIe paths share: `pcie-switch`, `host-bridge`,
    `numa-node`, `system`."""
    links: int | None = None
    """NVLink links between the two, directly or through a switch."""


@dataclass(frozen=True, kw_only=True)
class Software:
    """The software stack of one Python environment."""

    python: str
    system: str
    """Operating system and kernel."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Version of each framework and numeric package that is installed, by distribution name."""
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None

    def software_id(self, packages: tuple[str, ...]) -> str:
        """Stands for what a run with these packages depends on; another package's upgrade
        does not change it."""
        own = {p: self.packages.get(p) for p in packages}
        return digest(
            (self.python, self.system, own, self.cuda, self.cudnn, self.nccl, self.driver)
        )


@dataclass(frozen=True, kw_only=True)
class Machine:
    """All of it."""

    hostname: str
    cpu: Cpu
    memory: Memory
    gpus: tuple[Gpu, ...] = ()
    gpu_links: tuple[GpuLink, ...] = ()
    software: Software
    virtualization: str | None = None
    """The hypervisor's name; None where there is none to be seen."""
    container: str | None = None
    """`docker`, `podman`, `kubernetes`, …; None where there is none to be seen."""
    unknown: tuple[Unknown, ...] = ()

    @property
    def machine_id(self) -> str:
        """Stands for the hardware as this process may use it. Leaves out what changes by itself:
        free memory, the total of a virtual machine that grows, software."""
        return digest(
            (
                self.hostname,
                self.cpu.model,
                self.cpu.architecture,
                self.cpu.usable_cores,
                tuple(g.uuid for g in self.gpus),
            )
        )

    @property
    def host_to_gpu_memory(self) -> float | None:
        """Host memory as a multiple of all GPU memory: what is installed, or what the control group
        grants of it. DGX-1 V100 white paper [002], section 2.1: four times is what a DGX-1 has,
        twice would normally be enough."""
        gpu = [g.memory_bytes for g in self.gpus if g.memory_bytes]
        host = self.memory.installed_bytes
        if host is not None and self.memory.cgroup_limit_bytes is not None:
            host = min(host, self.memory.cgroup_limit_bytes)
        return host / sum(gpu) if gpu and host else None
