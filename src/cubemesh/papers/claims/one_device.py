"""Checks of claims about one device: throughput by batch size, accuracy, utilization, time
breakdown.

Each function takes the conditions of a claim and returns its check. Ratios, directions and
curvature are tested on any machine; absolute figures on the paper's device only, elsewhere the
measurement is shown; accuracies on the paper's data and epochs only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.ratios import bounds, ratio
from cubemesh.experiments.cpu_modes.report import gain
from cubemesh.experiments.minibatch.curvature import sample_ms, second_difference
from cubemesh.experiments.minibatch.input_bound import device_utilization
from cubemesh.papers.claims.evidence import (
    Check,
    Evidence,
    close,
    every,
    scaled,
    sided,
    untested,
    with_runs,
)
from cubemesh.schema import Claim, Figure, NetworkWork, RunRecord, Train, Verdict


def throughput_of(network: str, batch: int | None, side: int | None = None) -> Check:
    """Samples/s at a batch size (None: the fastest one) on the paper's device."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        groups = evidence.steps(network, side)
        if not groups or (batch is not None and batch not in groups):
            return _not_measured(claim, network, batch or "any", side, evidence)
        key = batch or max(groups, key=lambda b: _throughput(groups[b]).value)
        figure, device = _throughput(groups[key]), claim.system.removeprefix("1 ")
        at = f"at batch size {key}"
        return with_runs(_absolute(claim, evidence, device, figure, at), groups[key])

    return check


def step_time_of(network: str, batch: int) -> Check:
    """Step time in milliseconds at a batch size on the paper's device."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        group = evidence.steps(network).get(batch)
        if group is None:
            return _not_measured(claim, network, batch)
        rate = _throughput(group)
        low, high = bounds(rate)
        ms = 1e3 * batch
        figure = Figure(value=ms / rate.value, unit="ms", low=ms / high, high=ms / low)
        verdict = _absolute(claim, evidence, claim.system, figure, f"at batch size {batch}")
        return with_runs(verdict, group)

    return check


def throughput_ratio(network: str, batch: int, over: int, side: int | None = None) -> Check:
    """Throughput at one batch size over that at another, on any machine."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        groups = _at(claim, evidence, network, (batch, over), side)
        if isinstance(groups, Verdict):
            return groups
        what = f"{network}, throughput at batch size {batch} over {over}"
        return with_runs(close(claim, _ratio(*groups), what), *groups)

    return check


def superlinear_step_time(network: str, batch: int) -> Check:
    """Whether doubling the batch size more than doubles the step time, on any machine."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        groups = _at(claim, evidence, network, (2 * batch, batch))
        if isinstance(groups, Verdict):
            return groups
        found = _ratio(*groups)
        low, high = bounds(found)
        time = Figure(value=2 / found.value, unit="x", low=2 / high, high=2 / low)
        what = f"{network}, step time at batch size {2 * batch} over {batch}, compared with 2"
        return with_runs(sided(claim, time, 2.0, 1.0, what), *groups)

    return check


def less_time_per_sample() -> Check:
    """Whether a sample takes less time at the largest batch size than at the smallest, for every
    network that was measured."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        return every(claim, evidence.networks(), lambda network: one(claim, evidence, network))

    def one(claim: Claim, evidence: Evidence, network: str) -> Verdict:
        batches = list(evidence.steps(network))
        if len(batches) < 2:
            return untested(claim, "not-measured", f"{network} was measured at one batch size only")
        groups = _at(claim, evidence, network, (batches[0], batches[-1]))
        if isinstance(groups, Verdict):
            return groups
        what = f"{network}, time per sample at batch size {batches[-1]} over {batches[0]}"
        return with_runs(sided(claim, _ratio(*groups), 1.0, -1.0, what), *groups)

    return check


