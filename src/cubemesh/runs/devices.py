"""Devices that a run uses and locks.

A spec may have `device=auto`, which only the worker resolves; the lock is taken before. So `auto`
counts as the GPU where the machine has one. GPUs are identified by UUID: an index means another GPU
under another `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def lock_names(spec: RunSpec, machine: Machine, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the devices to lock: UUIDs of GPUs, or `cpu`. Sorted, so that two runners cannot
    deadlock."""
    return tuple(sorted(g.uuid for g in gpus_of(spec, machine, environ))) or ("cpu",)
