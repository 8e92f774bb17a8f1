"""Other processes on a GPU, with and without the process numbers of a container."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest
from scripted_nvml import ScriptedNvml

from cubemesh.measure.telemetry.gpu_processes import GpuProcess, GpuProcessWatch

OWN = 77


def others(*lists, own=OWN, versions=("_v3",)):
    """`lists` are what NVML lists, (pid, bytes), one for each query."""
    listed = iter(lists)

    def answer():
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in next(listed)]

    queries = {f"nvmlDeviceGetComputeRunningProcesses{version}": answer for version in versions}
    return GpuProcessWatch("GPU-1", ScriptedNvml(queries)).others(own)


def test_no_other_process():
    assert others([], [(OWN, 1 << 30)]) == ()


def test_processes_from_before_and_new_ones():
    found = others([(5, 100)], [(5, 100), (OWN, 1 << 30), (9, None)])
    assert found == (GpuProcess(pid=5, memory_bytes=100), GpuProcess(pid=9))


def test_a_process_that_ended_counts():
    assert others([(5, 100)], [(OWN, 1 << 30)]) == (GpuProcess(pid=5, memory_bytes=100),)


def test_in_a_container_the_largest_newcomer_is_the_run():
    assert others([], [(4711, 1 << 30)]) == ()
    found = others([(5, 100)], [(5, 100), (4711, 1 << 30), (4712, 50)])
    assert [p.pid for p in found] == [5, 4712]


@pytest.mark.parametrize("versions", [("_v2",), ("_v2", "_v3")])
def test_older_drivers_have_an_older_call(versions):
    assert others([(5, 100)], [], versions=versions) == (GpuProcess(pid=5, memory_bytes=100),)


def test_without_a_list_of_processes_there_is_no_answer():
    assert others(versions=()) is None
    unknown = ScriptedNvml({"GPU-2": pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)})
    assert GpuProcessWatch("GPU-2", unknown).others() is None
    assert GpuProcessWatch(None).others() is None


@pytest.mark.gpu
def test_another_process_on_the_gpu_is_seen():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    from cubemesh.machines import probe

    code = "import torch, sys; x = torch.ones(1 << 28, device='cuda:0'); print('there', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline().strip() == "there"
        found = GpuProcessWatch(probe().gpus[0].uuid).others(os.getpid())
        other.stdin.close()
        other.wait(timeout=120)
    if not found:
        pytest.skip("the driver lists no processes here, as in some containers")
    assert max(p.memory_bytes or 0 for p in found) >= 1 << 30
