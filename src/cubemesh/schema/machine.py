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
class XidCount:
    """Errors of one kind that NVIDIA's driver has written to the kernel's log for a GPU."""

    code: int
    """Number of the error: 48 double-bit ECC, 79 off the bus, 94 and 95 contained and uncontained
    ECC (NVIDIA, Xid Errors)."""
    count: int


@dataclass(frozen=True, kw_only=True)
class GpuErrors:
    """Error counters of a GPU's memory, and its Xid errors; None: not reported."""

    ecc_enabled: bool | None = None
    corrected: int | None = None
    """ECC errors since the driver was loaded."""
    uncorrected: int | None = None
    corrected_lifetime: int | None = None
    uncorrected_lifetime: int | None = None
    remapped_rows_corrected: int | None = None
    """Rows of memory replaced by spare ones after corrected errors."""
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    """Whether a row is replaced at the next reset of the GPU."""
    remap_failed: bool | None = None
    retired_pages: int | None = None
    """Pages taken out of use, of GPUs before Ampere."""
    xids: tuple[XidCount, ...] = ()
    """By code; empty where there are none, or the kernel's log is not readable."""


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
    pci_address: str | None = None
    """As in /sys/bus/pci/devices: `0000:3b:00.0`."""
    errors: GpuErrors | None = None


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
class Drive:
    """A disk, SSD or RAID volume of a controller, as the kernel shows it."""

    name: str
    """In /sys/block: `nvme0n1`, `sda`."""
    size_bytes: int | None = None
    rotational: bool | None = None
    """True: a disk with moving heads; a virtual machine may show SSDs as such."""
    interface: str | None = None
    """`nvme`, `sas`, `sata`, `usb`, `virtio`, `mmc`; None: unknown."""
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class RaidArray:
    """A RAID of the kernel (md); those of a controller are not visible."""

    name: str
    """`md0`."""
    level: str | None = None
    """`raid0`, `raid1`, …; None of an inactive array."""
    active: bool = True
    size_bytes: int | None = None
    chunk_bytes: int | None = None
    """Stripe of one member."""
    members: tuple[str, ...] = ()
    """Block devices: `sda1`."""
    failed: tuple[str, ...] = ()
    """Members that have failed."""
    members_expected: int | None = None
    """Of a level with redundancy."""
    members_present: int | None = None
    recovery: str | None = None
    """Recovery, resync, check or reshape that is running, with its percentage."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A mounted file system that can hold data."""

    path: str
    file_system: str
    """`ext4`, `xfs`, `nfs4`, …"""
    source: str
    """What is mounted: `/dev/md0`, `server:/export`."""
    device: str | None = None
    """The block device in /sys/block: `sda`, `md0`, `dm-0`; None without one."""
    drives: tuple[str, ...] = ()
    """Names of the drives below it."""
    server: str | None = None
    """Host of a network file system."""
    transport: str | None = None
    """`tcp`, `udp` or `rdma` of NFS."""
    read_only: bool = False
    size_bytes: int | None = None
    free_bytes: int | None = None
    """For users other than root."""


@dataclass(frozen=True, kw_only=True)
class NetworkAdapter:
    """A network adapter on a bus: one function of a card."""

    name: str
    """Of its InfiniBand device where it has one (`mlx5_0`), else of its interface (`eno1`)."""
    interfaces: tuple[str, ...] = ()
    """Its network interfaces."""
    kind: str | None = None
    """`infiniband` or `ethernet`: what its link carries."""
    driver: str | None = None
    rate_bits_per_s: float | None = None
    """Of its active ports together, one way; None where none is up, or the driver has no figure."""
    up: bool | None = None
    pci_address: str | None = None
    numa_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class NicLink:
    """The PCIe distance between a network adapter and a GPU."""

    nic: str
    """`NetworkAdapter.name`."""
    gpu: int
    """`Gpu.index`."""
    distance: str
    """In the words of `nvidia-smi topo`: `PIX` one PCIe switch, `PXB` several, `PHB` the host
    bridge, `NODE` several host bridges of a NUMA node, `SYS` the link between NUMA nodes."""


@dataclass(frozen=True, kw_only=True)
class PowerReading:
    """Electric power of the whole machine, or of a part that a sensor names."""

    source: str
    """`ipmitool dcmi` or `hwmon power_meter`."""
    watts: float
    label: str | None = None
    """What the sensor measures; None: the whole machine."""


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
    drives: tuple[Drive, ...] = ()
    raid_arrays: tuple[RaidArray, ...] = ()
    mounts: tuple[Mount, ...] = ()
    network_adapters: tuple[NetworkAdapter, ...] = ()
    nic_links: tuple[NicLink, ...] = ()
    power: tuple[PowerReading, ...] = ()
    """Readings when the machine was probed with its sensors."""
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

    @property
    def gpus_per_adapter(self) -> float | None:
        """GPUs for each network adapter whose link is up and that is as fast as the fastest of
        them; None without GPUs, or without such an adapter. A DGX-1 has two."""
        rates = [a.rate_bits_per_s for a in self.network_adapters if a.up and a.rate_bits_per_s]
        fastest = rates.count(max(rates)) if rates else 0
        return len(self.gpus) / fastest if self.gpus and fastest else None
