"""Checks of claims about several devices: speed-up, efficiency, links, convergence, collectives.

Speed-ups, efficiencies and directions are ratios, tested on any machine with as many devices; the
other conditions of the paper are named in the verdict. Whether losses grow or are equal, and
whether several devices reach the error rate of one, is tested on any machine and data. The size of
an all-reduce follows from the network alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cubemesh import networks
from cubemesh.experiments.analysis.groups import group_by
from cubemesh.experiments.analysis.matrix import Matrix
from cubemesh.experiments.analysis.ratios import ratio
from cubemesh.experiments.lr_scaling.report import EQUAL, losses_text, policies
from cubemesh.experiments.scaling.analysis import efficiency, rank_utilizations
from cubemesh.experiments.scaling.design import ScalingGroup, ScalingMode, curves
from cubemesh.experiments.sequential_equivalence.compare import comparable, error_rate, interval_gap
from cubemesh.experiments.sequential_equivalence.experiment import comparisons
from cubemesh.experiments.time_to_accuracy import (
    TrainedGroup,
    asynchronous_pairs,
    epochs_ratio,
    reached_target,
    trained_on,
)
from cubemesh.papers.claims.evidence import (
    CLOSE,
    Evidence,
    Untested,
    close,
    every,
    rate_ratio,
    scaled,
    settled,
    sided,
)
from cubemesh.schema import (
    Claim,
    ClaimState,
    Collective,
    Figure,
    FirstSteps,
    NetworkWork,
    RunRecord,
    Train,
    Verdict,
)
from cubemesh.statistics import Interval, t_interval
from cubemesh.units import format_count, format_list, format_number

NEAR_LINEAR = 90.0
"""Smallest efficiency in percent that counts as "near linear"."""


def speed_up(
    claim: Claim,
    evidence: Evidence,
    network: str,
    devices: int,
    batch: int | None = None,
    sync: str = "",
) -> Verdict:
    """Speed-up of `devices` over one, in weak scaling, with a strategy (empty: any)."""
    figure, groups, what = _efficiency(evidence, ScalingMode.WEAK, network, devices, batch, sync)
    return close(claim, scaled(figure, devices / 100, "x"), what, *groups)


def speed_up_below(
    claim: Claim,
    evidence: Evidence,
    names: tuple[str, ...],
    devices: int,
    batch: int,
    sync: str,
) -> Verdict:
    """Whether the speed-up of each of these networks is below the claim's value."""

    def one(network: str) -> Verdict:
        mode = ScalingMode.WEAK
        figure, groups, what = _efficiency(evidence, mode, network, devices, batch, sync)
        own = scaled(figure, devices / 100, "x")
        return sided(claim, own, claim.values[0], -1.0, what, *groups)

    return every(claim, names, one)


def slower_with_more(
    claim: Claim,
    evidence: Evidence,
    names: tuple[str, ...],
    devices: int,
    fewer: int,
    batch: int,
    sync: str,
) -> Verdict:
    """Whether more devices train each of these networks slower than fewer do."""

    def one(network: str) -> Verdict:
        more, less = (
            _efficiency(evidence, ScalingMode.WEAK, network, count, batch, sync)[1][0]
            for count in (devices, fewer)
        )
        what = f"{network}, throughput of {devices} devices over {fewer}"
        return sided(claim, rate_ratio(more, less), 1.0, -1.0, what, more, less)

    return every(claim, names, one)


def weak_efficiency(
    claim: Claim, evidence: Evidence, network: str, devices: int, batches: tuple[int, ...]
) -> Verdict:
    """Efficiency at each of a claim's batch sizes, in the order of its values."""
    verdicts = []
    for value, batch in zip(claim.values, batches, strict=True):
        figure, groups, what = _efficiency(evidence, ScalingMode.WEAK, network, devices, batch)
        one = close(replace(claim, values=(value,)), figure, what, *groups)
        verdicts.append(replace(one, claim=claim))
    return max(verdicts, key=lambda v: v.state is ClaimState.DOES_NOT_HOLD)


def super_linear(
    claim: Claim, evidence: Evidence, network: str, batch: int, devices: int
) -> Verdict:
    """Whether the speed-up of `devices` is superlinear, in strong scaling."""
    figure, groups, what = _efficiency(evidence, ScalingMode.STRONG, network, devices, batch)
    return sided(claim, figure, 100.0, 1.0, what, *groups)


