"""What share of the time does a GPU have work? As NVML counts it, and nvidia-smi shows it.

"Percent of time over the past sample period during which one or more kernels was executing" (NVML
API reference, nvmlUtilization_t): documents 001 to 004 mean this by GPU utilisation. A single small
kernel counts as much as one that fills the GPU. The library is called directly, because a worker
has no binding for it; where it cannot be loaded or a GPU does not answer there is no reading.
"""

from __future__ import annotations

import ctypes

_LIBRARY = "libnvidia-ml.so.1"


class _Utilisation(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class GpuReader:
    """Reads one GPU. `nvml` is the loaded library, or what answers as it does."""

    def __init__(self, nvml: ctypes.CDLL, uuid: str) -> None:
        self._nvml = nvml
        self._handle = ctypes.c_void_p()
        self._found = (
            nvml.nvmlInit_v2() == 0
            and nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle)) == 0
        )

    def percent(self) -> float | None:
        """0 to 100 over the past sample period; None where the GPU does not say."""
        read = _Utilisation()
        asked = self._found and self._nvml.nvmlDeviceGetUtilizationRates(
            self._handle, ctypes.byref(read)
        )
        return float(read.gpu) if self._found and asked == 0 else None


def open_gpu(uuid: str | None) -> GpuReader | None:
    """A reader of the GPU with this UUID; None for none, or where there is no NVML."""
    if uuid is None:
        return None
    try:
        return GpuReader(ctypes.CDLL(_LIBRARY), uuid)
    except OSError:
        return None
