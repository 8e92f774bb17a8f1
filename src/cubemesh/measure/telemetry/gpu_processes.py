"""Who else computes on this GPU?

NVML lists the processes that hold a context on a GPU. They are asked for before the run touches the
GPU, when whoever is there is another, and after it: who came meanwhile, but for the run itself, is
another too. In a container the driver may number processes as the host does, which the run cannot
know of itself; then one newcomer is taken for the run. Source: NVML API reference,
nvmlDeviceGetComputeRunningProcesses.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

from cubemesh.measure.telemetry.nvml import LIBRARY

_MOST = 256
_UNKNOWN_BYTES = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE."""


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, of versions 2 and 3 of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process with a context on a GPU."""

    pid: int
    """As the driver numbers it."""
    memory_bytes: int | None = None
    """Memory of the GPU that it holds; None where the driver does not say."""


class GpuProcessWatch:
    """Watches who else is on the GPU with this UUID. Make it before the run touches the GPU;
    `nvml` is the loaded library, or what answers as it does."""

    def __init__(self, uuid: str | None, nvml: Any = None) -> None:
        self._nvml = _library() if nvml is None and uuid is not None else nvml
        self._handle = ctypes.c_void_p()
        self._known = uuid is not None and self._open(uuid)
        self._before = self._list()

    def others(self, own_pid: int | None = None) -> tuple[GpuProcess, ...] | None:
        """The others until now, while the run still holds its context; None where NVML does not
        tell. `own_pid` is this process's unless given."""
        now = self._list()
        if self._before is None or now is None:
            return None
        own = os.getpid() if own_pid is None else own_pid
        before = {p.pid: p for p in self._before if p.pid != own}
        came = [p for p in now if p.pid not in before and p.pid != own]
        if all(p.pid != own for p in (*self._before, *now)):
            came = sorted(came, key=lambda p: p.memory_bytes or 0)[:-1]  # the largest is the run
        return (*before.values(), *came)

    def _open(self, uuid: str) -> bool:
        nvml = self._nvml
        if nvml is None or nvml.nvmlInit_v2() != 0:
            return False
        code = nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle))
        return int(code) == 0

    def _list(self) -> list[GpuProcess] | None:
        if not self._known:
            return None
        found, count = (ProcessInfo * _MOST)(), ctypes.c_uint(_MOST)
        for version in ("_v3", "_v2"):
            ask = getattr(self._nvml, f"nvmlDeviceGetComputeRunningProcesses{version}", None)
            if ask is not None and ask(self._handle, ctypes.byref(count), found) == 0:
                return [_process(found[i]) for i in range(count.value)]
        return None


def _process(info: ProcessInfo) -> GpuProcess:
    used = int(info.usedGpuMemory)
    return GpuProcess(pid=int(info.pid), memory_bytes=None if used == _UNKNOWN_BYTES else used)


def _library() -> Any:
    """NVML, or None where there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None
