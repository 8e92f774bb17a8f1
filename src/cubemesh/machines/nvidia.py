"""NVIDIA GPU probe through NVML: GPUs, and the links between them.

Every figure is one query to NVML, NVIDIA's management library (NVML API reference guide), through
its Python binding pynvml. A query that a GPU, its driver or a virtual machine does not answer
leaves None and a note, and does not affect the others. Clocks, PCIe generation and width are the
highest that GPU and slot support, since an idle GPU lowers them; the power limit is the enforced
one. NVML counts GPUs in PCI order, regardless of CUDA_VISIBLE_DEVICES; the UUID identifies a GPU
everywhere.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cubemesh.machines.files import Tree
from cubemesh.machines.hardware.gpu_errors import read_gpu_errors
from cubemesh.machines.hardware.pci import sysfs_address
from cubemesh.schema import Gpu, GpuLink


@dataclass(frozen=True)
class Nvidia:
    """Result of the NVML queries: GPUs in NVML order, their links, and the driver."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    """The newest CUDA version that the driver can run."""


def probe_nvidia(tree: Tree) -> Nvidia:
    """The NVIDIA GPUs of the running machine; why there are none is noted in `tree`."""
    what = "NVIDIA GPUs, driver and CUDA version"
    try:
        import pynvml
    except ImportError:
        tree.missing(what, "the Python package nvidia-ml-py is not installed")
        return Nvidia()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        tree.missing(what, f"NVML, which comes with NVIDIA's driver, does not start: {error}")
        return Nvidia()
    try:
        return read_nvidia(tree, pynvml)
    finally:
        # The readings are valid even if a GPU was lost meanwhile and NVML does not end cleanly.
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def read_nvidia(tree: Tree, nvml: Any) -> Nvidia:
    """The GPUs that `nvml` reports: the initialized module pynvml, or a test double."""
    return _Queries(tree, nvml).all()


@dataclass(frozen=True)
class _Device:
    """A GPU's handle and what its links need."""

    gpu: Gpu
    handle: Any
    bus_id: str | None
    remotes: tuple[str, ...]
    """For each active NVLink link the PCI bus id at its other end, or `switch`."""


