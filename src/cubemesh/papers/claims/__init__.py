"""Does a document's claim hold here? Each claim that records can settle has one check.

Checks of one device are made in `one_device.py` and `breakdown.py`, those of several in
`scaling.py` and `several_devices.py`. Everything else cannot be tested here, and the reason says
what it would take. `verdicts.py` has the rule by which a figure holds.
"""

from __future__ import annotations

from collections.abc import Collection

from cubemesh.papers.claims import scaling, several_devices
from cubemesh.papers.claims.breakdown import busy_at_32, busy_at_64, waiting_share
from cubemesh.papers.claims.evidence import Check, Evidence
from cubemesh.papers.claims.one_device import (
    accuracy_of,
    bend_at,
    dearer_than_double,
    fastest_arrangement,
    less_time_per_sample,
    sampling_cost,
    step_time_of,
    throughput_of,
    throughput_ratio,
    utilisation_at_least,
    utilisation_of,
)
from cubemesh.papers.claims.verdicts import never, untested
from cubemesh.schema import Claim, Verdict

UNTESTED_KINDS = {
    "method": "it says how something was done, not what came of it",
    "wish": "it is a wish for further work",
    "specification": "it is a specification, not a measurement",
}


def judge(claim: Claim, evidence: Evidence, offered: Collection[str]) -> Verdict:
    """What comes of a claim; `offered` are the experiments this version has."""
    if claim.id in CHECKS:
        return CHECKS[claim.id](claim, evidence)
    if claim.kind in UNTESTED_KINDS:
        return untested(claim, UNTESTED_KINDS[claim.kind])
    if claim.experiment not in offered:
        return untested(
            claim, f"it needs the experiment {claim.experiment}, which this version does not offer"
        )
    return untested(claim, "this version has no check for it")


CHECKS: dict[str, Check] = {
    **scaling.CHECKS,
    "000-1": step_time_of("vgg16", 64),
    "000-2": step_time_of("vgg16", 128),
    "000-3": dearer_than_double("vgg16", 64),
    "000-4": bend_at(8),
    "000-5": bend_at(8, ("alexnet", "overfeat")),
    "000-6": less_time_per_sample(),
    "001-1": throughput_of("little-cnn", 16),
    "001-2": throughput_of("little-cnn", None),
    "001-3": throughput_ratio("little-cnn", 64, 16),
    "001-4": accuracy_of("little-cnn", 2048, "cifar-10", 30),
    "001-5": accuracy_of("little-cnn", 16, "cifar-10", 30),
    "001-6": throughput_ratio("little-cnn", 64, 16, side=224),
    "001-7": utilisation_at_least("little-cnn", (16, 32, 64, 128, 256), 224),
    "001-8": throughput_of("little-cnn", 32, side=224),
    "001-9": throughput_of("resnet-50", 32, side=224),
    "001-10": throughput_of("vgg16", 32, side=224),
    "001-11": utilisation_of("little-cnn", 32, 224),
    "001-12": utilisation_of("resnet-50", 32, 224),
    "001-13": utilisation_of("vgg16", 32, 224),
    "001-14": never("the document takes these from TensorFlow's own page: no device is named"),
    "001-24": never("it is a definition, and cubemesh keeps to it"),
    "004-7": waiting_share,
    "004-8": busy_at_32,
    "004-9": busy_at_64,
    "004-12": sampling_cost(),
    **several_devices.CHECKS,
    "004-13": fastest_arrangement(),
}
"""The claims that records can settle. Document 000's "VGG" is taken for VGG-16."""
