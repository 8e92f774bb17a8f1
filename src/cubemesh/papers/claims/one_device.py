"""Checks of claims about one device: throughput by batch size, accuracy, utilization, time
breakdown.

Ratios, directions and curvature are tested on any machine; absolute figures on the paper's device
only, elsewhere the measurement is shown; accuracies on the paper's data and epochs only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.ratios import bounds
from cubemesh.experiments.cpu_modes.report import gain
from cubemesh.experiments.minibatch.curvature import sample_ms, second_difference
from cubemesh.experiments.minibatch.input_bound import device_utilization
from cubemesh.papers.claims.evidence import (
    Evidence,
    Untested,
    absolute,
    close,
    every,
    rate,
    rate_ratio,
    scaled,
    sided,
)
from cubemesh.schema import Claim, Figure, NetworkWork, RunRecord, Train, Verdict

Percent = Callable[[RunRecord], Figure | None]
"""A percentage of the step of one run; None if it was not attributed."""


def throughput(
    claim: Claim,
    evidence: Evidence,
    network: str,
    batch: int | None = None,
    side: int | None = None,
) -> Verdict:
    """Samples/s at a batch size (None: the fastest one) on the paper's device."""
    groups = evidence.steps(network, side)
    key = batch or max(groups, key=lambda b: rate(groups[b]).value, default=None)
    (group,) = evidence.at(network, (key,), side)
    return absolute(claim, evidence, rate(group), f"at batch size {key}", group)


def step_time(claim: Claim, evidence: Evidence, network: str, batch: int) -> Verdict:
    """Step time in milliseconds at a batch size on the paper's device."""
    (group,) = evidence.at(network, (batch,))
    assert group.step_ms is not None
    return absolute(claim, evidence, group.step_ms, f"at batch size {batch}", group)


def throughput_ratio(
    claim: Claim, evidence: Evidence, network: str, batch: int, over: int, side: int | None = None
) -> Verdict:
    """Throughput at one batch size over that at another, on any machine."""
    groups = evidence.at(network, (batch, over), side)
    what = f"{network}, throughput at batch size {batch} over {over}"
    return close(claim, rate_ratio(*groups), what, *groups)


def superlinear_step_time(claim: Claim, evidence: Evidence, network: str, batch: int) -> Verdict:
    """Whether doubling the batch size more than doubles the step time, on any machine."""
    groups = evidence.at(network, (2 * batch, batch))
    rates = rate_ratio(*groups)
    low, high = bounds(rates)
    time = Figure(value=2 / rates.value, unit="x", low=2 / high, high=2 / low)
    what = f"{network}, step time at batch size {2 * batch} over {batch}, compared with 2"
    return sided(claim, time, 2.0, 1.0, what, *groups)


