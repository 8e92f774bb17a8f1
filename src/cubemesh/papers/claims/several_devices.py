"""Checks of claims about several devices: speed-up, efficiency, links, convergence, collectives.

Speed-ups, efficiencies and directions are ratios, tested on any machine with as many devices; the
other conditions of the paper are named in the verdict. Whether losses grow or are equal, and
whether several devices reach the error rate of one, is tested on any machine and data. The size of
an all-reduce follows from the network alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cubemesh import networks
from cubemesh.experiments.analysis.matrix import Matrix
from cubemesh.experiments.analysis.ratios import ratio
from cubemesh.experiments.lr_scaling.report import EQUAL, losses_text, policies
from cubemesh.experiments.scaling.analysis import efficiency
from cubemesh.experiments.scaling.design import ScalingCurve, ScalingGroup, ScalingMode, curves
from cubemesh.experiments.sequential_equivalence.compare import comparable, error_rate, interval_gap
from cubemesh.experiments.sequential_equivalence.experiment import comparisons
from cubemesh.papers.claims.evidence import (
    Check,
    Evidence,
    close,
    every,
    never,
    scaled,
    sided,
    untested,
    with_runs,
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
from cubemesh.units import format_count, format_list

NEAR_LINEAR = 90.0
"""Smallest efficiency in percent that counts as "near linear"."""


def speed_up(network: str, devices: int, batch: int | None = None) -> Check:
    """Speed-up of `devices` over one, in weak scaling."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _found(claim, evidence, ScalingMode.WEAK, network, devices, batch)
        if isinstance(found, Verdict):
            return found
        figure, groups, what = found
        return with_runs(close(claim, scaled(figure, devices / 100, "x"), what), *groups)

    return check


def under(networks: tuple[str, ...], devices: int) -> Check:
    """Whether the speed-up of each of these networks is below the claim's value."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        return every(claim, networks, lambda network: one(claim, evidence, network))

    def one(claim: Claim, evidence: Evidence, network: str) -> Verdict:
        found = _found(claim, evidence, ScalingMode.WEAK, network, devices)
        if isinstance(found, Verdict):
            return found
        figure, groups, what = found
        own = scaled(figure, devices / 100, "x")
        return with_runs(sided(claim, own, claim.values[0], -1.0, what), *groups)

    return check


def slower_with_more(networks: tuple[str, ...], devices: int, fewer: int) -> Check:
    """Whether more devices train each of these networks slower than fewer do."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        return every(claim, networks, lambda network: one(claim, evidence, network))

    def one(claim: Claim, evidence: Evidence, network: str) -> Verdict:
        more = _found(claim, evidence, ScalingMode.WEAK, network, devices)
        less = _found(claim, evidence, ScalingMode.WEAK, network, fewer)
        for found in (more, less):
            if isinstance(found, Verdict):
                return found
        assert not isinstance(more, Verdict)
        assert not isinstance(less, Verdict)
        rates = [found[1][0].throughput for found in (more, less)]
        assert rates[0] is not None
        assert rates[1] is not None
        what = f"{network}, throughput of {devices} devices over {fewer}"
        found_ratio = replace(ratio(rates[0], rates[1]), unit="x")
        return with_runs(sided(claim, found_ratio, 1.0, -1.0, what), more[1][0], less[1][0])

    return check


def efficiency_of(
    network: str, devices: int, batches: tuple[int, ...], mode: ScalingMode = ScalingMode.WEAK
) -> Check:
    """Efficiency at each of a claim's batch sizes, in the order of its values."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        verdicts = []
        for value, batch in zip(claim.values, batches, strict=True):
            found = _found(claim, evidence, mode, network, devices, batch)
            if isinstance(found, Verdict):
                return found
            figure, groups, what = found
            one = close(replace(claim, values=(value,)), figure, what)
            verdicts.append(replace(with_runs(one, *groups), claim=claim))
        return max(verdicts, key=lambda v: v.state is ClaimState.DOES_NOT_HOLD)

    return check


def super_linear(network: str, batch: int, devices: int) -> Check:
    """Whether the speed-up of `devices` is superlinear, in strong scaling."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _found(claim, evidence, ScalingMode.STRONG, network, devices, batch)
        if isinstance(found, Verdict):
            return found
        figure, groups, what = found
        return with_runs(sided(claim, figure, 100.0, 1.0, what), *groups)

    return check


