"""When does a claim hold? The rules by which a measured figure becomes a verdict.

- A *value* holds when the 95 % interval of what was measured comes within 10 % of the document's.
- A *bound*, *direction* or *sign* holds, or does not, when the whole interval lies on one side of
  the limit; an interval that holds the limit itself settles nothing.
- A claim over *several networks* holds when it holds for each one that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cubemesh.experiments.analysis.ratios import bounds
from cubemesh.schema import Claim, ClaimState, Figure, Verdict
from cubemesh.units import format_interval

CLOSE = 0.1
"""How far a measured value may lie from a document's, as a share of it, to be called the same."""


def untested(claim: Claim, reason: str, measured: Figure | None = None) -> Verdict:
    """The verdict of a claim that nothing here can settle."""
    return Verdict(
        claim=claim, state=ClaimState.CANNOT_BE_TESTED_HERE, reason=reason, measured=measured
    )


def never(reason: str) -> Callable[[Claim, object], Verdict]:
    """The check of a claim that no measurement here can settle."""
    return lambda claim, evidence: untested(claim, reason)


def close(claim: Claim, figure: Figure, what: str) -> Verdict:
    """Whether the interval of `figure` comes within 10 % of the claim's value."""
    value = claim.values[0]
    low, high = bounds(figure)
    holds = low <= value * (1 + CLOSE) and high >= value * (1 - CLOSE)
    state = ClaimState.HOLDS if holds else ClaimState.DOES_NOT_HOLD
    how = "within" if holds else "not within"
    reason = f"{what}: {how} {100 * CLOSE:.0f} % of {value:g}"
    return Verdict(claim=claim, state=state, reason=reason, measured=figure)


def sided(claim: Claim, figure: Figure, limit: float, side: float, what: str) -> Verdict:
    """Whether all of `figure` lies above `limit` (side 1) or below it (side -1)."""
    low, high = bounds(figure)
    if low <= limit <= high:
        shown = format_interval(figure.value, low, high)
        reason = f"{what}: {shown} lies on both sides of {limit:g}; more runs would tell"
        return untested(claim, reason, figure)
    holds = low > limit if side > 0 else high < limit
    state = ClaimState.HOLDS if holds else ClaimState.DOES_NOT_HOLD
    return Verdict(claim=claim, state=state, reason=what, measured=figure)


def every(claim: Claim, networks: Iterable[str], one: Callable[[str], Verdict]) -> Verdict:
    """A claim over several networks holds when it holds for each that was measured: the verdict is
    of the first for which it does not, else of the first that could not be told."""
    verdicts = [one(network) for network in networks]
    for state in (ClaimState.DOES_NOT_HOLD, ClaimState.CANNOT_BE_TESTED_HERE, ClaimState.HOLDS):
        for verdict in verdicts:
            if verdict.state is state:
                return verdict
    return untested(claim, "no network it speaks of was measured")
