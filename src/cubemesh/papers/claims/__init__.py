"""Checks of the papers' claims: each claim that records can settle has one check.

Claims about one device are checked in `one_device.py`, about several in `several_devices.py`; the
rules of a verdict are in `evidence.py`. All other claims cannot be tested here, with a reason.
"""

from __future__ import annotations

from collections.abc import Collection

from cubemesh.papers.claims import several_devices
from cubemesh.papers.claims.evidence import Check, Evidence, never, untested
from cubemesh.papers.claims.one_device import (
    accuracy_of,
    curvature_at,
    fastest_cpu_configuration,
    gpu_busy_at_32,
    gpu_busy_at_64,
    less_time_per_sample,
    sampling_cost,
    step_time_of,
    superlinear_step_time,
    throughput_of,
    throughput_ratio,
    utilization_at_least,
    utilization_of,
    waiting_in_runtime_calls,
)
from cubemesh.schema import Claim, Verdict

UNTESTED_KINDS = {
    "method": "a description of a method, not a result",
    "wish": "a proposal for future work",
    "specification": "a specification, not a measurement",
}


def check_claim(claim: Claim, evidence: Evidence, experiments: Collection[str]) -> Verdict:
    """The verdict of a claim; `experiments` are those of this version."""
    if claim.id in CHECKS:
        return CHECKS[claim.id](claim, evidence)
    if claim.kind in UNTESTED_KINDS:
        return untested(claim, claim.kind, UNTESTED_KINDS[claim.kind])
    if claim.experiment not in experiments:
        reason = f"it needs the experiment {claim.experiment}, which this version does not have"
        return untested(claim, "no-experiment", reason)
    return untested(claim, "no-check", "this version has no check for it")


CHECKS: dict[str, Check] = {
    "000-1": step_time_of("vgg16", 64),
    "000-2": step_time_of("vgg16", 128),
    "000-3": superlinear_step_time("vgg16", 64),
    "000-4": curvature_at(8),
    "000-5": curvature_at(8, ("alexnet", "overfeat")),
    "000-6": less_time_per_sample(),
    "001-1": throughput_of("little-cnn", 16),
    "001-2": throughput_of("little-cnn", None),
    "001-3": throughput_ratio("little-cnn", 64, 16),
    "001-4": accuracy_of("little-cnn", 2048, "cifar-10", 30),
    "001-5": accuracy_of("little-cnn", 16, "cifar-10", 30),
    "001-6": throughput_ratio("little-cnn", 64, 16, side=224),
    "001-7": utilization_at_least("little-cnn", (16, 32, 64, 128, 256), 224),
    "001-8": throughput_of("little-cnn", 32, side=224),
    "001-9": throughput_of("resnet-50", 32, side=224),
    "001-10": throughput_of("vgg16", 32, side=224),
    "001-11": utilization_of("little-cnn", 32, 224),
    "001-12": utilization_of("resnet-50", 32, 224),
    "001-13": utilization_of("vgg16", 32, 224),
    "001-14": never("the paper quotes TensorFlow's own page, which names no device"),
    "001-24": never("a definition, which cubemesh also uses"),
    "004-7": waiting_in_runtime_calls,
    "004-8": gpu_busy_at_32,
    "004-9": gpu_busy_at_64,
    "004-12": sampling_cost(),
    **several_devices.CHECKS,
    "004-13": fastest_cpu_configuration(),
}
"""Claims with their checks. The "VGG" of Addfor 2016 [000] is taken to be VGG-16."""