def rank_utilization(
    claim: Claim, evidence: Evidence, network: str, batch: int, devices: tuple[int, ...]
) -> Verdict:
    """Utilization of the GPUs, the mean over the ranks, on each of `devices`, in the order of the
    claim's values, in strong scaling; of the paper's device only."""
    found = []
    for curve in curves(evidence.records, ScalingMode.STRONG):
        if (curve.key.network, curve.key.batch) != (network, batch):
            continue
        for count in devices:
            group = next((g for g in curve.together if g.key[0] == count and g.throughput), None)
            own = rank_utilizations(group) if group is not None else {}
            if group is not None and own:
                found.append((group, own))
        break
    if len(found) < len(devices):
        counts = format_list(str(n) for n in devices)
        reason = f"{network} at global batch size {batch}, utilization of all ranks, on {counts}"
        raise Untested("not-measured", f"{reason} devices was not measured")
    groups = [group for group, _ in found]
    text = "; ".join(
        f"{group.key[0]} devices: {min(own.values()):.0f} to {max(own.values()):.0f} %"
        for group, own in found
    )
    means = [math.fsum(own.values()) / len(own) for _, own in found]
    last = Figure(value=means[-1], unit="%")
    if any(rank.device == "cpu" for g in groups for r in g.ok for rank in r.ranks):
        raise Untested("no-gpu", f"a claim about GPUs; cores measured here, {text}", last, groups)
    if not evidence.ran_on("P100"):
        reason = f"absolute figures of P100; measured here, {text}"
        raise Untested("other-device", reason, last, groups)
    off = [abs(mean / value - 1) for mean, value in zip(means, claim.values, strict=True)]
    reason = f"{network}, batch size {batch}, {text}"
    return settled(claim, max(off) <= CLOSE, "rank-utilization", reason, last, *groups)


def near_linear(claim: Claim, evidence: Evidence, network: str, sync: str) -> Verdict:
    """Whether a sync strategy scales nearly linearly, on the most devices measured."""
    for curve in curves(evidence.records, ScalingMode.WEAK):
        own = [g for g in curve.together if g.key[1] == sync and g.throughput]
        if curve.key.network != network or not own or curve.one is None:
            continue
        most = max(own, key=lambda g: g.key[0])
        figure = efficiency(most, curve.one)
        if figure is not None:
            what = f"{network} on {most.key[0]} devices, {sync}, efficiency"
            return sided(claim, figure, NEAR_LINEAR, 1.0, what, most, curve.one)
    reason = f"{sync} on several devices was not measured with {network}"
    raise Untested("not-measured", reason)


def link_gain(claim: Claim, evidence: Evidence, network: str, other: str, reason: str) -> Verdict:
    """Speed-up of the default link over another than the claim's, which only informs."""
    found = _link_gain(evidence, network, other)
    if found is None:
        raise Untested("not-testable", reason)
    here = f"{reason}; here {network}, auto over {other}"
    raise Untested("not-testable", here, replace(found, unit="x"))


def suffers_more(claim: Claim, evidence: Evidence, network: str, than: str, other: str) -> Verdict:
    """Whether a slower link slows one network more than another."""
    more, less = (_link_gain(evidence, n, other) for n in (network, than))
    if more is None or less is None:
        reason = f"{network} and {than} were not measured over {other}"
        raise Untested("not-measured", reason)
    what = f"speed-up of auto over {other}: {network} over {than}"
    return sided(claim, replace(ratio(more, less), unit="x"), 1.0, 1.0, what)


def _efficiency(
    evidence: Evidence,
    mode: ScalingMode,
    network: str,
    devices: int,
    batch: int | None = None,
    sync: str = "",
) -> tuple[Figure, tuple[ScalingGroup, ScalingGroup], str]:
    """Efficiency of a point, its runs and those of one device, and its label; `Untested` with the
    efficiency of another strategy where only that was measured."""
    other: Untested | None = None
    for curve in curves(evidence.records, mode):
        if curve.key.network != network or batch not in (None, curve.key.batch):
            continue
        for group in curve.together:
            if group.key[0] != devices or not group.throughput or curve.one is None:
                continue
            figure = efficiency(group, curve.one)
            if figure is None:
                continue
            what = f"{network}, {mode.constant} {curve.key.batch}, {devices} devices over one"
            if sync in ("", group.key[1]):
                return figure, (group, curve.one), what
            reason = f"a claim about {sync}; measured here with {group.key[1]}: efficiency, {what}"
            other = Untested("other-strategy", reason, figure, (group, curve.one))
    if other is not None:
        raise other
    at = f" at {mode.constant} {batch}" if batch else ""
    raise Untested("not-measured", f"{network}{at} was not measured on {devices} devices")