def near_linear(network: str, sync: str) -> Check:
    """Whether a sync strategy scales nearly linearly, on the most devices measured."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        for curve in curves(evidence.records, ScalingMode.WEAK):
            own = [g for g in curve.together if g.key[1] == sync and g.throughput]
            if curve.key.network != network or not own or curve.one is None:
                continue
            most = max(own, key=lambda g: g.key[0])
            figure = efficiency(most, curve.one)
            if figure is not None:
                what = f"{network} on {most.key[0]} devices, {sync}, efficiency"
                verdict = sided(claim, figure, NEAR_LINEAR, 1.0, what)
                return with_runs(verdict, most, curve.one)
        reason = f"{sync} on several devices was not measured with {network}"
        return untested(claim, "not-measured", reason)

    return check


def link_gain(network: str, other: str, why: str) -> Check:
    """Speed-up of the default link over another than the claim's, which only informs."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _gain(evidence, network, other)
        if found is None:
            return untested(claim, "not-testable", why)
        reason = f"{why}; here {network}, auto over {other}"
        return untested(claim, "not-testable", reason, replace(found, unit="x"))

    return check


def suffers_more(network: str, than: str, other: str) -> Check:
    """Whether a slower link slows one network more than another."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        more, less = (_gain(evidence, n, other) for n in (network, than))
        if more is None or less is None:
            reason = f"{network} and {than} were not measured over {other}"
            return untested(claim, "not-measured", reason)
        what = f"speed-up of auto over {other}: {network} over {than}"
        return sided(claim, replace(ratio(more, less), unit="x"), 1.0, 1.0, what)

    return check


Found = tuple[Figure, tuple[ScalingGroup, ScalingGroup], str]


def _found(
    claim: Claim,
    evidence: Evidence,
    mode: ScalingMode,
    network: str,
    devices: int,
    batch: int | None = None,
) -> Found | Verdict:
    """Efficiency of a point with its runs and label, or the verdict that it was not measured."""
    for curve in curves(evidence.records, mode):
        if curve.key.network != network or batch not in (None, curve.key.batch):
            continue
        group = _at(curve, devices)
        figure = efficiency(group, curve.one) if group and curve.one else None
        if group is not None and curve.one is not None and figure is not None:
            what = f"{network}, {mode.constant} {curve.key.batch}, {devices} devices over one"
            return figure, (group, curve.one), what
    at = f" at {mode.constant} {batch}" if batch else ""
    reason = f"{network}{at} was not measured on {devices} devices"
    return untested(claim, "not-measured", reason)


def _at(curve: ScalingCurve, devices: int) -> ScalingGroup | None:
    return next((g for g in curve.together if g.key[0] == devices and g.throughput), None)


def _gain(evidence: Evidence, network: str, other: str) -> Figure | None:
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


def loss_by_rate(claim: Claim, evidence: Evidence) -> Verdict:
    """001-22: the loss grows with the devices with a constant rate, not with a scaled one."""
    records = [r for r in evidence.records if isinstance(r.spec.work, Train)]
    constant, linear = policies(records)
    grows, equals = constant.worst(), linear.worst()
    if grows is None or equals is None:
        reason = "no two numbers of devices were trained with both rates"
        return untested(claim, "not-measured", reason)
    losses = [f"{policy.name}: {losses_text(policy)}" for policy in (constant, linear)]
    holds = constant.rises() and 1 / EQUAL <= equals <= EQUAL
    return Verdict(
        claim=claim,
        state=ClaimState.HOLDS if holds else ClaimState.DOES_NOT_HOLD,
        code="losses-by-rate",
        measured=Figure(value=equals, unit="x"),
        reason=f"validation losses, {'; '.join(losses)} (scaled over one device, at most "
        f"{EQUAL:g})",
        run_id=records[-1].run_id,
    )


def same_error_rates(claim: Claim, evidence: Evidence) -> Verdict:
    """004-14: several devices reach the error rate of one after the same iterations."""
    several = [
        c for c in comparisons(comparable(evidence.records)) if c.run.spec.placement.devices > 1
    ]
    if not several:
        reason = "no training on several devices was compared with one"
        return untested(claim, "not-measured", reason)
    off = [c for c in several if interval_gap(error_rate(c.run), error_rate(c.reference)) > 0]
    works = [c.run.spec.work for c in several]
    trained = sorted(
        {f"{w.network} after {w.iterations}" for w in works if isinstance(w, FirstSteps)}
    )
    run = (off or several)[0].run
    return Verdict(
        claim=claim,
        state=ClaimState.DOES_NOT_HOLD if off else ClaimState.HOLDS,
        code="error-rates",
        measured=error_rate(run),
        reason=f"error rates of {len(several)} trainings on several devices and on one: "
        f"{format_list(trained)} iterations",
        run_id=run.run_id,
    )


def days_to_train(claim: Claim, evidence: Evidence) -> Verdict:
    """003-10: under a day on four P100, over a week on a CPU; the network is not named."""
    days = [v for r in evidence.records if (v := r.figure("projected_90_epochs_days")) is not None]
    reason = "a claim about four P100 and unnamed networks; measured here, 90 epochs"
    return untested(
        claim, "not-testable", reason, Figure(value=min(days), unit="days") if days else None
    )


def message(network: str) -> Check:
    """Gradient size of a network in MB, 4 bytes per parameter."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        count = networks.build(network).parameter_count
        figure = Figure(value=4 * count / 1e6, unit="MB")
        return close(claim, figure, f"{format_count(count)} parameters of 4 bytes")

    return check


