"""Devices that a run uses and locks.

A spec may have `device=auto`, which only the worker resolves; the lock is taken before. So `auto`
counts as the GPU where the machine has one. GPUs are identified by UUID: an index means another GPU
under another `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from cubemesh.frameworks import entry
from cubemesh.measure.telemetry.gpu_set import visible
from cubemesh.schema.machine import Gpu, Machine
from cubemesh.schema.spec import RunSpec

CUDA_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Environment of workers: CUDA then numbers GPUs as NVML and the probe do, not fastest first."""


def gpus_of(spec: RunSpec, machine: Machine, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """GPUs that a run of `spec` may use; none on the CPU."""
    if spec.placement.device == "cpu":
        return ()
    return visible(machine.gpus, environ)[: spec.placement.devices]


def is_runnable(spec: RunSpec, machine: Machine, environ: Mapping[str, str]) -> bool:
    """Whether this host has the devices and cores that a run of `spec` asks for; otherwise its
    worker only reports what is missing."""
    placement = spec.placement
    devices = placement.devices // max(1, len(placement.hosts))
    gpus = visible(machine.gpus, environ)
    if placement.device == "cuda":
        return len(gpus) >= devices
    cores = machine.cpu.usable_cores
    if (
        devices == 1
        or not cores
        or placement.oversubscribe
        or (placement.device == "auto" and gpus)
    ):
        return True  # or the worker knows
    return devices * (placement.threads or 1) <= cores


def simulated(spec: RunSpec) -> bool:
    """Whether a run of `spec` computes nothing: then it needs no device, and disturbs none."""
    sides = (spec, spec.other)
    return all(entry(one.program.framework).simulates for one in sides if one is not None)


def lock_names(spec: RunSpec, machine: Machine, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the devices to lock: UUIDs of GPUs, or `cpu`; none for a run that uses no device,
    or more than there are. Sorted, so that two runners cannot deadlock."""
    if simulated(spec) or not is_runnable(spec, machine, environ):
        return ()
    return tuple(sorted(g.uuid for g in gpus_of(spec, machine, environ))) or ("cpu",)
