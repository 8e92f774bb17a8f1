"""This device as plans describe it."""

from __future__ import annotations

import importlib
import os

from cubemesh.cgroups import cgroup_cores
from cubemesh.errors import UsageError
from cubemesh.inference.plan_file import PlanDevice, PlanDocument
from cubemesh.machines.cpuinfo import read_cpuinfo
from cubemesh.machines.files import Tree
from cubemesh.untrusted import quoted


def this_device(threads: int | None = None, device: str = "cpu") -> PlanDevice:
    """The processor, and `threads` or as many as this process may use; the GPU where `device` is
    one. UsageError where it is not there."""
    tree = Tree()
    info = read_cpuinfo(tree)
    return PlanDevice(
        cpu=info.model or "unknown",
        instruction_sets=info.instruction_sets,
        threads=threads or usable_threads(),
        gpu="" if device == "cpu" else gpu_name(device),
    )


def check_device(device: str) -> str:
    """The kind of a device, `cpu` or `cuda`; UsageError for what is no device."""
    kind, colon, number = device.partition(":")
    if device == "cpu" or (kind == "cuda" and (number.isdigit() if colon else True)):
        return kind
    raise UsageError(f"{quoted(device)} is not a device: cpu, or cuda:N for the Nth GPU from 0.")


def gpu_name(device: str) -> str:
    """The name of a GPU; UsageError where PyTorch cannot use it."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise UsageError("A plan on a GPU needs PyTorch: pip install 'cubemesh[torch]'") from error
    number = int(device.partition(":")[2] or 0)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= count:
        found = f"it can use {count} (cuda:0 and on)" if count else "it can use none"
        raise UsageError(f"PyTorch cannot use {device}: {found}. --device cpu uses the processor.")
    name: str = torch.cuda.get_device_name(number)
    return name


def usable_threads() -> int:
    """Processors that this process may use."""
    granted = cgroup_cores(Tree().root)
    usable = len(os.sched_getaffinity(0))
    return max(1, usable if granted is None else min(usable, round(granted)))


def differences(document: PlanDocument, here: PlanDevice) -> tuple[str, ...]:
    """What a plan was built for and this device is not, a phrase each."""
    there = document.device
    if there.gpu or here.gpu:
        if there.gpu == here.gpu:
            return ()
        return (f"it was built on {there.gpu or there.cpu}, and this is {here.gpu or here.cpu}",)
    found = []
    if there.cpu != here.cpu:
        found.append(f"it was built on {there.cpu}, and this is {here.cpu}")
    missing = sorted(set(there.instruction_sets) - set(here.instruction_sets))
    added = sorted(set(here.instruction_sets) - set(there.instruction_sets))
    if missing:
        found.append(f"the processor lacks {', '.join(missing)}")
    if added and not missing:
        found.append(f"the processor also has {', '.join(added)}")
    if there.threads != here.threads:
        found.append(f"it was built for {there.threads} threads, and {here.threads} are used")
    return tuple(found)