def bus_bandwidth(operations: Sequence[str], whose: str) -> Check:
    """Highest bus bandwidth of these operations; the paper's is of other devices."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        reason = f"an absolute figure of {whose}"
        own = [
            r
            for r in evidence.records
            if isinstance(r.spec.work, Collective)
            and r.spec.work.collective in operations
            and "bus_bytes_per_s" in r.figures
        ]
        if not own:
            missing = f"{reason}; {format_list(operations)} were not measured here"
            return untested(claim, "not-measured", missing)
        best = max(own, key=lambda r: r.figures["bus_bytes_per_s"].value)
        found = best.figures["bus_bytes_per_s"]
        ends = (None if end is None else end / 1e9 for end in (found.low, found.high))
        low, high = ends
        figure = replace(found, value=found.value / 1e9, low=low, high=high, unit="GB/s")
        devices = best.spec.placement.devices
        here = f"{reason}; measured here: {found.method} on {devices} devices"
        return untested(claim, "other-device", here, figure)

    return check


_TWO_MACHINES = "it compares two machines, with NVLink and with PCIe"
_TWO_FABRICS = "it needs four hosts with two networks"
CHECKS: dict[str, Check] = {
    "001-15": speed_up("vgg16", 2, 32),
    "001-16": speed_up("resnet-50", 2, 32),
    "001-17": speed_up("vgg16", 4, 32),
    "001-18": under(("resnet-50", "little-cnn"), 4),
    "001-19": slower_with_more(("little-cnn", "vgg16"), 8, 4),
    "001-20": near_linear("resnet-50", "asynchronous"),
    "001-21": never("a claim about epochs to an accuracy; this experiment measures throughput"),
    "002-2": link_gain("inception-v3", "shared-memory", _TWO_MACHINES),
    "003-3": speed_up("googlenet", 4),
    "003-4": speed_up("inception-v3", 4),
    "003-5": speed_up("googlenet", 16),
    "003-6": speed_up("inception-bn", 16),
    "003-7": efficiency_of("inception-bn", 8, (64,)),
    "003-8": link_gain("googlenet", "network", _TWO_FABRICS),
    "003-9": never(
        "a claim about MXNet; here an unused faster link is the warning faster-link-unused"
    ),
    "004-1": efficiency_of("resnet-50", 8, (32, 64)),
    "004-2": never("a claim about KNLs of several hosts"),
    "004-5": super_linear("cifarnet", 192, 2),
    "004-6": never("absolute figures of P100s, from their monitoring tool"),
    "004-15": never("a claim about the memory of a P100 with Caffe"),
    "004-16": suffers_more("alexnet", "googlenet", "network"),
    "001-22": loss_by_rate,
    "002-6": bus_bandwidth(("reduce", "broadcast"), "8 V100 in a cube mesh"),
    "002-7": never("a claim about earlier generations of PCIe"),
    "002-16": never(
        "it needs four GPUs on a tree of PCIe switches, and control of the sending order"
    ),
    "003-10": days_to_train,
    "004-10": message("alexnet"),
    "004-11": never("a claim about KNLs with Omni-Path and Aries"),
    "004-14": same_error_rates,
}
"""Claims about several devices with their checks, or why they cannot be tested."""
