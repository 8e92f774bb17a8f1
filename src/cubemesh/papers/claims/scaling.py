"""What the documents claim of several devices, held against records of such.

A speed-up, an efficiency and a direction are ratios, and so tested on any machine with as many
devices; the minibatch and the rest of a document's conditions are named beside the verdict.
"""

from __future__ import annotations

from dataclasses import replace

from cubemesh.experiments.analysis.groups import caveats
from cubemesh.experiments.analysis.matrix import Matrix
from cubemesh.experiments.analysis.ratios import bounds, ratio
from cubemesh.experiments.scaling.analysis import efficiency
from cubemesh.experiments.scaling.design import ScalingCurve, ScalingGroup, ScalingMode, curves
from cubemesh.papers.claims.evidence import Check, Evidence
from cubemesh.papers.claims.verdicts import close, every, never, sided, untested
from cubemesh.schema import Claim, ClaimState, Figure, NetworkWork, RunRecord, Verdict

NEAR_LINEAR = 90.0
"""Percent of efficiency from which on a document's "near linear" is taken to hold."""


def speed_up(network: str, devices: int, batch: int | None = None) -> Check:
    """Throughput of so many devices as a multiple of one's, in weak scaling."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _found(evidence, ScalingMode.WEAK, network, devices, batch)
        if isinstance(found, str):
            return untested(claim, found)
        figure, groups, what = found
        return _from(close(claim, _times(figure, devices / 100, "x"), what), groups)

    return check


def under(networks: tuple[str, ...], devices: int) -> Check:
    """Whether the speed-up of each of these networks lies below the claim's value."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        return every(claim, networks, lambda network: one(claim, evidence, network))

    def one(claim: Claim, evidence: Evidence, network: str) -> Verdict:
        found = _found(evidence, ScalingMode.WEAK, network, devices)
        if isinstance(found, str):
            return untested(claim, found)
        figure, groups, what = found
        own = _times(figure, devices / 100, "x")
        return _from(sided(claim, own, claim.values[0], -1.0, what), groups)

    return check


def slower_with_more(networks: tuple[str, ...], devices: int, fewer: int) -> Check:
    """Whether more devices train each of these networks slower than fewer do."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        return every(claim, networks, lambda network: one(claim, evidence, network))

    def one(claim: Claim, evidence: Evidence, network: str) -> Verdict:
        more = _found(evidence, ScalingMode.WEAK, network, devices)
        less = _found(evidence, ScalingMode.WEAK, network, fewer)
        for found in (more, less):
            if isinstance(found, str):
                return untested(claim, found)
        assert not isinstance(more, str)
        assert not isinstance(less, str)
        rates = [found[1][0].throughput for found in (more, less)]
        assert rates[0] is not None
        assert rates[1] is not None
        what = f"{network}, throughput of {devices} devices over that of {fewer}"
        found_ratio = replace(ratio(rates[0], rates[1]), unit="x")
        return _from(sided(claim, found_ratio, 1.0, -1.0, what), (more[1][0], less[1][0]))

    return check


def efficiency_of(
    network: str, devices: int, batches: tuple[int, ...], regime: ScalingMode = ScalingMode.WEAK
) -> Check:
    """Efficiency at each of a claim's minibatches, its values in their order."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        verdicts = []
        for value, batch in zip(claim.values, batches, strict=True):
            found = _found(evidence, regime, network, devices, batch)
            if isinstance(found, str):
                return untested(claim, found)
            figure, groups, what = found
            one = close(replace(claim, values=(value,)), figure, what)
            verdicts.append(replace(_from(one, groups), claim=claim))
        return max(verdicts, key=lambda v: v.state is ClaimState.DOES_NOT_HOLD)

    return check


def super_linear(network: str, batch: int, devices: int) -> Check:
    """Whether so many devices are more than so many times one, in strong scaling."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _found(evidence, ScalingMode.STRONG, network, devices, batch)
        if isinstance(found, str):
            return untested(claim, found)
        figure, groups, what = found
        return _from(sided(claim, figure, 100.0, 1.0, what), groups)

    return check


def near_linear(network: str, sync: str) -> Check:
    """Whether an exchange comes near N times one device, on the most devices measured."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        for scaled in curves(evidence.records, ScalingMode.WEAK):
            own = [g for g in scaled.together if g.key[1] == sync and g.throughput]
            if scaled.key.network != network or not own or scaled.one is None:
                continue
            most = max(own, key=lambda g: g.key[0])
            figure = efficiency(most, scaled.one)
            if figure is not None:
                what = f"{network} on {most.key[0]} devices, {sync}, efficiency"
                verdict = sided(claim, figure, NEAR_LINEAR, 1.0, what)
                return _from(verdict, (most, scaled.one))
        return untested(claim, f"{sync} on several devices was not measured with {network}")

    return check


