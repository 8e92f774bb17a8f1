"""The GPUs of a host, as a driver lists them that is not there."""

import ctypes

from cubemesh.measure.telemetry.gpu_set import read_gpus, visible
from cubemesh.schema import Gpu

NOT_STARTED, REFUSED = 1, 4


class Library:
    """Answers as NVML does for two GPUs; it counts how often it is started."""

    uuids = (b"GPU-11-ab", b"GPU-22-cd")

    def __init__(self, code=0):
        self.started, self.code = 0, code

    def nvmlInit_v2(self):  # noqa: N802
        self.started += 1
        return self.code

    def nvmlShutdown(self):  # noqa: N802
        if not self.started:
            return NOT_STARTED
        self.started -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))[0] = len(self.uuids)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1
        return 0

    def nvmlDeviceGetUUID(self, handle, text, size):  # noqa: N802
        text.value = self.uuids[handle.value - 1]
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):  # noqa: N802
        index = self.uuids.index(uuid)
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = index + 1
        return 0

    def nvmlDeviceGetName(self, handle, text, size):  # noqa: N802
        if handle.value == 2:
            return REFUSED
        text.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, read):  # noqa: N802
        ctypes.cast(read, ctypes.POINTER(ctypes.c_ulonglong))[0] = 141 << 30
        return 0


def test_a_hosts_gpus_are_read_and_the_driver_is_left_as_it_was():
    library = Library()
    first, second = read_gpus(library)
    assert first == Gpu(index=0, name="NVIDIA H200", uuid="GPU-11-ab", memory_bytes=141 << 30)
    assert (second.index, second.uuid, second.name) == (1, "GPU-22-cd", ""), "it refused its name"
    assert library.started == 0, "a fork starts it for itself"
    assert [g.index for g in visible((first, second), {"CUDA_VISIBLE_DEVICES": "1,0"})] == [1, 0]


def test_without_a_driver_there_are_none():
    assert read_gpus(Library(code=9)) == ()
