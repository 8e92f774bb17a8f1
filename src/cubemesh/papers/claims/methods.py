"""Checks of methods, definitions and wishes: whether a replay followed the paper's method, and what
it found.

A method or wish *holds* where the records of the replay show that it was followed; what they lack
is named otherwise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cubemesh.experiments.analysis.ratios import ratio
from cubemesh.experiments.minibatch.input_bound import BUSY_PERCENT
from cubemesh.papers.claims.evidence import Evidence, Untested, settled, sided
from cubemesh.schema import (
    Basis,
    Claim,
    Figure,
    Forward,
    ForwardBackward,
    Infer,
    NetworkWork,
    RunRecord,
    Status,
    Train,
    TrainSteps,
    Verdict,
)
from cubemesh.units import format_list

SAME = 0.02
"""Largest relative difference of two computations of one figure."""
RUNS_OF_A_MEAN = 100
"""Runs that Addfor 2016 [000] averages."""
POWER_NETWORKS = 4
"""Networks whose power the power and performance paper [004] measures."""


def failures_are_outcomes(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether runs that need too much memory have that as their outcome, and no run is without a
    figure for no reason; and which frameworks ran most networks. Frameworks that are not installed
    are ignored."""
    runs = [r for r in evidence.records if isinstance(r.spec.work, TrainSteps)]
    if not runs:
        raise Untested("not-measured", "no framework was measured")
    failed = [r for r in runs if "throughput_per_s" not in r.figures]
    full = [r for r in failed if r.outcome.status is Status.OOM]
    if not full:
        raise Untested("not-measured", f"0 of {len(runs)} runs were out of memory")
    unnamed = [r for r in failed if r.ok]
    frameworks = Counter(r.spec.program.framework for r in runs if "throughput_per_s" in r.figures)
    most = max(frameworks.values(), default=0)
    all_of = [name for name, count in frameworks.items() if count == most]
    reason = (
        f"{len(full)} of {len(runs)} runs have no figure, as they were out of memory; most "
        f"networks ran with {format_list(sorted(all_of))}"
    )
    figure = Figure(value=len(full), unit="runs")
    return settled(claim, not unnamed, "followed", reason, figure)


