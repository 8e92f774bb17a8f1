"""Checks of the papers' claims: each claim that records can settle has one check.

Claims about one device are checked in `one_device.py`, about several in `several_devices.py`, about
inference in `inference_engines.py`; the rules of a verdict are in `evidence.py`. All other claims
cannot be tested here, with a reason.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from cubemesh.papers.claims import inference_engines as inference
from cubemesh.papers.claims import one_device as one
from cubemesh.papers.claims import several_devices as several
from cubemesh.papers.claims.evidence import Check, Evidence, Untested, never
from cubemesh.schema import Claim, Verdict

UNTESTED_KINDS = {
    "method": "a description of a method, not a result",
    "wish": "a proposal for future work",
    "specification": "a specification, not a measurement",
}


def check_claim(claim: Claim, evidence: Evidence, experiments: Collection[str]) -> Verdict:
    """The verdict of a claim; `experiments` are those of this version."""
    try:
        if claim.id in CHECKS:
            return CHECKS[claim.id](claim, evidence)
    except Untested as why:
        return why.verdict(claim)
    if claim.kind in UNTESTED_KINDS:
        return Untested(claim.kind, UNTESTED_KINDS[claim.kind]).verdict(claim)
    if claim.experiment not in experiments:
        reason = f"it needs the experiment {claim.experiment}, which this version does not have"
        return Untested("no-experiment", reason).verdict(claim)
    return Untested("no-check", "this version has no check for it").verdict(claim)


CHECKS: dict[str, Check] = {
    "000-1": partial(one.step_time, network="vgg16", batch=64),
    "000-2": partial(one.step_time, network="vgg16", batch=128),
    "000-3": partial(one.superlinear_step_time, network="vgg16", batch=64),
    "000-4": partial(one.curvature, batch=8),
    "000-5": partial(one.curvature, batch=8, networks=("alexnet", "overfeat")),
    "000-6": one.less_time_per_sample,
    "001-1": partial(one.throughput, network="little-cnn", batch=16),
    "001-2": partial(one.throughput, network="little-cnn"),
    "001-3": partial(one.throughput_ratio, network="little-cnn", batch=64, over=16),
    "001-4": partial(one.accuracy, network="little-cnn", batch=2048, data="cifar-10", epochs=30),
    "001-5": partial(one.accuracy, network="little-cnn", batch=16, data="cifar-10", epochs=30),
    "001-6": partial(one.throughput_ratio, network="little-cnn", batch=64, over=16, side=224),
    "001-7": partial(
        one.utilization_at_least, network="little-cnn", batches=(16, 32, 64, 128, 256), side=224
    ),
    "001-8": partial(one.throughput, network="little-cnn", batch=32, side=224),
    "001-9": partial(one.throughput, network="resnet-50", batch=32, side=224),
    "001-10": partial(one.throughput, network="vgg16", batch=32, side=224),
    "001-11": partial(one.utilization, network="little-cnn", batch=32, side=224),
    "001-12": partial(one.utilization, network="resnet-50", batch=32, side=224),
    "001-13": partial(one.utilization, network="vgg16", batch=32, side=224),
    "001-14": partial(
        never, reason="the paper quotes TensorFlow's own page, which names no device"
    ),
    "001-15": partial(several.speed_up, network="vgg16", devices=2, batch=32),
    "001-16": partial(several.speed_up, network="resnet-50", devices=2, batch=32),
    "001-17": partial(several.speed_up, network="vgg16", devices=4, batch=32),
    "001-18": partial(several.speed_up_below, names=("resnet-50", "little-cnn"), devices=4),
    "001-19": partial(several.slower_with_more, names=("little-cnn", "vgg16"), devices=8, fewer=4),
    "001-20": partial(several.near_linear, network="resnet-50", sync="asynchronous"),
    "001-21": several.more_epochs_asynchronous,
    "001-22": several.loss_by_rate,
    "001-24": partial(never, reason="a definition, which cubemesh also uses"),
    "002-2": partial(
        several.link_gain,
        network="inception-v3",
        other="shared-memory",
        reason="it compares two machines, with NVLink and with PCIe",
    ),
    "002-6": partial(
        several.bus_bandwidth, operations=("reduce", "broadcast"), system="8 V100 in a cube mesh"
    ),
    "002-7": partial(never, reason="a claim about earlier generations of PCIe"),
    "002-16": partial(
        never,
        reason="it needs four GPUs on a tree of PCIe switches, and control of the sending order",
    ),
    "002-19": inference.optimized_engine,
    "002-20": inference.measured_choice,
    "002-21": inference.faster_at_kept_accuracy,
    "002-22": inference.calibration_keeps_accuracy,
    "003-3": partial(several.speed_up, network="googlenet", devices=4),
    "003-4": partial(several.speed_up, network="inception-v3", devices=4),
    "003-5": partial(several.speed_up, network="googlenet", devices=16),
    "003-6": partial(several.speed_up, network="inception-bn", devices=16),
    "003-7": partial(several.weak_efficiency, network="inception-bn", devices=8, batches=(64,)),
    "003-8": partial(
        several.link_gain,
        network="googlenet",
        other="network",
        reason="it needs four hosts with two networks",
    ),
    "003-9": partial(
        never,
        reason="a claim about MXNet; here an unused faster link is the warning faster-link-unused",
    ),
    "003-10": several.days_to_train,
    "004-1": partial(several.weak_efficiency, network="resnet-50", devices=8, batches=(32, 64)),
    "004-2": partial(never, reason="a claim about KNLs of several hosts"),
    "004-5": partial(several.super_linear, network="cifarnet", batch=192, devices=2),
    "004-6": partial(several.rank_utilization, network="cifarnet", batch=192, devices=(2, 4, 8)),
    "004-7": partial(one.attributed, network="alexnet", batch=256, percent=one.waiting),
    "004-8": partial(one.attributed, network="resnet-50", batch=32, percent=one.gpu_busy),
    "004-9": partial(one.attributed, network="resnet-50", batch=64, percent=one.gpu_busy),
    "004-10": partial(several.message_size, network="alexnet"),
    "004-11": partial(never, reason="a claim about KNLs with Omni-Path and Aries"),
    "004-12": one.sampling_cost,
    "004-13": one.fastest_cpu_configuration,
    "004-14": several.same_error_rates,
    "004-15": partial(never, reason="a claim about the memory of a P100 with Caffe"),
    "004-16": partial(several.suffers_more, network="alexnet", than="googlenet", other="network"),
}
"""Claim id → its check. "VGG" in Addfor 2016 [000] is read as VGG-16."""
