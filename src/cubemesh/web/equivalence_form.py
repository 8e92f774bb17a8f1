"""Equivalence of a training on several devices: the fields of the form of `sequential-equivalence`,
which asks whether it computes what one device computes, for the settings of a run."""

from __future__ import annotations

from cubemesh.experiments.sequential_equivalence.experiment import SAME_STEPS
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.networks import NETWORKS
from cubemesh.schema import Machine, RunSpec
from cubemesh.schema.work import Train, TrainSteps

EXPERIMENT = "sequential-equivalence"
_LEAST_BATCH = 16
"""Global batch size, or the next multiple of the number of devices."""


def equivalence_fields(spec: RunSpec, machine: Machine | None) -> dict[str, str] | None:
    """The fields of the form for the network, framework, number of devices and strategy of a spec;
    for one device those for two, and on the CPU where the machine has fewer GPUs. None where a page
    cannot ask that of it."""
    work, framework = spec.work, spec.program.framework
    if not isinstance(work, Train | TrainSteps) or work.network not in NETWORKS:
        return None
    if work.own_data is not None or framework not in FRAMEWORKS or FRAMEWORKS[framework].simulates:
        return None
    devices = max(2, spec.placement.devices)
    fields = {
        "networks": work.network,
        "devices": f"1,{devices}",
        "framework": framework,
        "global_batch_sizes": str(-(-_LEAST_BATCH // devices) * devices),
        "scale": "quick",
    }
    if machine is None or len(machine.gpus) < devices:
        fields["device"] = "cpu"
    if spec.placement.devices > 1:
        if spec.program.sync not in SAME_STEPS:
            return None
        fields["strategies"] = spec.program.sync
    return fields