def mean_of_runs(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether forward passes and training steps were averaged over as many steps as in the paper,
    at its batch size."""
    counts = {}
    for kind in ((Forward, Infer), (ForwardBackward, TrainSteps)):
        own = [
            r
            for r in evidence.records
            if isinstance(r.spec.work, kind)
            and isinstance(r.spec.work, NetworkWork)
            and r.spec.work.batch_per_device == 64
            and "throughput_per_s" in r.figures
        ]
        counts[kind] = [sum(w.steps for w in r.windows if w.phase == "measure") for r in own]
    if not all(counts.values()):
        raise Untested("not-measured", "forward and training were not both measured at 64 samples")
    least = min(min(steps) for steps in counts.values())
    figure = Figure(value=least, unit="runs")
    reason = f"fewest steps of a mean, at 64 samples: {least}"
    if least < RUNS_OF_A_MEAN:
        raise Untested("fewer-runs", f"{reason}; the paper's are {RUNS_OF_A_MEAN}", figure)
    return settled(claim, True, "followed", reason, figure)


def copy_starves(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether copying each batch from the host costs more, relative to the step, at the smallest
    batch size than at the largest: on a GPU, for the network with the most batch sizes."""
    resident = _by_batch(evidence, "device")
    copied = _by_batch(evidence, "host")
    batches = sorted(resident.keys() & copied.keys())
    if len(batches) < 2:
        reason = "no network was measured with data on the host and on the device"
        raise Untested("not-measured", reason)
    small, large = batches[0], batches[-1]
    losses = [ratio(copied[b], resident[b]) for b in (small, large)]
    what = (
        f"throughput with data on the host over data on the device, batch size {small[1]} over "
        f"{large[1]}"
    )
    if all(rank.device == "cpu" for r in evidence.records for rank in r.ranks):
        raise Untested("no-gpu", "a claim about copies from CPU to GPU")
    return sided(claim, ratio(*losses), 1.0, -1.0, what)


def _by_batch(evidence: Evidence, location: str) -> dict[tuple[str, int], Figure]:
    """Throughput by network and batch size, with data there; of one network."""
    found: dict[tuple[str, int], Figure] = {}
    for record in evidence.records:
        work = record.spec.work
        on = record.spec.program.data_location == location
        if isinstance(work, TrainSteps) and on and "throughput_per_s" in record.figures:
            key = (f"{work.network} {work.image_size or ''}", work.batch_per_device)
            found[key] = record.figures["throughput_per_s"]
    if not found:
        return {}
    name = Counter(name for name, _ in found).most_common(1)[0][0]
    return {key: figure for key, figure in found.items() if key[0] == name}


def full_utilization(claim: Claim, evidence: Evidence) -> Verdict:
    """The definition of a fully utilized GPU, which cubemesh shares."""
    figure = Figure(value=BUSY_PERCENT, unit="%")
    holds = claim.values == (BUSY_PERCENT,)
    verdict = settled(claim, holds, "definition", "the threshold of findings here too", figure)
    return replace(verdict, measured=None, basis=Basis.SPECIFICATION)


def best_batch_of_each(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether at least two frameworks trained ResNet-50 on several devices, each at the fastest of
    several batch sizes."""
    rates: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for record in evidence.records:
        work, program = record.spec.work, record.spec.program
        rate = record.figure("throughput_per_s")
        if not isinstance(work, TrainSteps) or rate is None or work.network != "resnet-50":
            continue
        at = (record.spec.placement.devices, work.batch_per_device)
        rates.setdefault((program.framework, program.precision), {})[at] = rate
    best: dict[str, str] = {}
    for (framework, precision), own in rates.items():
        searched = max((d for d, _ in own), key=lambda d: sum(n == d for n, _ in own))
        batches = {batch: rate for (d, batch), rate in own.items() if d == searched}
        fastest = max(batches, key=lambda batch: batches[batch])
        if len(batches) > 1 and any(d > 1 and batch == fastest for d, batch in own):
            of = format_list(map(str, sorted(batches)))
            best.setdefault(framework, f"{framework} in {precision}: {fastest} of {of}")
    if len(best) < 2:
        reason = (
            "it needs ResNet-50 on several devices in two frameworks, each at the fastest of "
            "several batch sizes"
        )
        raise Untested("not-measured", reason)
    figure = Figure(value=len(best), unit="frameworks")
    reason = f"fastest batch sizes per device, {'; '.join(best.values())}"
    return settled(claim, True, "followed", reason, figure)


def throughput_formula(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether throughput is batch size × steps × devices / time in every run, recomputed from its
    windows."""
    off, count = 0.0, 0
    for record in evidence.records:
        work = record.spec.work
        if not isinstance(work, TrainSteps) or "throughput_per_s" not in record.figures:
            continue
        windows = [w for w in record.windows if w.phase == "measure" and w.rank == 0]
        seconds, steps = sum(w.elapsed_s for w in windows), sum(w.steps for w in windows)
        if not seconds or not steps:
            continue
        computed = (record.spec.global_batch or 0) * steps / seconds
        off = max(off, abs(computed / record.figures["throughput_per_s"].value - 1))
        count += 1
    if not count:
        raise Untested("not-measured", "no training steps were timed")
    figure = Figure(value=100 * off, unit="%")
    reason = f"largest difference of {count} run{'s' * (count > 1)} from batch × N / M, in percent"
    return settled(claim, off <= SAME, "followed", reason, figure)


def batch_and_rate(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether trainings at several batch sizes and learning rates show their influence on speed
    and accuracy."""
    trained = (r for r in evidence.records if isinstance(r.spec.work, Train))
    runs = [r for r in trained if "accuracy" in r.figures]
    batches = sorted({_train(r).batch_per_device for r in runs})
    rates = sorted({_train(r).learning_rate for r in runs})
    if len(batches) < 2 or len(rates) < 2:
        reason = "it needs trainings at two batch sizes and two learning rates"
        raise Untested("not-measured", reason)
    accuracies = [100 * r.figures["accuracy"].value for r in runs]
    figure = Figure(value=max(accuracies) - min(accuracies), unit="%")
    reason = (
        f"answered: batch sizes {batches[0]} to {batches[-1]} and learning rates {rates[0]:g} to "
        f"{rates[-1]:g}; accuracy {min(accuracies):.1f} to {max(accuracies):.1f} %"
    )
    return settled(claim, True, "answered", reason, figure)


def _train(record: RunRecord) -> Train:
    assert isinstance(record.spec.work, Train)
    return record.spec.work


def power_domains(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether the measured power of four networks is of GPUs alone, or of processor packages and
    DRAM, without the network."""
    powered = [r for r in evidence.records if "mean_power_watts" in r.figures]
    if not powered:
        raise Untested("no-power-sensor", "no power sensor is readable here")
    works = (r.spec.work for r in powered)
    count = len({work.network for work in works if isinstance(work, NetworkWork)})
    powers = [r.figures["mean_power_watts"] for r in powered]
    reason = f"power of {format_list(sorted({figure.method for figure in powers}))}"
    if count < POWER_NETWORKS:
        missing = f"networks with power: {count}, the paper's are {POWER_NETWORKS}; {reason}"
        raise Untested("not-measured", missing, powers[0])
    included = [figure.method.partition(";")[0] for figure in powers]
    mixed = any("GPU board" in parts and "CPU package" in parts for parts in included)
    network = any("network" in parts for parts in included)
    return settled(claim, not mixed and not network, "followed", reason, powers[0])


def reader(claim: Claim, evidence: Evidence, network: str) -> Verdict:
    """Whether images are decoded faster than the claim's rate, by the fastest stage that decodes
    for this network."""
    found = [
        r
        for r in evidence.records
        if isinstance(r.spec.work, NetworkWork)
        and r.spec.work.network == network
        and getattr(r.spec.work, "stage", "") == "decode"
        and "throughput_per_s" in r.figures
    ]
    if not found:
        raise Untested("not-measured", f"the input of {network} was not measured")
    best = max(found, key=lambda r: r.figures["throughput_per_s"].value)
    where = best.spec.program.decode_location
    what = f"images decoded for {network} on the {where}"
    return sided(claim, best.figures["throughput_per_s"], claim.values[0], 1.0, what)