def link_gain(network: str, other: str, why: str) -> Check:
    """What the usual link gains over another, which is not the claim's: told beside it."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _gain(evidence, network, other)
        if found is None:
            return untested(claim, why)
        reason = f"{why}; here {network}, auto over {other}"
        return untested(claim, reason, replace(found, unit="x"))

    return check


def suffers_more(network: str, than: str, other: str) -> Check:
    """Whether a slower link slows one network more than another."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        more, less = (_gain(evidence, n, other) for n in (network, than))
        if more is None or less is None:
            return untested(claim, f"{network} and {than} were not measured over {other}")
        what = f"what auto gains over {other}: {network} over {than}"
        return sided(claim, replace(ratio(more, less), unit="x"), 1.0, 1.0, what)

    return check


Found = tuple[Figure, tuple[ScalingGroup, ScalingGroup], str]


def _found(
    evidence: Evidence, regime: ScalingMode, network: str, devices: int, batch: int | None = None
) -> Found | str:
    """Efficiency of a point, its runs and what it is; or why there is none."""
    for scaled in curves(evidence.records, regime):
        if scaled.key.network != network or batch not in (None, scaled.key.batch):
            continue
        group = _at(scaled, devices)
        figure = efficiency(group, scaled.one) if group and scaled.one else None
        if group is not None and scaled.one is not None and figure is not None:
            what = f"{network}, {regime.constant} {scaled.key.batch}, {devices} devices against one"
            return figure, (group, scaled.one), what
    at = f" at {regime.constant} {batch}" if batch else ""
    return f"{network}{at} was not measured on {devices} devices"


def _at(scaled: ScalingCurve, devices: int) -> ScalingGroup | None:
    return next((g for g in scaled.together if g.key[0] == devices and g.throughput), None)


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


def _times(figure: Figure, factor: float, unit: str) -> Figure:
    low, high = bounds(figure)
    return replace(
        figure, value=factor * figure.value, low=factor * low, high=factor * high, unit=unit
    )


def _from(verdict: Verdict, groups: tuple[ScalingGroup, ...]) -> Verdict:
    return replace(verdict, run_id=groups[0].run_id, caveats=caveats(*groups))


_TWO_MACHINES = "it compares two kinds of machine, joined by NVLink and by PCIe"
_TWO_FABRICS = "it needs four hosts joined by two networks"
CHECKS: dict[str, Check] = {
    "001-15": speed_up("vgg16", 2, 32),
    "001-16": speed_up("resnet-50", 2, 32),
    "001-17": speed_up("vgg16", 4, 32),
    "001-18": under(("resnet-50", "little-cnn"), 4),
    "001-19": slower_with_more(("little-cnn", "vgg16"), 8, 4),
    "001-20": near_linear("resnet-50", "asynchronous"),
    "001-21": never("it speaks of epochs to an accuracy, and this experiment measures speed"),
    "002-2": link_gain("inception-v3", "shared-memory", _TWO_MACHINES),
    "003-3": speed_up("googlenet", 4),
    "003-4": speed_up("inception-v3", 4),
    "003-5": speed_up("googlenet", 16),
    "003-6": speed_up("inception-bn", 16),
    "003-7": efficiency_of("inception-bn", 8, (64,)),
    "003-8": link_gain("googlenet", "network", _TWO_FABRICS),
    "003-9": never(
        "it speaks of MXNet; here a faster link that sat idle is the warning faster-link-unused"
    ),
    "004-1": efficiency_of("resnet-50", 8, (32, 64)),
    "004-2": never("it speaks of KNLs of several hosts"),
    "004-5": super_linear("cifarnet", 192, 2),
    "004-6": never("absolute figures of P100s, by their monitoring tool"),
    "004-15": never("it speaks of what fits the memory of a P100 in Caffe"),
    "004-16": suffers_more("alexnet", "googlenet", "network"),
}
"""The claims of several devices that records can settle, and why others cannot be."""
