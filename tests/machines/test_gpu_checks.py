"""Checks of GPUs, from scripted answers of NVML."""

from types import SimpleNamespace

import pytest

from cubemesh.machines.files import Tree
from cubemesh.machines.gpu_checks import _no_driver, _pci_gpus, read_gpu_checks

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")

HEALTHY = {
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4,
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetComputeRunningProcesses": [],
}


class ScriptedNvml:
    """pynvml with the scripted answers of each GPU; None is a lost one, and a query without an
    answer is not supported."""

    def __init__(self, *gpus):
        self.gpus = gpus

    def __getattr__(self, name):
        if not name.startswith("nvmlDevice"):
            return getattr(pynvml, name)
        return lambda gpu, *_: self.answer(self.gpus[gpu], name)

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if self.gpus[index] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    @staticmethod
    def answer(answers, name):
        if name not in answers:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return answers[name]


def problems(*gpus):
    return {c.code: c for c in read_gpu_checks(ScriptedNvml(*gpus)) if c.problem}


def test_a_healthy_gpu_has_no_problem():
    checks = read_gpu_checks(ScriptedNvml(HEALTHY))
    assert [c.code for c in checks if c.problem] == []
    assert len(checks) == 6


def test_uncorrected_errors_of_the_memory_are_a_problem():
    counted = HEALTHY | {"nvmlDeviceGetTotalEccErrors": 0}
    assert problems(counted) == {}
    broken = counted | {"nvmlDeviceGetTotalEccErrors": 3}
    pending = counted | {"nvmlDeviceGetRemappedRows": (0, 1, 1, 1)}
    found = problems(counted, broken)["gpu-memory-errors"]
    assert found.found.startswith("GPU 1: its memory has errors: 3 uncorrected")
    assert "--gpu-reset -i 1;" in found.remedy
    assert "next reset, remapping a row" in problems(pending)["gpu-memory-errors"].found


@pytest.mark.parametrize(
    ("query", "answer", "code", "remedy"),
    [
        ("nvmlDeviceGetPersistenceMode", 0, "gpu-persistence", "sudo nvidia-smi -i 0 -pm 1"),
        (
            "nvmlDeviceGetEnforcedPowerLimit",
            500_000,
            "gpu-power-limit",
            "sudo nvidia-smi -i 0 -pl 700",
        ),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", 0x40, "gpu-clocks", "cooling"),
        ("nvmlDeviceGetMigMode", [1, 1], "gpu-partitions", "-mig 0"),
        (
            "nvmlDeviceGetComputeRunningProcesses",
            [SimpleNamespace(pid=77, usedGpuMemory=1 << 30)],
            "gpu-processes",
            "CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_each_problem_has_its_remedy(query, answer, code, remedy):
    found = problems(HEALTHY | {query: answer})
    assert set(found) == {code}
    assert remedy in found[code].remedy
    assert found[code].found.startswith("GPU 0: ")


def test_gpus_with_one_problem_share_a_line():
    off = HEALTHY | {"nvmlDeviceGetPersistenceMode": 0}
    found = problems(off, HEALTHY, off)
    assert found["gpu-persistence"].found.startswith("GPUs 0,2: ")
    assert found["gpu-persistence"].remedy == "sudo nvidia-smi -i 0,2 -pm 1"


def test_a_gpu_that_answers_nothing_has_no_checks_and_a_lost_one_is_a_problem():
    assert set(problems({}, None)) == {"gpu-lost"}


def test_a_missing_driver_is_a_problem_only_where_there_is_a_gpu(tmp_path):
    assert not _no_driver(0, "no library").problem
    assert _no_driver(2, "no library").problem
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x8086", "0x030000")):
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    assert _pci_gpus(Tree(tmp_path)) == 1
