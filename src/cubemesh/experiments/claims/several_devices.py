"""Do the documents' claims about training on several devices hold here?

Whether losses grow or are equal is a direction, tested on any machine and any data; so is whether
several devices reach the error rate of one.
"""

from __future__ import annotations

from cubemesh.experiments import lr_scaling_shown
from cubemesh.experiments.claims.evidence import Check, Evidence
from cubemesh.experiments.claims.verdicts import untested
from cubemesh.experiments.equivalence import apart, comparable, error_rate
from cubemesh.experiments.lr_scaling_shown import EQUAL, pictures
from cubemesh.experiments.matrix import listed
from cubemesh.experiments.sequential_equivalence import comparisons
from cubemesh.model import Claim, Figure, FirstSteps, State, Train, Verdict


def loss_by_rate(claim: Claim, evidence: Evidence) -> Verdict:
    """001-22: with a constant rate the loss grows with the devices, with a scaled one it does not:
    it holds where both do."""
    trained = [r for r in evidence.records if isinstance(r.spec.work, Train)]
    constant, scaled = pictures(trained)
    grows, equals = constant.worst(), scaled.worst()
    if grows is None or equals is None:
        return untested(claim, "no two numbers of devices were trained with either rate")
    told = [f"{picture.name}: {lr_scaling_shown.told(picture)}" for picture in (constant, scaled)]
    holds = constant.rises() and 1 / EQUAL <= equals <= EQUAL
    return Verdict(
        claim=claim,
        state=State.HOLDS if holds else State.DOES_NOT_HOLD,
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
    off = [c for c in several if apart(error_rate(c.run), error_rate(c.reference)) > 0]
    works = [c.run.spec.work for c in several]
    told = sorted({f"{w.network} after {w.iterations}" for w in works if isinstance(w, FirstSteps)})
    run = (off or several)[0].run
    return Verdict(
        claim=claim,
        state=State.DOES_NOT_HOLD if off else State.HOLDS,
        measured=error_rate(run),
        reason=f"error rates of {len(several)} trainings on several devices against one: "
        f"{listed(told)} iterations",
        run_id=run.run_id,
    )


def days_to_train(claim: Claim, evidence: Evidence) -> Verdict:
    """003-10: under a day on four P100, over a week on a CPU; of no named network."""
    days = [v for r in evidence.records if (v := r.figure("projected_90_epochs_days")) is not None]
    reason = "it speaks of four P100 and of networks it does not name; measured here, 90 epochs"
    return untested(claim, reason, Figure(value=min(days), unit="days") if days else None)


CHECKS: dict[str, Check] = {
    "001-22": loss_by_rate,
    "003-10": days_to_train,
    "004-14": same_error_rates,
}
