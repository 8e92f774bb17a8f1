"""GPUs from NVML: from scripted answers everywhere, against nvidia-smi where there are GPUs."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from cubemesh.machines.files import Tree
from cubemesh.machines.nvidia import probe_nvidia, read_nvidia
from cubemesh.schema import Gpu, GpuLink

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")

HIDDEN_BUS = "FFFFFFFF:FF:FF.0"
SWITCH, GPU_END = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, pynvml.NVML_NVLINK_DEVICE_TYPE_GPU


class ScriptedNvml:
    """pynvml's constants and errors, with scripted answers in place of a driver's.

    `gpus[i]` maps a query's name to its answer for GPU i; a query without one is answered with
    NVML's "Not Supported". `ends[i]` lists (device type, bus id) of GPU i's active links; None is
    a GPU without NVLink. `pairs` maps (query, first, second) to its answer.
    """

    def __init__(self, gpus, ends=None, pairs=None, driver="580.159.04", cuda=13000):
        self.gpus = gpus
        self.ends = ends or [None] * len(gpus)
        self.pairs = pairs or {}
        self.nvmlDeviceGetCount = lambda: len(gpus)
        self.nvmlDeviceGetHandleByIndex = self.handle
        self.nvmlSystemGetDriverVersion = lambda: driver
        self.nvmlSystemGetCudaDriverVersion_v2 = lambda: cuda

    def handle(self, index):
        if self.gpus[index] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def __getattr__(self, name):
        if not name.startswith("nvmlDevice"):
            return getattr(pynvml, name)
        return lambda *arguments: self.answer(name, *arguments)

    def answer(self, name, gpu, *rest):
        if "Topology" in name or "P2P" in name:
            return self.known(self.pairs, (name, gpu, rest[0]))
        if name == "nvmlDeviceGetMaxClockInfo":
            return self.known(self.gpus[gpu], (name, rest[0]))
        return self.known(self.gpus[gpu], name)

    @staticmethod
    def known(answers, key):
        if key not in answers:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return answers[key]

    def nvmlDeviceGetNvLinkState(self, gpu, link):  # noqa: N802
        return int(self.end(gpu, link) is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, link):  # noqa: N802
        return self.end(gpu, link)[0]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, link):  # noqa: N802
        return SimpleNamespace(busId=self.end(gpu, link)[1])

    def end(self, gpu, link):
        if self.ends[gpu] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if link >= len(self.ends[gpu]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self.ends[gpu][link]


def bus(gpu):
    return f"00000000:00:{6 + gpu:02X}.0"


def h200(gpu):
    """What NVML answered on a virtual machine with two H200 GPUs, driver 580.159.04."""
    return {
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetUUID": f"GPU-{gpu}",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143771 << 20),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM): 1980,
        ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM): 3201,
        "nvmlDeviceGetEnforcedPowerLimit": 700000,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=bus(gpu)),
        "nvmlDeviceGetMigMode": [0, 0],
    }


def ancestor(first, second):
    return ("nvmlDeviceGetTopologyCommonAncestor", first, second)


def p2p(first, second):
    return ("nvmlDeviceGetP2PStatus", first, second)


def read(nvml):
    tree = Tree()
    return read_nvidia(tree, nvml), tree.unknown


def test_two_gpus_linked_through_switches():
    switched = [(SWITCH, HIDDEN_BUS)] * 18
    found, unknown = read(
        ScriptedNvml([h200(0), h200(1)], [switched, switched], {p2p(0, 1): 0, ancestor(0, 1): 30})
    )
    assert found.gpus[1] == Gpu(
        index=1,
        name="NVIDIA H200",
        uuid="GPU-1",
        memory_bytes=143771 << 20,
        compute_capability="9.0",
        sm_clock_max_mhz=1980,
        memory_clock_max_mhz=3201,
        power_limit_watts=700.0,
        pcie_generation=5,
        pcie_width=16,
        nvlinks=18,
        pci_address="0000:00:07.0",
    )
    assert found.links == (GpuLink(first=0, second=1, kind="nvlink", links=18),)
    assert (found.driver, found.cuda) == ("580.159.04", "13.0")
    assert unknown == []


def test_gpus_on_switches_of_different_partitions_are_not_linked_by_nvlink():
    switched = [(SWITCH, HIDDEN_BUS)] * 4
    pairs = {p2p(0, 1): pynvml.NVML_P2P_STATUS_NOT_SUPPORTED, ancestor(0, 1): 30}
    found, _ = read(ScriptedNvml([h200(0), h200(1)], [switched, switched], pairs))
    assert found.links == (GpuLink(first=0, second=1, kind="host-bridge"),)


def test_a_cube_mesh_counts_the_links_of_each_pair():
    """As in a DGX-1: two links to one neighbour, one to another, none across the mesh."""
    ends = [
        [(GPU_END, bus(1)), (GPU_END, bus(2)), (GPU_END, bus(1)), None],
        [(GPU_END, bus(0)), (GPU_END, bus(0))],
        [(GPU_END, bus(0))],
    ]
    pairs = {ancestor(1, 2): pynvml.NVML_TOPOLOGY_SYSTEM}
    found, _ = read(ScriptedNvml([h200(0), h200(1), h200(2)], ends, pairs))
    assert [g.nvlinks for g in found.gpus] == [3, 2, 1]
    assert found.links == (
        GpuLink(first=0, second=1, kind="nvlink", links=2),
        GpuLink(first=0, second=2, kind="nvlink", links=1),
        GpuLink(first=1, second=2, kind="system"),
    )


@pytest.mark.parametrize(
    ("level", "kind"),
    [
        (pynvml.NVML_TOPOLOGY_INTERNAL, "pcie-switch"),
        (pynvml.NVML_TOPOLOGY_SINGLE, "pcie-switch"),
        (pynvml.NVML_TOPOLOGY_MULTIPLE, "pcie-switch"),
        (pynvml.NVML_TOPOLOGY_HOSTBRIDGE, "host-bridge"),
        (pynvml.NVML_TOPOLOGY_NODE, "numa-node"),
        (pynvml.NVML_TOPOLOGY_SYSTEM, "system"),
    ],
)
def test_pcie_paths_by_their_nearest_common_point(level, kind):
    found, _ = read(ScriptedNvml([h200(0), h200(1)], pairs={ancestor(0, 1): level}))
    assert found.links == (GpuLink(first=0, second=1, kind=kind),)


def test_every_failing_query_leaves_none_and_a_note():
    found, unknown = read(ScriptedNvml([{}, {}]))
    assert found.gpus[0] == Gpu(index=0, name="", uuid="")
    assert found.links == ()
    noted = {u.what for u in unknown}
    assert {
        "name of GPU 0",
        "UUID of GPU 1",
        "memory of GPU 0",
        "compute capability of GPU 1",
        "highest SM clock of GPU 0",
        "highest memory clock of GPU 0",
        "power limit of GPU 0",
        "PCIe generation of GPU 1",
        "PCIe width of GPU 1",
        "NVLink links of GPU 0",
        "PCIe path between GPU 0 and GPU 1",
    } <= noted
    assert all("Not Supported" in u.why for u in unknown)


def test_a_lost_gpu_is_noted_and_the_others_are_read():
    found, unknown = read(ScriptedNvml([h200(0), None, h200(2)], pairs={ancestor(0, 2): 50}))
    assert [g.index for g in found.gpus] == [0, 2]
    assert found.links == (GpuLink(first=0, second=2, kind="system"),)
    (why,) = (u.why for u in unknown if u.what == "GPU 1")
    assert why.endswith(str(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)))


def test_a_partitioned_gpu_is_noted():
    _, unknown = read(ScriptedNvml([{**h200(0), "nvmlDeviceGetMigMode": [1, 1]}]))
    assert "MIG instances of GPU 0" in {u.what for u in unknown}


def test_without_a_driver_there_are_no_gpus_and_the_reason():
    if has_gpus():
        pytest.skip("this machine has an NVIDIA driver")
    tree = Tree()
    assert probe_nvidia(tree).gpus == ()
    (note,) = tree.unknown
    assert note.what == "NVIDIA GPUs, driver and CUDA version"
    assert "driver" in note.why


def has_gpus() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return pynvml.nvmlDeviceGetCount() > 0
    finally:
        pynvml.nvmlShutdown()


QUERIES = {
    "index": lambda gpu: str(gpu.index),
    "name": lambda gpu: gpu.name,
    "uuid": lambda gpu: gpu.uuid,
    "memory.total": lambda gpu: str(round(gpu.memory_bytes / 2**20)),
    "compute_cap": lambda gpu: gpu.compute_capability,
    "clocks.max.sm": lambda gpu: str(gpu.sm_clock_max_mhz),
    "clocks.max.memory": lambda gpu: str(gpu.memory_clock_max_mhz),
    "enforced.power.limit": lambda gpu: f"{gpu.power_limit_watts:.2f}",
    "pcie.link.gen.max": lambda gpu: str(gpu.pcie_generation),
    "pcie.link.width.max": lambda gpu: str(gpu.pcie_width),
}


@pytest.fixture(scope="module")
def smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None or not has_gpus():
        pytest.skip("needs an NVIDIA GPU, its driver and nvidia-smi")
    return program


@pytest.mark.gpu
@pytest.mark.parametrize("query", QUERIES)
def test_the_probe_agrees_with_nvidia_smi(smi, query):
    command = [smi, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    reported = [line.strip() for line in done.stdout.splitlines()]
    if any("N/A" in answer or "Not Supported" in answer for answer in reported):
        pytest.skip(f"nvidia-smi does not know {query} here: {reported[0]}")
    assert [QUERIES[query](gpu) for gpu in probe_nvidia(Tree()).gpus] == reported


@pytest.mark.gpu
def test_driver_and_links_are_those_of_nvidia_smi(smi):
    found = probe_nvidia(Tree())
    command = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.driver == driver.splitlines()[0].strip()
    matrix = subprocess.run([smi, "topo", "-m"], capture_output=True, text=True, check=True).stdout
    rows = {row.split()[0]: row.split()[1:] for row in matrix.splitlines() if row[:3] == "GPU"}
    short = {"pcie-switch": ("PIX", "PXB"), "host-bridge": ("PHB",), "numa-node": ("NODE",)}
    count = len(found.gpus)
    assert len(found.links) == count * (count - 1) // 2
    for link in found.links:
        reported = rows[f"GPU{link.first}"][link.second]
        expected = (f"NV{link.links}",) if link.kind == "nvlink" else short.get(link.kind, ("SYS",))
        assert reported in expected


@pytest.mark.gpu
def test_active_links_are_those_of_nvidia_smi(smi):
    done = subprocess.run([smi, "nvlink", "--status"], capture_output=True, text=True)
    per_gpu = done.stdout.split("GPU ")[1:]
    reported = [sum("GB/s" in line for line in block.splitlines()) for block in per_gpu]
    if not reported:
        pytest.skip(f"nvidia-smi nvlink says nothing here: {done.stdout.strip()}")
    assert [gpu.nvlinks or 0 for gpu in probe_nvidia(Tree()).gpus] == reported