def curvature_at(batch: int, networks: tuple[str, ...] = ()) -> Check:
    """Sign of the second difference of the time per sample over doublings of the batch size, for
    every network of `networks` (default: all) measured on both sides."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        named = [n for n in evidence.networks() if not networks or n in networks]
        around = {batch // 2, batch, 2 * batch}
        full = [n for n in named if around <= evidence.steps(n).keys()]
        return every(claim, full or named, lambda network: one(claim, evidence, network))

    def one(claim: Claim, evidence: Evidence, network: str) -> Verdict:
        groups = _at(claim, evidence, network, (batch // 2, batch, 2 * batch))
        if isinstance(groups, Verdict):
            return groups
        times = [f for g in groups if (f := sample_ms(g)) is not None]
        curvature = second_difference(times, "ms/sample")
        what = f"{network}, curvature of the time per sample at batch size {batch}"
        return with_runs(sided(claim, curvature, 0.0, claim.values[0], what), *groups)

    return check


def accuracy_of(network: str, batch: int, data: str, epochs: int) -> Check:
    """Validation accuracy after the paper's epochs on the paper's data."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        records = evidence.trainings(network, batch)
        if not records:
            return _not_measured(claim, network, batch)
        work = records[-1].spec.work
        assert isinstance(work, Train)
        figure = scaled(records[-1].figures["accuracy"], 100.0, "%")
        if work.data != data:
            reason = f"trained on {work.data}, the paper on {data}"
            return untested(claim, "other-data", reason, figure)
        if work.epochs != epochs:
            reason = f"trained for {work.epochs} epochs, the paper for {epochs}"
            return untested(claim, "other-epochs", reason, figure)
        verdict = close(claim, figure, f"{network}, accuracy at batch size {batch}")
        return replace(verdict, run_id=records[-1].run_id)

    return check


def utilization_of(network: str, batch: int, side: int) -> Check:
    """Utilization of the paper's device in percent."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _busy(evidence, network, side)
        if batch not in found:
            return _not_measured(claim, network, batch, side, evidence)
        group, kind, figure = found[batch]
        if kind != "GPU":
            return untested(claim, "no-gpu", f"a claim about a GPU; measured on the {kind}", figure)
        device = claim.system.removeprefix("1 ")
        return with_runs(
            _absolute(claim, evidence, device, figure, f"at batch size {batch}"), group
        )

    return check


def utilization_at_least(network: str, batches: tuple[int, ...], side: int) -> Check:
    """Whether the utilization of a GPU is at least the claim's at each of these batch sizes."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _busy(evidence, network, side)
        for batch in batches:
            if batch not in found:
                return _not_measured(claim, network, batch, side, evidence)
        group, kind, figure = min((found[b] for b in batches), key=lambda busy: busy[2].value)
        if kind != "GPU":
            return untested(
                claim, "no-gpu", f"a claim about a GPU; lowest measured on the {kind}", figure
            )
        what = f"{network}, lowest utilization, at batch size {group.key}"
        return with_runs(sided(claim, figure, claim.values[0], 1.0, what), group)

    return check


def _busy(evidence: Evidence, network: str, side: int) -> dict[int, tuple[Group[int], str, Figure]]:
    """Runs, kind of device and its utilization, by batch size."""
    return {
        batch: (group, found[0], Figure(value=found[1], unit="%"))
        for batch, group in evidence.steps(network, side).items()
        if (found := device_utilization(group)) is not None
    }


def sampling_cost() -> Check:
    """Whether sampling power costs less than the paper allows: the highest fraction of a run's CPU
    time, an upper bound of the performance it costs where the CPU is the limit."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        costs = [v for r in evidence.records if (v := r.figure("telemetry_cpu_percent"))]
        if not costs:
            return untested(claim, "not-measured", "no run has the cost of sampling")
        figure = Figure(value=max(costs), unit="%")
        if not any("mean_power_watts" in r.figures for r in evidence.records):
            reason = "no power sensor is readable here; cost of the other sensors"
            return untested(claim, "no-power-sensor", reason, figure)
        what = "highest CPU time of sampling every 0.5 s, in percent of the run's"
        return sided(claim, figure, claim.values[0], -1.0, what)

    return check


def fastest_cpu_configuration() -> Check:
    """Modes that firmware sets; the fastest configuration of those a user can choose."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        reason = "it compares clustering and memory modes of a KNL, which its firmware sets"
        found = gain(evidence.records)
        if found is None:
            return untested(claim, "not-testable", reason)
        words, figure = found
        here = f"here: fastest CPU configuration over the default, {words}"
        return untested(claim, "not-testable", f"{reason}; {here}", figure)

    return check