class _Queries:
    """The queries of one NVML session."""

    def __init__(self, tree: Tree, nvml: Any) -> None:
        self.tree = tree
        self.nvml = nvml

    def all(self) -> Nvidia:
        nvml = self.nvml
        count = self.ask("number of NVIDIA GPUs", nvml.nvmlDeviceGetCount) or 0
        devices = [d for d in map(self.device, range(count)) if d is not None]
        links = (self.link(a, b) for a, b in itertools.combinations(devices, 2))
        version = self.ask("CUDA version of the driver", nvml.nvmlSystemGetCudaDriverVersion_v2)
        return Nvidia(
            gpus=tuple(d.gpu for d in devices),
            links=tuple(link for link in links if link is not None),
            driver=self.ask("driver version", nvml.nvmlSystemGetDriverVersion),
            cuda=None if version is None else f"{version // 1000}.{version % 1000 // 10}",
        )

    def ask(self, what: str, query: Callable[..., Any], *arguments: Any) -> Any:
        """What the query returns; None, and a note about `what`, where NVML does not answer it."""
        try:
            return query(*arguments)
        except self.nvml.NVMLError as error:
            self.tree.missing(what, f"NVML answers: {error}")
            return None

    def device(self, index: int) -> _Device | None:
        nvml, of = self.nvml, f"of GPU {index}"
        handle = self.ask(f"GPU {index}", nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return None
        memory = self.ask(f"memory {of}", nvml.nvmlDeviceGetMemoryInfo, handle)
        capability = self.ask(
            f"compute capability {of}", nvml.nvmlDeviceGetCudaComputeCapability, handle
        )
        power_mw = self.ask(f"power limit {of}", nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        pci = self.ask(f"PCI address {of}", nvml.nvmlDeviceGetPciInfo, handle)
        bus_id = None if pci is None else _text(pci.busId)
        remotes = self.remotes(index, handle)
        self.note_partitions(index, handle)
        gpu = Gpu(
            index=index,
            name=self.ask(f"name {of}", nvml.nvmlDeviceGetName, handle) or "",
            uuid=self.ask(f"UUID {of}", nvml.nvmlDeviceGetUUID, handle) or "",
            memory_bytes=None if memory is None else int(memory.total),
            compute_capability=None if capability is None else "{}.{}".format(*capability),
            sm_clock_max_mhz=self.ask(
                f"highest SM clock {of}", nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM
            ),
            memory_clock_max_mhz=self.ask(
                f"highest memory clock {of}",
                nvml.nvmlDeviceGetMaxClockInfo,
                handle,
                nvml.NVML_CLOCK_MEM,
            ),
            power_limit_watts=None if power_mw is None else power_mw / 1000,
            pcie_generation=self.ask(
                f"PCIe generation {of}", nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle
            ),
            pcie_width=self.ask(f"PCIe width {of}", nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            nvlinks=None if remotes is None else len(remotes),
            pci_address=None if bus_id is None else sysfs_address(bus_id),
            errors=read_gpu_errors(nvml, handle),
        )
        return _Device(gpu=gpu, handle=handle, bus_id=bus_id, remotes=remotes or ())

    def remotes(self, index: int, handle: Any) -> tuple[str, ...] | None:
        """The remote end of each active link; None if NVML does not report it."""
        nvml, found = self.nvml, []
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                active = nvml.nvmlDeviceGetNvLinkState(handle, link)
            except nvml.NVMLError_InvalidArgument:  # one past the last link
                break
            except nvml.NVMLError as error:
                why = f"NVML answers: {error} (the answer of a GPU without NVLink, too)"
                self.tree.missing(f"NVLink links of GPU {index}", why)
                return None
            if active:
                found.append(self.remote(index, handle, link))
        return tuple(found)

    def remote(self, index: int, handle: Any, link: int) -> str:
        nvml, what = self.nvml, f"other ends of the NVLink links of GPU {index}"
        # A switch's PCI address is not shown inside a virtual machine, its type is.
        kind = self.ask(what, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return "switch"
        pci = self.ask(what, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        return "" if pci is None else _text(pci.busId)

    def link(self, a: _Device, b: _Device) -> GpuLink | None:
        """The connection between two GPUs; None, and a note, if NVML does not report it."""
        nvml, pair = self.nvml, f"between GPU {a.gpu.index} and GPU {b.gpu.index}"
        ends = {"first": a.gpu.index, "second": b.gpu.index}
        direct = a.remotes.count(b.bus_id) if b.bus_id else 0
        if direct:
            return GpuLink(**ends, kind="nvlink", links=direct)
        switched = min(Counter(d.remotes)["switch"] for d in (a, b))
        # Being linked to switches is not enough: the two may be in different partitions.
        if switched and (
            self.ask(
                f"NVLink {pair}",
                nvml.nvmlDeviceGetP2PStatus,
                a.handle,
                b.handle,
                nvml.NVML_P2P_CAPS_INDEX_NVLINK,
            )
            == nvml.NVML_P2P_STATUS_OK
        ):
            return GpuLink(**ends, kind="nvlink", links=switched)
        level = self.ask(
            f"PCIe path {pair}", nvml.nvmlDeviceGetTopologyCommonAncestor, a.handle, b.handle
        )
        if level is None:
            return None
        kinds = {
            nvml.NVML_TOPOLOGY_INTERNAL: "pcie-switch",  # two GPUs on one board
            nvml.NVML_TOPOLOGY_SINGLE: "pcie-switch",
            nvml.NVML_TOPOLOGY_MULTIPLE: "pcie-switch",
            nvml.NVML_TOPOLOGY_HOSTBRIDGE: "host-bridge",
            nvml.NVML_TOPOLOGY_NODE: "numa-node",
            nvml.NVML_TOPOLOGY_SYSTEM: "system",
        }
        if level not in kinds:
            self.tree.missing(f"PCIe path {pair}", f"NVML reports an unknown level: {level}")
            return None
        return GpuLink(**ends, kind=kinds[level])

    def note_partitions(self, index: int, handle: Any) -> None:
        """A GPU with MIG instances is described as a whole, with a note."""
        try:
            mode, _ = self.nvml.nvmlDeviceGetMigMode(handle)
        except self.nvml.NVMLError:  # a GPU that cannot be partitioned
            return
        if mode:
            why = "MIG mode is on, and the figures are those of the whole GPU"
            self.tree.missing(f"MIG instances of GPU {index}", why)


def _text(value: str | bytes) -> str:
    """Some bindings return C strings as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
