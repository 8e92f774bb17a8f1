"""Other processes on the GPU of a run, as NVML lists the processes that hold a context on it.

They are listed before the run touches the GPU and at its end: every process that was there before,
or came meanwhile, except the run itself, counts. In a container the driver may number
processes as the host does, so that the run does not find itself; then the new process with the
most memory counts as the run. Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cubemesh.measure.telemetry.nvml import NvmlUnavailable, start


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process with a context on a GPU."""

    pid: int
    """As the driver numbers it."""
    memory_bytes: int | None = None
    """GPU memory that it holds; None where the driver does not say."""


class GpuProcessWatch:
    """Watches the GPU with this UUID for other processes; create it before the run touches the GPU.
    `nvml` starts NVML and returns pynvml, or a test double."""

    def __init__(self, uuid: str | None, nvml: Callable[[], Any] = start) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if uuid is not None:
            with suppress(NvmlUnavailable):
                self._nvml = nvml()
        if self._nvml is not None:
            try:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            except self._nvml.NVMLError:
                self._nvml = None
        self._before = self._list()

    def others(self, own_pid: int | None = None) -> tuple[GpuProcess, ...] | None:
        """Other processes so far, while the run still holds its context; None where NVML does not
        list any. `own_pid` defaults to this process's."""
        now = self._list()
        if self._before is None or now is None:
            return None
        own = os.getpid() if own_pid is None else own_pid
        before = {p.pid: p for p in self._before if p.pid != own}
        came = [p for p in now if p.pid not in before and p.pid != own]
        if all(p.pid != own for p in (*self._before, *now)):
            came = sorted(came, key=lambda p: p.memory_bytes or 0)[:-1]  # the largest is the run
        return (*before.values(), *came)

    def _list(self) -> list[GpuProcess] | None:
        if self._nvml is None:
            return None
        for version in ("_v3", "_v2"):
            query = getattr(self._nvml, f"nvmlDeviceGetComputeRunningProcesses{version}", None)
            try:
                found = None if query is None else query(self._handle)
            except self._nvml.NVMLError:
                continue
            if found is not None:
                return [GpuProcess(pid=p.pid, memory_bytes=p.usedGpuMemory) for p in found]
        return None