def _absolute(claim: Claim, evidence: Evidence, device: str, figure: Figure, what: str) -> Verdict:
    if not evidence.ran_on(device):
        reason = f"an absolute figure of another device; measured here {what}"
        return untested(claim, "other-device", reason, figure)
    return close(claim, figure, what)


def _at(
    claim: Claim,
    evidence: Evidence,
    network: str,
    batches: tuple[int, ...],
    side: int | None = None,
) -> tuple[Group[int], ...] | Verdict:
    """The runs at each of `batches`, or the verdict that one is missing."""
    groups = evidence.steps(network, side)
    for batch in batches:
        if batch not in groups:
            return _not_measured(claim, network, batch, side, evidence)
    return tuple(groups[batch] for batch in batches)


def _ratio(group: Group[int], over: Group[int]) -> Figure:
    """Ratio of throughputs."""
    return replace(ratio(_throughput(group), _throughput(over)), unit="x")


def _throughput(group: Group[int]) -> Figure:
    figure = group.throughput
    assert figure is not None, "Evidence.steps has groups with a throughput only"
    return figure


def _not_measured(
    claim: Claim,
    network: str,
    batch: int | str,
    side: int | None = None,
    evidence: Evidence | None = None,
) -> Verdict:
    reason = f"{network} at batch size {batch} was not measured"
    if side is not None and evidence is not None:
        others = ", ".join(str(s) for s in evidence.sides(network) if s != side)
        rest = f"; images of {others} pixels were" if others else ""
        reason = (
            f"{network} at batch size {batch} on images of {side} pixels was not measured{rest}"
        )
    return untested(claim, "not-measured", reason)


def waiting_in_runtime_calls(claim: Claim, evidence: Evidence) -> Verdict:
    """Fraction of waiting (stream and event synchronize) in the host's runtime calls."""
    return _attributed(claim, evidence, "alexnet", 256, _waiting, "% waiting in runtime calls")


def gpu_busy_at_32(claim: Claim, evidence: Evidence) -> Verdict:
    """Time in which the GPU is busy, of ResNet-50 at batch size 32. The paper's "occupancy rate" of
    97.6 % is in a time distribution of CUDA operations; warps never reach that occupancy."""
    return _attributed(claim, evidence, "resnet-50", 32, _device_busy, "% of time GPU busy")


def gpu_busy_at_64(claim: Claim, evidence: Evidence) -> Verdict:
    """The same at batch size 64."""
    return _attributed(claim, evidence, "resnet-50", 64, _device_busy, "% of time GPU busy")


def _attributed(
    claim: Claim,
    evidence: Evidence,
    network: str,
    batch: int,
    reading: Callable[[RunRecord], Figure | None],
    label: str,
) -> Verdict:
    found = [
        figure
        for record in evidence.records
        if _is(record, network, batch) and (figure := reading(record)) is not None
    ]
    what = f"{network} at batch size {batch}, {label}"
    if not found:
        return untested(claim, "not-measured", f"{what}: not measured on a GPU")
    if not evidence.ran_on("P100"):
        reason = f"an absolute figure of a P100; measured here {what}"
        return untested(claim, "other-device", reason, found[-1])
    return close(claim, found[-1], what)


def _is(record: RunRecord, network: str, batch: int) -> bool:
    work = record.spec.work
    return (
        record.ok
        and isinstance(work, NetworkWork)
        and (work.network, work.batch_per_device) == (network, batch)
    )


def _device_busy(record: RunRecord) -> Figure | None:
    return record.figures.get("device_busy_percent")


def _waiting(record: RunRecord) -> Figure | None:
    calls = next((b.rows for b in record.breakdowns if b.name == "runtime call"), ())
    total = math.fsum(row.seconds for row in calls)
    if not total:
        return None
    waiting = math.fsum(row.seconds for row in calls if row.name == "synchronize")
    return Figure(value=100 * waiting / total, unit="%")
