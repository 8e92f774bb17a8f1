"""Do the documents' claims about training on several devices hold here?

Whether losses grow or are equal is a direction, tested on any machine and any data; so is whether
several devices reach the error rate of one. What an all-reduce has to move is counted, and holds or
not without any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cubemesh import networks
from cubemesh.experiments.lr_scaling.report import EQUAL, losses_text, policies
from cubemesh.experiments.sequential_equivalence.compare import comparable, error_rate, interval_gap
from cubemesh.experiments.sequential_equivalence.experiment import comparisons
from cubemesh.papers.claims.evidence import Check, Evidence
from cubemesh.papers.claims.verdicts import close, never, untested
from cubemesh.schema import Claim, ClaimState, Collective, Figure, FirstSteps, Train, Verdict
from cubemesh.units import format_count, format_list


def loss_by_rate(claim: Claim, evidence: Evidence) -> Verdict:
    """001-22: with a constant rate the loss grows with the devices, with a scaled one it does not:
    it holds where both do."""
    trained = [r for r in evidence.records if isinstance(r.spec.work, Train)]
    constant, scaled = policies(trained)
    grows, equals = constant.worst(), scaled.worst()
    if grows is None or equals is None:
        return untested(claim, "no two numbers of devices were trained with either rate")
    told = [f"{policy.name}: {losses_text(policy)}" for policy in (constant, scaled)]
    holds = constant.rises() and 1 / EQUAL <= equals <= EQUAL
    return Verdict(
        claim=claim,
        state=ClaimState.HOLDS if holds else ClaimState.DOES_NOT_HOLD,
        measured=Figure(value=equals, unit="x"),
        reason=f"validation losses, {'; '.join(told)} (scaled over one device, within {EQUAL:g}?)",
        run_id=trained[-1].run_id,
    )


def same_error_rates(claim: Claim, evidence: Evidence) -> Verdict:
    """004-14: several devices reach the error rate of one after the same iterations."""
    several = [
        c for c in comparisons(comparable(evidence.records)) if c.run.spec.placement.devices > 1
    ]
    if not several:
        return untested(claim, "no training on several devices was held against one")
    off = [c for c in several if interval_gap(error_rate(c.run), error_rate(c.reference)) > 0]
    works = [c.run.spec.work for c in several]
    told = sorted({f"{w.network} after {w.iterations}" for w in works if isinstance(w, FirstSteps)})
    run = (off or several)[0].run
    return Verdict(
        claim=claim,
        state=ClaimState.DOES_NOT_HOLD if off else ClaimState.HOLDS,
        measured=error_rate(run),
        reason=f"error rates of {len(several)} trainings on several devices against one: "
        f"{format_list(told)} iterations",
        run_id=run.run_id,
    )


def days_to_train(claim: Claim, evidence: Evidence) -> Verdict:
    """003-10: under a day on four P100, over a week on a CPU; of no named network."""
    days = [v for r in evidence.records if (v := r.figure("projected_90_epochs_days")) is not None]
    reason = "it speaks of four P100 and of networks it does not name; measured here, 90 epochs"
    return untested(claim, reason, Figure(value=min(days), unit="days") if days else None)


def message(network: str) -> Check:
    """Megabytes of all gradients of a network, each of four bytes."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        count = networks.build(network).parameter_count
        figure = Figure(value=4 * count / 1e6, unit="MB")
        return close(claim, figure, f"{format_count(count)} parameters of 4 bytes, as counted")

    return check


def bus_bandwidth(operations: Sequence[str], whose: str) -> Check:
    """The highest bus bandwidth of these operations, beside a document's of other devices."""

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
            return untested(claim, f"{reason}; here {format_list(operations)} were not measured")
        best = max(own, key=lambda r: r.figures["bus_bytes_per_s"].value)
        found = best.figures["bus_bytes_per_s"]
        ends = (None if end is None else end / 1e9 for end in (found.low, found.high))
        low, high = ends
        figure = replace(found, value=found.value / 1e9, low=low, high=high, unit="GB/s")
        devices = best.spec.placement.devices
        return untested(claim, f"{reason}; here {found.method} on {devices} devices", figure)

    return check


CHECKS: dict[str, Check] = {
    "001-22": loss_by_rate,
    "002-6": bus_bandwidth(("reduce", "broadcast"), "8 V100 in a cube mesh"),
    "002-7": never("it speaks of PCIe of earlier generations"),
    "002-16": never(
        "it needs four GPUs on a tree of PCIe switches, and a choice of who sends first"
    ),
    "003-10": days_to_train,
    "004-10": message("alexnet"),
    "004-11": never("it speaks of KNLs joined by Omni-Path and by Aries"),
    "004-14": same_error_rates,
}
