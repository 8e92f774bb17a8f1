"""Which GPUs does a process see, in the order in which CUDA numbers them?

NVML lists all of a host, in PCI order; `CUDA_VISIBLE_DEVICES` chooses among them and puts them into
its own. The runner knows its machine's from the probe; on another host the worker asks here.
Source: NVML API reference, nvmlDeviceGetHandleByIndex; CUDA C++ Programming Guide, CUDA environment
variables.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cubemesh.measure.telemetry.nvml import LIBRARY, Device, Refused, listed
from cubemesh.schema.machine import Gpu


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """`gpus`, those of a host, as CUDA numbers them for a process with `environ`.

    `CUDA_VISIBLE_DEVICES` holds indices or (beginnings of) UUIDs; as in CUDA, the first that is
    not there hides all that follow.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for name in (part.strip() for part in chosen.split(",")):
        matching = [g for g in gpus if name and (str(g.index) == name or _is(g, name))]
        if len(matching) != 1:
            break
        found.append(matching[0])
    return tuple(found)


def _is(gpu: Gpu, name: str) -> bool:
    return name.startswith("GPU-") and gpu.uuid.startswith(name)


def read_gpus(nvml: Any = None) -> tuple[Gpu, ...]:
    """This host's GPUs by index, UUID, name and memory; none where NVML does not tell. `nvml` is
    the loaded library, or what answers as it does. It is shut down again, however often it was
    started, so that a fork of this process may start it for itself."""
    try:
        nvml = ctypes.CDLL(LIBRARY) if nvml is None else nvml
        uuids = listed(nvml)
    except (OSError, Refused):
        return ()
    found = tuple(_read(nvml, index, uuid) for index, uuid in enumerate(uuids))
    while nvml.nvmlShutdown() == 0:  # it counts its starts
        pass
    return found


def _read(nvml: Any, index: int, uuid: str) -> Gpu:
    name, memory_bytes = "", None
    with suppress(Refused):
        device = Device(nvml, uuid)
        name = device.name()
        memory_bytes = device.memory_bytes()
    return Gpu(index=index, name=name, uuid=uuid, memory_bytes=memory_bytes)
