"""The GPUs of a host, as a scripted driver lists them."""

from types import SimpleNamespace

import pynvml

from cubemesh.measure.telemetry.gpu_set import pci_addresses, read_gpus, visible
from cubemesh.measure.telemetry.nvml import NvmlUnavailable
from cubemesh.schema import Gpu


class TwoGpus:
    """pynvml with two GPUs; it counts how often it is started."""

    NVMLError = pynvml.NVMLError
    uuids = ("GPU-11-ab", "GPU-22-cd")

    def __init__(self):
        self.started = 0

    def __call__(self):
        self.started += 1
        return self

    def nvmlShutdown(self):  # noqa: N802
        self.started -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return self.uuids[handle]

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid not in self.uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.uuids.index(uuid)

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802
        return SimpleNamespace(busId=("00000001:1B:00.0", b"00000000:9A:00.0")[handle])

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(total=141 << 30)


def test_a_hosts_gpus_are_read_and_nvml_is_shut_down():
    nvml = TwoGpus()
    first, second = read_gpus(nvml)
    assert first == Gpu(index=0, name="NVIDIA H200", uuid="GPU-11-ab", memory_bytes=141 << 30)
    assert (second.index, second.uuid, second.name) == (1, "GPU-22-cd", "")
    assert nvml.started == 0
    assert [g.index for g in visible((first, second), {"CUDA_VISIBLE_DEVICES": "1,0"})] == [1, 0]


def test_addresses_are_written_as_the_kernel_does():
    nvml = TwoGpus()
    assert pci_addresses(["GPU-22-cd", "GPU-11-ab"], nvml) == ("0000:9a:00.0", "0001:1b:00.0")
    assert pci_addresses(["GPU-11-ab", "GPU-gone"], nvml) == ()
    assert nvml.started == 0


def test_without_a_driver_there_are_none():
    def start():
        raise NvmlUnavailable("no driver")

    assert read_gpus(start) == ()
    assert pci_addresses(["GPU-11-ab"], start) == ()