def _link_gain(evidence: Evidence, network: str, other: str) -> Figure | None:
    own = [
        r
        for r in evidence.records
        if isinstance(r.spec.work, NetworkWork) and r.spec.work.network == network
    ]
    matrix = Matrix.of(own, _link)
    return next((found for _, found, _ in matrix.ratios("auto", other)), None)


def _link(record: RunRecord) -> tuple[str, str]:
    work = record.spec.work
    assert isinstance(work, NetworkWork)
    return f"{work.network} {work.batch_per_device}", record.spec.placement.link


def more_epochs_asynchronous(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether asynchronous training takes more epochs to an accuracy than synchronous training on
    as many devices: the geometric mean over pairs of the same training, such as several seeds.

    Accuracy is evaluated after each epoch, so that the ratio of one pair, of *a* and *s* epochs, is
    known to be between (a - 1) / s and a / (s - 1); several pairs have the 95 % interval of their
    mean. A training that missed the accuracy counts with the epochs that it made, so that the ratio
    is at least that."""
    records = [
        r
        for r in evidence.records
        if isinstance(r.spec.work, Train) and r.spec.work.target_accuracy is not None
    ]
    pairs = [
        pair
        for same in group_by(records, lambda r: replace(_train(r), rate_scaling="none"))
        for pair in asynchronous_pairs(group_by(same.records, trained_on))
    ]
    if not pairs:
        reason = (
            "no devices trained to an accuracy both asynchronously and synchronously (which must "
            "reach it)"
        )
        raise Untested("not-measured", reason)
    found, interval = _epochs_ratio(pairs)
    missed = sum(not reached_target(one) for one, _ in pairs)
    low, high = format_number(interval.low), format_number(interval.high)
    reason = (
        f"epochs to the accuracy, asynchronous over synchronous, {len(pairs)} "
        f"{'pair' if len(pairs) == 1 else 'pairs'}: "
        f"{f'{low} to {high}' if math.isfinite(interval.high) else f'{low} or more'}"
    )
    if missed:
        reason += f"; {missed} of the asynchronous trainings did not reach it in these epochs"
    if interval.low < 1 < interval.high or (missed and interval.low < 1):
        reason += "; inconclusive without more seeds"
        raise Untested("inconclusive", reason, found, pairs[0])
    holds = interval.low >= 1
    return settled(claim, holds, "epochs-to-accuracy", reason, found, *pairs[0])


def _epochs_ratio(pairs: Sequence[tuple[TrainedGroup, TrainedGroup]]) -> tuple[Figure, Interval]:
    """Asynchronous over synchronous epochs, and their interval, which may have no upper end."""
    logs = [math.log(epochs_ratio(*pair)) for pair in pairs]
    value = math.exp(math.fsum(logs) / len(logs))
    epochs = [[max(1.0, g.median_of("epochs_trained") or 0) for g in pair] for pair in pairs]
    if len(pairs) == 1:
        ((stale, other),) = epochs
        low, high = (stale - 1) / other, stale / (other - 1) if other > 1 else math.inf
        if not reached_target(pairs[0][0]):
            low, high = value, math.inf
    else:  # an evaluation comes up to one epoch late: a variance of 1/12 for each number of epochs
        late = math.fsum(n**-2 for pair in epochs for n in pair) / 12 / len(pairs)
        ends = t_interval(logs, least_variance=late)
        low, high = math.exp(ends.low), math.exp(ends.high)
    figure = Figure(value=value, unit="x", n=len(pairs))
    if math.isfinite(high):
        figure = replace(figure, low=low, high=high)
    return figure, Interval(low=low, high=high)


def loss_by_rate(claim: Claim, evidence: Evidence, epochs: int, batch: int) -> Verdict:
    """Whether the loss grows with the devices with a constant rate, and not with a scaled one,
    after the paper's epochs at its batch size."""
    records = [r for r in evidence.records if isinstance(r.spec.work, Train)]
    if any((w.epochs, w.batch_per_device) != (epochs, batch) for w in map(_train, records)):
        reason = f"it needs {epochs} epochs at batch size {batch}; trained otherwise here"
        raise Untested("other-epochs", reason)
    constant, linear = policies(records)
    grows, equals = constant.worst(), linear.worst()
    if grows is None or equals is None:
        raise Untested("not-measured", "no two numbers of devices were trained with both rates")
    losses = "; ".join(f"{policy.name}: {losses_text(policy)}" for policy in (constant, linear))
    holds = constant.rises() and 1 / EQUAL <= equals <= EQUAL
    reason = f"validation losses, {losses} (scaled over one device, at most {EQUAL:g})"
    verdict = settled(claim, holds, "losses-by-rate", reason, Figure(value=equals, unit="x"))
    return replace(verdict, run_id=records[-1].run_id)


def _train(record: RunRecord) -> Train:
    assert isinstance(record.spec.work, Train)
    return record.spec.work


def same_error_rates(claim: Claim, evidence: Evidence, iterations: Mapping[str, int]) -> Verdict:
    """Whether several devices reach the error rate of one after the paper's iterations of each
    network."""
    several = [
        c for c in comparisons(comparable(evidence.records)) if c.run.spec.placement.devices > 1
    ]
    if not several:
        raise Untested("not-measured", "no training on several devices was compared with one")
    off = [c for c in several if interval_gap(error_rate(c.run), error_rate(c.reference)) > 0]
    works = [c.run.spec.work for c in several]
    trained = sorted(
        {f"{w.network} after {w.iterations}" for w in works if isinstance(w, FirstSteps)}
    )
    run = (off or several)[0].run
    reason = (
        f"error rates of {len(several)} trainings on several devices and on one: "
        f"{format_list(trained)} iterations"
    )
    longest = dict.fromkeys(iterations, 0)
    for work in works:
        if isinstance(work, FirstSteps) and work.network in longest:
            longest[work.network] = max(longest[work.network], work.iterations)
    if fewer := [f"{n:,} of {name}" for name, n in iterations.items() if longest[name] < n]:
        reason = f"it needs {format_list(fewer)} iterations; {reason}"
        raise Untested("fewer-iterations", reason, error_rate(run))
    verdict = settled(claim, not off, "error-rates", reason, error_rate(run))
    return replace(verdict, run_id=run.run_id)


def days_to_train(claim: Claim, evidence: Evidence) -> Verdict:
    """Under a day on four P100, over a week on a CPU; the network is not named."""
    days = [v for r in evidence.records if (v := r.figure("projected_90_epochs_days")) is not None]
    reason = "a claim about four P100 and unnamed networks; measured here, 90 epochs"
    figure = Figure(value=min(days), unit="days") if days else None
    raise Untested("not-testable", reason, figure)


def message_size(claim: Claim, evidence: Evidence, network: str) -> Verdict:
    """Gradient size of a network in MB, 4 bytes per parameter."""
    count = networks.build(network).parameter_count
    figure = Figure(value=4 * count / 1e6, unit="MB")
    return close(claim, figure, f"{format_count(count)} parameters of 4 bytes")


def bus_bandwidth(
    claim: Claim, evidence: Evidence, operations: Sequence[str], system: str
) -> Verdict:
    """Highest bus bandwidth of these operations; the paper's is of other devices."""
    reason = f"an absolute figure of {system}"
    own = [
        r
        for r in evidence.records
        if isinstance(r.spec.work, Collective)
        and r.spec.work.collective in operations
        and "bus_bytes_per_s" in r.figures
    ]
    if not own:
        missing = f"{reason}; {format_list(operations)} were not measured here"
        raise Untested("not-measured", missing)
    best = max(own, key=lambda r: r.figures["bus_bytes_per_s"].value)
    found = best.figures["bus_bytes_per_s"]
    devices = best.spec.placement.devices
    here = f"{reason}; measured here: {found.method} on {devices} devices"
    raise Untested("other-device", here, scaled(found, 1e-9, "GB/s"))
