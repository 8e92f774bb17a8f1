"""Checks of the papers' claims: each claim has one check.

Claims about one device are checked in `one_device.py`, about several in `several_devices.py`, about
inference in `inference_engines.py`, methods and wishes in `methods.py`, all from the records of a
replay; specifications in `specifications.py` from the catalogue. A claim about machines that are
not at hand is judged by forecast (`forecasts.py`). The rules of a verdict are in `evidence.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cubemesh.papers.claims import inference_engines as inference
from cubemesh.papers.claims import methods, specifications
from cubemesh.papers.claims import one_device as one
from cubemesh.papers.claims import several_devices as several
from cubemesh.papers.claims.evidence import Check, Evidence, Untested, elsewhere
from cubemesh.papers.claims.forecasts import with_forecast
from cubemesh.schema import Basis, Claim, ClaimState, Verdict


def check_claim(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict of a claim by the records of a replay, else by forecast."""
    verdict = check_records(claim, evidence)
    untested = verdict.state is ClaimState.CANNOT_BE_TESTED_HERE
    return with_forecast(claim, verdict) if untested else verdict


def check_records(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict of a claim by the records of a replay, and by specifications."""
    try:
        verdict = CHECKS[claim.id](claim, evidence)
    except Untested as why:
        return why.verdict(claim)
    if not evidence.reduced or verdict.basis is not Basis.MEASURED:
        return verdict
    reason = f"a run with --quick settles no claim; {verdict.reason}"
    untested = Untested("reduced", reason, verdict.measured).verdict(claim)
    return replace(untested, run_id=verdict.run_id)


SERVER = "parameter-server-cpu"
"""The strategy of figure 4 in DGX-1 best practices [001]: the processor has the parameters."""

CHECKS: dict[str, Check] = {
    "000-1": partial(one.step_time, network="vgg16", batch=64),
    "000-2": partial(one.step_time, network="vgg16", batch=128),
    "000-3": partial(one.superlinear_step_time, network="vgg16", batch=64),
    "000-4": partial(one.curvature, batch=8, device="Tesla K40"),
    "000-5": partial(
        one.curvature, batch=8, networks=("alexnet", "overfeat"), device="Titan X Pascal"
    ),
    "000-6": one.less_time_per_sample,
    "000-7": methods.failures_are_outcomes,
    "000-8": methods.mean_of_runs,
    "000-9": partial(
        specifications.datasheet, device="k40", figure="memory_bytes_per_s", scale=1e9
    ),
    "000-10": partial(
        specifications.datasheet, device="titan-x-maxwell", figure="memory_bytes_per_s", scale=1e9
    ),
    "000-11": partial(
        specifications.datasheet, device="gtx-1080", figure="memory_bytes_per_s", scale=1e9
    ),
    "000-12": partial(
        specifications.datasheet, device="titan-x-pascal", figure="memory_bytes_per_s", scale=1e9
    ),
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
        specifications.quoted,
        networks=("resnet-50", "vgg16"),
        source="TensorFlow benchmarks page",
        batch=32,
    ),
    "001-15": partial(several.speed_up, network="vgg16", devices=2, batch=32, sync=SERVER),
    "001-16": partial(several.speed_up, network="resnet-50", devices=2, batch=32, sync=SERVER),
    "001-17": partial(several.speed_up, network="vgg16", devices=4, batch=32, sync=SERVER),
    "001-18": partial(
        several.speed_up_below,
        names=("resnet-50", "little-cnn"),
        devices=4,
        batch=32,
        sync=SERVER,
    ),
    "001-19": partial(
        several.slower_with_more,
        names=("little-cnn", "vgg16"),
        devices=8,
        fewer=4,
        batch=32,
        sync=SERVER,
    ),
    "001-20": partial(several.near_linear, network="resnet-50", sync="asynchronous"),
    "001-21": several.more_epochs_asynchronous,
    "001-22": partial(several.loss_by_rate, epochs=30, batch=128),
    "001-23": methods.copy_starves,
    "001-24": methods.full_utilization,
    "002-1": partial(elsewhere, needs="the GPUs of a DGX-1 V100 and of a DGX-1 P100"),
    "002-2": partial(
        several.link_gain,
        network="inception-v3",
        other="shared-memory",
        reason="it compares two machines, with NVLink and with PCIe",
    ),
    "002-3": partial(elsewhere, needs="eight V100, with NVLink and without"),
    "002-4": partial(elsewhere, needs="eight V100, with NVLink and without"),
    "002-5": partial(elsewhere, needs="eight V100, with NVLink and without"),
    "002-6": partial(
        several.bus_bandwidth, operations=("reduce", "broadcast"), system="8 V100 in a cube mesh"
    ),
    "002-7": partial(elsewhere, needs="GPUs on PCIe of an earlier generation"),
    "002-8": partial(elsewhere, needs="a cluster of 124 systems"),
    "002-9": partial(elsewhere, needs="a cluster of 124 systems"),
    "002-10": partial(elsewhere, needs="a cluster of 124 systems"),
    "002-11": partial(elsewhere, needs="a cluster of 124 systems"),
    "002-12": partial(
        specifications.peaks,
        device="v100-sxm2-16gb",
        tflops={"fp16": 125, "fp64": 7.8, "fp32": 15.7},
    ),
    "002-13": partial(
        specifications.datasheet,
        device="v100-sxm2-16gb",
        figure="memory_bytes_per_s",
        scale=1e12,
        times=8,
    ),
    "002-14": partial(elsewhere, needs="four SAS SSDs in RAID 0"),
    "002-15": partial(specifications.host_memory, system="dgx1-v100"),
    "002-16": partial(elsewhere, needs="four GPUs on a tree of PCIe switches"),
    "002-17": methods.best_batch_of_each,
    "002-18": partial(methods.reader, network="alexnet"),
    "002-19": inference.optimized_engine,
    "002-20": inference.measured_choice,
    "002-21": inference.faster_at_kept_accuracy,
    "002-22": inference.calibration_keeps_accuracy,
    "003-1": partial(elsewhere, needs="a P100 and two Xeon E5-2690 v4"),
    "003-2": partial(elsewhere, needs="four P100 and two Xeon E5-2690 v4"),
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
        elsewhere,
        needs="MXNet on hosts with two networks; here an unused faster link is the warning "
        "faster-link-unused",
    ),
    "003-10": several.days_to_train,
    "003-11": methods.throughput_formula,
    "003-12": methods.batch_and_rate,
    "003-13": partial(elsewhere, needs="a Dell C4130 in configurations B and G"),
    "004-1": partial(several.weak_efficiency, network="resnet-50", devices=8, batches=(32, 64)),
    "004-2": partial(elsewhere, needs="eight hosts with a KNL and Aries"),
    "004-3": partial(elsewhere, needs="P100 and KNL"),
    "004-4": partial(elsewhere, needs="a P100 and a KNL"),
    "004-5": partial(several.super_linear, network="cifarnet", batch=192, devices=2),
    "004-6": partial(several.rank_utilization, network="cifarnet", batch=192, devices=(2, 4, 8)),
    "004-7": partial(one.attributed, network="alexnet", batch=256, percent=one.waiting),
    "004-8": partial(one.attributed, network="resnet-50", batch=32, percent=one.gpu_busy),
    "004-9": partial(one.attributed, network="resnet-50", batch=64, percent=one.gpu_busy),
    "004-10": partial(several.message_size, network="alexnet"),
    "004-11": partial(elsewhere, needs="KNL hosts with Omni-Path and Aries"),
    "004-12": one.sampling_cost,
    "004-13": one.fastest_cpu_configuration,
    "004-14": partial(
        several.same_error_rates,
        iterations={"cifarnet": 60_000, "alexnet": 2_000, "googlenet": 1_600, "resnet-50": 2_000},
    ),
    "004-15": partial(elsewhere, needs="P100 with 16 GB, and KNL"),
    "004-16": partial(several.suffers_more, network="alexnet", than="googlenet", other="network"),
    "004-17": methods.power_domains,
    "004-18": partial(elsewhere, needs="a DGX-1 P100"),
}
"""Claim id → its check. "VGG" in Addfor 2016 [000] is read as VGG-16."""
