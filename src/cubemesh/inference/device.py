"""This device as plans describe it."""

from __future__ import annotations

import os

from cubemesh.cgroups import cgroup_cores
from cubemesh.inference.plan_file import PlanDevice, PlanDocument
from cubemesh.machines.cpuinfo import read_cpuinfo
from cubemesh.machines.files import Tree


def this_device(threads: int | None = None) -> PlanDevice:
    """The processor, and `threads` or as many as this process may use."""
    tree = Tree()
    info = read_cpuinfo(tree)
    return PlanDevice(
        cpu=info.model or "unknown",
        instruction_sets=info.instruction_sets,
        threads=threads or usable_threads(),
    )


def usable_threads() -> int:
    """Processors that this process may use."""
    granted = cgroup_cores(Tree().root)
    usable = len(os.sched_getaffinity(0))
    return max(1, usable if granted is None else min(usable, round(granted)))


def differences(document: PlanDocument, here: PlanDevice) -> tuple[str, ...]:
    """What a plan was built for and this device is not, a phrase each."""
    there = document.device
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
