"""GPU checks: NVIDIA driver, persistence mode, power limit, clocks, memory errors, MIG, processes.

Each is a query to NVML (NVML API reference guide); a query that a GPU or its driver does not answer
gives no check. Nothing is changed. `nvidia-smi` sets each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from cubemesh.machines.files import Tree
from cubemesh.machines.hardware.gpu_errors import read_gpu_errors
from cubemesh.machines.system_checks import Check
from cubemesh.units import format_bytes

NVIDIA = "0x10de"
"""Vendor of PCI devices."""
DISPLAYS = ("0x0300", "0x0302")
"""Class of PCI devices: VGA and 3D controllers."""
SLOWDOWNS = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""Bit of NVML's reasons for a lower clock that none but a fault or heat sets → its name."""


def gpu_checks(tree: Tree) -> list[Check]:
    """Whether the driver answers, and the checks of each GPU."""
    present = _pci_gpus(tree)
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # ImportError, or an error of NVML
        return [_no_driver(present, str(error))]
    try:
        return read_gpu_checks(pynvml)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def read_gpu_checks(nvml: Any) -> list[Check]:
    """The checks of the GPUs that `nvml` reports: pynvml, initialized, or a test double. GPUs with
    one answer share a check."""
    count = _ask(nvml, nvml.nvmlDeviceGetCount) or 0
    alike: dict[Check, list[int]] = {}
    for index in range(count):
        for check in _checks(nvml, _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)):
            alike.setdefault(check, []).append(index)
    found = [Check(code="gpu-driver", problem=False, found=f"NVIDIA GPUs: {count}")]
    return found + [_of(check, indexes) for check, indexes in alike.items()]


def _of(check: Check, indexes: Sequence[int]) -> Check:
    """`check`, for these GPUs; nvidia-smi takes the list "0,1" after `-i`."""
    numbers = ",".join(map(str, indexes))
    of = f"GPU{'' if len(indexes) == 1 else 's'} {numbers}"
    return replace(
        check, found=f"{of}: {check.found}", remedy=check.remedy.replace("-i GPUS", f"-i {numbers}")
    )


def _checks(nvml: Any, handle: Any) -> Iterator[Check]:
    """The checks of one GPU; None is one that does not answer."""
    if handle is None:
        yield Check(
            code="gpu-lost",
            problem=True,
            found="no answer",
            remedy="sudo nvidia-smi --gpu-reset -i GPUS, or restart the machine",
        )
        return
    for read in (
        *(_persistence, _power_limit, _slowdown, _memory_errors, _partitions),
        _processes,
    ):
        if (check := read(nvml, handle)) is not None:
            yield check


def _no_driver(present: int, why: str) -> Check:
    if not present:
        return Check(code="gpu-driver", problem=False, found="no NVIDIA GPU")
    return Check(
        code="gpu-driver",
        problem=True,
        found=f"{present} NVIDIA {'GPU is' if present == 1 else 'GPUs are'} present, and NVML does "
        f"not start: {why}.",
        remedy="Install NVIDIA's driver (Ubuntu: sudo ubuntu-drivers install); in a container: "
        "--gpus all of docker run.",
    )


def _pci_gpus(tree: Tree) -> int:
    """NVIDIA GPUs on the PCI bus, with or without a driver."""
    root = "/sys/bus/pci/devices"
    return sum(
        tree.text(f"{root}/{name}/vendor") == NVIDIA
        and (tree.text(f"{root}/{name}/class") or "").startswith(DISPLAYS)
        for name in tree.names(root)
    )


def _persistence(nvml: Any, handle: Any) -> Check | None:
    mode = _ask(nvml, nvml.nvmlDeviceGetPersistenceMode, handle)
    if mode is None or mode:
        return None if mode is None else _fine("gpu-persistence", "persistence mode")
    return Check(
        code="gpu-persistence",
        problem=True,
        found="persistence mode is off, so the driver unloads between runs and each "
        "run starts with a cold GPU.",
        remedy="sudo nvidia-smi -i GPUS -pm 1",
    )


def _power_limit(nvml: Any, handle: Any) -> Check | None:
    limit = _ask(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    usual = _ask(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    if limit is None or usual is None:
        return None
    if limit >= usual:
        return _fine("gpu-power-limit", f"{limit / 1000:.0f} W")
    return Check(
        code="gpu-power-limit",
        problem=True,
        found=f"the power limit is {limit / 1000:.0f} W; the default is {usual / 1000:.0f} W.",
        remedy=f"sudo nvidia-smi -i GPUS -pl {usual / 1000:.0f}",
    )


def _slowdown(nvml: Any, handle: Any) -> Check | None:
    reasons = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if reasons is None:
        return None
    active = dict.fromkeys(name for bit, name in SLOWDOWNS.items() if reasons & bit)
    if not active:
        return _fine("gpu-clocks", "no slowdown")
    return Check(
        code="gpu-clocks",
        problem=True,
        found=f"the clock is lowered now ({', '.join(active)}).",
        remedy="Let it cool down and improve cooling; look at: nvidia-smi -q -d PERFORMANCE",
    )


def _memory_errors(nvml: Any, handle: Any) -> Check | None:
    errors = read_gpu_errors(nvml, handle)
    if errors is None or errors.uncorrected is None:
        return None
    seen = []
    if errors.uncorrected:
        seen.append(f"{errors.uncorrected:,} uncorrected ECC errors since the driver was loaded")
    if errors.remap_pending:
        seen.append("a row of memory is to be remapped at the next reset")
    if errors.remap_failed:
        seen.append("remapping a row of memory failed")
    if not seen:
        return _fine("gpu-memory-errors", "no uncorrected memory error")
    return Check(
        code="gpu-memory-errors",
        problem=True,
        found=f"its memory has errors: {', '.join(seen)}.",
        remedy="sudo nvidia-smi --gpu-reset -i GPUS; if errors return, replace the GPU. Look at: "
        "nvidia-smi -q -d ECC,ROW_REMAPPER",
    )


def _partitions(nvml: Any, handle: Any) -> Check | None:
    mode = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mode is None:
        return None
    if not mode[0]:
        return _fine("gpu-partitions", "MIG off")
    return Check(
        code="gpu-partitions",
        problem=True,
        found="MIG mode is on; a run has a part of the GPU, and the datasheet's "
        "peak is that of the whole one.",
        remedy="sudo nvidia-smi -i GPUS -mig 0",
    )


def _processes(nvml: Any, handle: Any) -> Check | None:
    found = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if found is None:
        return None
    if not found:
        return _fine("gpu-processes", "no other process")
    held = format_bytes(sum(p.usedGpuMemory or 0 for p in found))
    pids = ", ".join(str(p.pid) for p in found[:5])
    return Check(
        code="gpu-processes",
        problem=True,
        found=f"{len(found)} other processes hold a context ({pids}) and {held} of its memory.",
        remedy="Stop them, or use another GPU: CUDA_VISIBLE_DEVICES.",
    )


def _fine(code: str, found: str) -> Check:
    return Check(code=code, problem=False, found=found)


def _ask(nvml: Any, query: Callable[..., Any], *arguments: Any) -> Any:
    """The answer to a query; None where NVML does not answer it."""
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None