def less_time_per_sample(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether a sample takes less time at the largest batch size than at the smallest, for every
    network that was measured."""

    def one(network: str) -> Verdict:
        batches = list(evidence.steps(network))
        if len(batches) < 2:
            raise Untested("not-measured", f"{network} was measured at one batch size only")
        groups = evidence.at(network, (batches[0], batches[-1]))
        what = f"{network}, time per sample at batch size {batches[-1]} over {batches[0]}"
        return sided(claim, rate_ratio(*groups), 1.0, -1.0, what, *groups)

    return every(claim, evidence.networks(), one)


def curvature(
    claim: Claim,
    evidence: Evidence,
    batch: int,
    device: str,
    networks: tuple[str, ...] = (),
) -> Verdict:
    """Sign of the second difference of the time per sample over doublings of the batch size, for
    every network of `networks` (default: all) measured on both sides; on the paper's device only,
    as the paper has the opposite sign for another."""
    around = (batch // 2, batch, 2 * batch)

    def one(network: str) -> Verdict:
        groups = evidence.at(network, around)
        times = [f for g in groups if (f := sample_ms(g)) is not None]
        difference = second_difference(times, "ms/sample")
        what = f"{network}, curvature of the time per sample at batch size {batch}"
        if not evidence.ran_on(device):
            raise Untested(
                "other-device",
                f"a claim about the curvature on a {device}; here {what}",
                difference,
                groups,
            )
        return sided(claim, difference, 0.0, claim.values[0], what, *groups)

    named = [n for n in evidence.networks() if not networks or n in networks]
    full = [n for n in named if evidence.steps(n).keys() >= set(around)]
    return every(claim, full or named, one)


def accuracy(
    claim: Claim, evidence: Evidence, network: str, batch: int, data: str, epochs: int
) -> Verdict:
    """Validation accuracy after the paper's epochs on the paper's data."""
    records = evidence.trainings(network, batch)
    if not records:
        raise Untested("not-measured", f"{network} at batch size {batch} was not measured")
    work = records[-1].spec.work
    assert isinstance(work, Train)
    figure = scaled(records[-1].figures["accuracy"], 100.0, "%")
    if work.data != data:
        raise Untested("other-data", f"trained on {work.data}, the paper on {data}", figure)
    if work.epochs != epochs:
        reason = f"trained for {work.epochs} epochs, the paper for {epochs}"
        raise Untested("other-epochs", reason, figure)
    verdict = close(claim, figure, f"{network}, accuracy at batch size {batch}")
    return replace(verdict, run_id=records[-1].run_id)


def utilization(claim: Claim, evidence: Evidence, network: str, batch: int, side: int) -> Verdict:
    """Utilization of the paper's device in percent."""
    group, figure = _lowest_utilization(evidence, network, (batch,), side)
    return absolute(claim, evidence, figure, f"at batch size {batch}", group)


def utilization_at_least(
    claim: Claim, evidence: Evidence, network: str, batches: tuple[int, ...], side: int
) -> Verdict:
    """Whether the utilization of a GPU is at least the claim's at each of these batch sizes."""
    group, figure = _lowest_utilization(evidence, network, batches, side)
    what = f"{network}, lowest utilization, at batch size {group.key}"
    return sided(claim, figure, claim.values[0], 1.0, what, group)


def _lowest_utilization(
    evidence: Evidence, network: str, batches: tuple[int, ...], side: int
) -> tuple[Group[int], Figure]:
    """The runs with the lowest utilization of a GPU, in percent."""
    found = []
    for group in evidence.at(network, batches, side):
        busy = device_utilization(group)
        if busy is None:
            reason = f"the utilization at batch size {group.key} was not measured"
            raise Untested("not-measured", reason)
        found.append((group, *busy))
    group, kind, percent = min(found, key=lambda one: one[2])
    figure = Figure(value=percent, unit="%")
    if kind != "GPU":
        raise Untested("no-gpu", f"a claim about a GPU; measured on the {kind}", figure)
    return group, figure


def sampling_cost(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether sampling power costs less than the paper allows: the highest fraction of a run's CPU
    time, an upper bound of the performance it costs where the CPU is the limit."""
    costs = [v for r in evidence.records if (v := r.figure("telemetry_cpu_percent"))]
    if not costs:
        raise Untested("not-measured", "no run has the cost of sampling")
    figure = Figure(value=max(costs), unit="%")
    if not any("mean_power_watts" in r.figures for r in evidence.records):
        reason = "no power sensor is readable here; cost of the other sensors"
        raise Untested("no-power-sensor", reason, figure)
    what = "highest CPU time of sampling every 0.5 s, in percent of the run's"
    return sided(claim, figure, claim.values[0], -1.0, what)


def fastest_cpu_configuration(claim: Claim, evidence: Evidence) -> Verdict:
    """Modes that firmware sets; the fastest configuration of those a user can choose."""
    reason = "it compares clustering and memory modes of a KNL, which its firmware sets"
    found = gain(evidence.records)
    if found is None:
        raise Untested("not-testable", reason)
    here = f"here: fastest CPU configuration over the default, {found[0]}"
    raise Untested("not-testable", f"{reason}; {here}", found[1])


def attributed(
    claim: Claim,
    evidence: Evidence,
    network: str,
    batch: int,
    percent: Percent,
) -> Verdict:
    """A percentage of an attributed step on the paper's device."""
    found = [
        figure
        for record in evidence.records
        if _is(record, network, batch) and (figure := percent(record)) is not None
    ]
    what = f"{network} at batch size {batch}, {PERCENT_OF[percent]}"
    if not found:
        raise Untested("not-measured", f"{what}: not measured on a GPU")
    return absolute(claim, evidence, found[-1], what)


def _is(record: RunRecord, network: str, batch: int) -> bool:
    work = record.spec.work
    return (
        record.ok
        and isinstance(work, NetworkWork)
        and (work.network, work.batch_per_device) == (network, batch)
    )


def gpu_busy(record: RunRecord) -> Figure | None:
    """Time in which the GPU is busy. The paper's "occupancy rate" of ResNet-50, 97.6 %, is in a
    time distribution of CUDA operations; warps never reach that occupancy."""
    return record.figures.get("device_busy_percent")


def waiting(record: RunRecord) -> Figure | None:
    """Fraction of waiting (stream and event synchronize) in the host's runtime calls."""
    calls = next((b.rows for b in record.breakdowns if b.name == "runtime call"), ())
    total = math.fsum(row.seconds for row in calls)
    if not total:
        return None
    waits = math.fsum(row.seconds for row in calls if row.name == "synchronize")
    return Figure(value=100 * waits / total, unit="%")


PERCENT_OF: dict[Percent, str] = {
    gpu_busy: "% of time GPU busy",
    waiting: "% waiting in runtime calls",
}
