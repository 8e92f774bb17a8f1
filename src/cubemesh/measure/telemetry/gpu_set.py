"""GPUs that a process sees, in CUDA's order: NVML's list, filtered by CUDA_VISIBLE_DEVICES.

The runner knows its machine's GPUs from the probe; on another host the worker reads them here.
Source: NVML API reference, nvmlDeviceGetHandleByIndex; CUDA C++ Programming Guide, CUDA environment
variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cubemesh.measure.telemetry.nvml import NvmlUnavailable, start
from cubemesh.schema.machine import Gpu


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs of a host that a process with `environ` sees, in CUDA's order.

    `CUDA_VISIBLE_DEVICES` holds indices or UUID prefixes; as in CUDA, the first that does not exist
    hides all that follow.
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


def gpu_of(device: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU that `device` (`cuda:N`) is in CUDA's order; None for any other device."""
    kind, _, number = device.partition(":")
    known = kind == "cuda" and number.isdecimal() and int(number) < len(gpus)
    return gpus[int(number)] if known else None


def _is(gpu: Gpu, name: str) -> bool:
    return name.startswith("GPU-") and gpu.uuid.startswith(name)


def read_gpus(nvml: Callable[[], Any] = start) -> tuple[Gpu, ...]:
    """This host's GPUs by index, UUID, name and memory; none where NVML does not list them. NVML is
    shut down again, so that a fork of this process can start it."""
    try:
        library = nvml()
    except NvmlUnavailable:
        return ()
    found: tuple[Gpu, ...] = ()
    with suppress(library.NVMLError):
        found = tuple(_read(library, n) for n in range(library.nvmlDeviceGetCount()))
    with suppress(library.NVMLError):
        library.nvmlShutdown()
    return found


def pci_addresses(uuids: Sequence[str], nvml: Callable[[], Any] = start) -> tuple[str, ...]:
    """The PCI address of each GPU as the kernel writes it, `0000:1b:00.0`; none where NVML does not
    report all. NVML is shut down again."""
    try:
        library = nvml()
    except NvmlUnavailable:
        return ()
    found: tuple[str, ...] = ()
    with suppress(library.NVMLError):
        handles = [library.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        found = tuple(_kernel_address(library.nvmlDeviceGetPciInfo(h).busId) for h in handles)
    with suppress(library.NVMLError):
        library.nvmlShutdown()
    return found


def _kernel_address(bus_id: str | bytes) -> str:
    """NVML's domain has eight digits, the kernel's four or more."""
    text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _read(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid, name, memory_bytes = nvml.nvmlDeviceGetUUID(handle), "", None
    with suppress(nvml.NVMLError):
        name = nvml.nvmlDeviceGetName(handle)
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return Gpu(index=index, name=name, uuid=uuid, memory_bytes=memory_bytes)
