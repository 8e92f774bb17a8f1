"""Which device of the machine does a run need for itself?

A spec may say `auto`, and only the worker learns what that became; the lock must be taken before.
So `auto` counts as the GPU where the machine shows one. GPUs are told apart by their UUID: an index
means another GPU wherever `CUDA_VISIBLE_DEVICES` is another.
"""

from __future__ import annotations

from collections.abc import Mapping

from cubemesh.measure.telemetry.gpu_set import visible
from cubemesh.schema.machine import Gpu, Machine
from cubemesh.schema.spec import RunSpec

CUDA_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Given to workers: CUDA then numbers GPUs as NVML and the probe do, not the fastest first."""


def gpus_of(spec: RunSpec, machine: Machine, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that a run of `spec` may use; none when it runs on the CPU."""
    if spec.placement.device == "cpu":
        return ()
    return visible_gpus(machine, environ)[: spec.placement.devices]


def lock_names(spec: RunSpec, machine: Machine, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the devices to lock: UUIDs of GPUs, or `cpu`. Always in the same order, so that
    two runners never wait for one another."""
    return tuple(sorted(g.uuid for g in gpus_of(spec, machine, environ))) or ("cpu",)


def visible_gpus(machine: Machine, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The machine's GPUs as CUDA numbers them for a process with `environ`."""
    return visible(machine.gpus, environ)
