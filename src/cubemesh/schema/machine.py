"""Machine description: CPU, memory, GPUs, links and software, as far as they are known.

A field that is None could not be determined; `Machine.unknown` says why. Nothing is guessed. Memory
is in bytes, clocks in MHz, link speeds in bytes per second and direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.schema.serialization import digest


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A property that could not be determined, and why."""

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
    """Number of them in the machine."""


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    """A NUMA node: processors and their local memory."""

    node: int
    cpus: tuple[int, ...]
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The CPU, and the part of it that this process may use."""

    model: str | None = None
    vendor: str | None = None
    architecture: str = ""
    sockets: int | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    affinity_cores: int | None = None
    """Logical cores in the affinity mask of the process."""
    cgroup_cores: float | None = None
    """CPU limit of the control group in cores; None: no limit."""
    usable_cores: int = 1
    """The minimum of the above, at least one."""
    max_mhz: float | None = None
    instruction_sets: tuple[str, ...] = ()
    """Those relevant to training: avx2, fma, avx512f, avx512_bf16, amx_bf16, …"""
    caches: tuple[Cache, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The host's memory."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    """None: no limit."""
    swap_bytes: int | None = None
    present_bytes: int | None = None
    """Memory blocks known to the kernel. If well above the total, a virtual machine may still
    grow to it."""

    @property
    def usable_bytes(self) -> int | None:
        """The minimum of the machine's memory and the control group's limit."""
        known = [b for b in (self.total_bytes, self.cgroup_limit_bytes) if b is not None]
        return min(known) if known else None

    @property
    def installed_bytes(self) -> int | None:
        """Installed memory, including what the machine may still grow to and the kernel's own."""
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
    """Active NVLink links; 0: none, None: unknown."""


@dataclass(frozen=True, kw_only=True)
class GpuLink:
    """The connection between two GPUs."""

    first: int
    second: int
    kind: str
    """`nvlink`, or the nearest common point of their PCIe paths: `pcie-switch`, `host-bridge`,
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
    """Version of each installed framework and numeric package, by distribution name."""
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None
    cpp_compiler: str | None = None
    """Version of the C++ compiler, or `none`; None: unknown, as in stores of older versions."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that change what the libraries do: `OMP_NUM_THREADS`, `NCCL_ALGO`, …"""

    def software_id(self, packages: tuple[str, ...], *, compiles: bool = False) -> str:
        """Identifies the packages that a run depends on, and the C++ compiler if it `compiles`;
        upgrades of others do not change it."""
        own = {p: self.packages.get(p) for p in packages}
        compiler = [self.cpp_compiler] if compiles and self.cpp_compiler is not None else []
        versions = (self.cuda, self.cudnn, self.nccl, self.driver, *compiler)
        return digest((self.python, self.system, own, *versions))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """This computer."""

    hostname: str
    cpu: Cpu
    memory: Memory
    gpus: tuple[Gpu, ...] = ()
    gpu_links: tuple[GpuLink, ...] = ()
    software: Software
    virtualization: str | None = None
    """The hypervisor's name; None if none is detected."""
    container: str | None = None
    """`docker`, `podman`, `kubernetes`, …; None if none is detected."""
    unknown: tuple[Unknown, ...] = ()

    @property
    def machine_id(self) -> str:
        """Identifies the hardware as this process may use it, without what changes over time:
        free memory, the total of a growing virtual machine, software."""
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
        """Host memory (installed, or the control group's limit) as a multiple of all GPU memory.
        DGX-1 V100 white paper [002], section 2.1: a DGX-1 has four times, twice is normally
        enough."""
        gpu = [g.memory_bytes for g in self.gpus if g.memory_bytes]
        host = self.memory.installed_bytes
        if host is not None and self.memory.cgroup_limit_bytes is not None:
            host = min(host, self.memory.cgroup_limit_bytes)
        return host / sum(gpu) if gpu and host else None
