"""Evidence and verdicts of papers' claims: the records of a replay, and the rules that settle a
claim.

- A *value* holds if the 95 % interval of the measurement comes within 10 % of the paper's value.
- A *bound*, *direction* or *sign* holds, or does not, if the whole interval is on one side of the
  limit; an interval that contains the limit is inconclusive.
- A claim over *several networks* holds if it holds for each one that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from cubemesh.experiments.analysis.groups import Group, caveats, group_by
from cubemesh.experiments.analysis.ratios import bounds
from cubemesh.networks import entry
from cubemesh.papers.published import same_device
from cubemesh.schema import (
    Claim,
    ClaimState,
    Figure,
    Machine,
    NetworkWork,
    RunRecord,
    Train,
    TrainSteps,
    Verdict,
)
from cubemesh.units import format_interval


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The records of one replay, and their machine."""

    records: tuple[RunRecord, ...]
    machine: Machine | None = None

    def steps(self, network: str, side: int | None = None) -> dict[int, Group[int]]:
        """Timed training steps of `network` by batch size, on images of `side` pixels (None: its
        own), with the first program: with data on the host, if both were measured."""
        found = [
            r
            for r in self.records
            if isinstance(r.spec.work, TrainSteps)
            and r.spec.work.network == network
            and _side(r.spec.work) == (side or entry(network).image_size)
        ]
        first = [r for r in found if r.spec.program == found[0].spec.program]
        groups = group_by(first, lambda r: r.spec.batch_per_device or 0)
        return {g.key: g for g in sorted(groups, key=lambda g: g.key) if g.throughput is not None}

    def sides(self, network: str) -> list[int]:
        """Image sizes at which training steps of `network` were timed."""
        works = (r.spec.work for r in self.records)
        own = (w for w in works if isinstance(w, TrainSteps) and w.network == network)
        return sorted({_side(w) for w in own})

    def trainings(self, network: str, batch: int) -> list[RunRecord]:
        """Completed trainings over epochs at this batch size."""
        return [
            r
            for r in self.records
            if isinstance(r.spec.work, Train)
            and (r.spec.work.network, r.spec.work.batch_per_device) == (network, batch)
            and "accuracy" in r.figures
        ]

    def networks(self) -> list[str]:
        """Networks with timed training steps."""
        works = (r.spec.work for r in self.records)
        names = (w.network for w in works if isinstance(w, TrainSteps))
        return [n for n in dict.fromkeys(names) if self.steps(n)]

    def ran_on(self, device: str) -> bool:
        """Whether every run used a GPU of this model."""
        gpus = self.machine.gpus if self.machine else ()
        on_gpu = all(rank.device != "cpu" for r in self.records for rank in r.ranks)
        return bool(gpus) and on_gpu and all(same_device(device, g.name) for g in gpus)


Check = Callable[[Claim, Evidence], Verdict]
"""Tests a claim against evidence."""


def _side(work: NetworkWork) -> int:
    return work.image_size or entry(work.network).image_size


CLOSE = 0.1
"""Largest relative difference between a measured and a paper's value that agree."""


def untested(claim: Claim, code: str, reason: str, measured: Figure | None = None) -> Verdict:
    """The verdict of a claim that the evidence does not settle."""
    state = ClaimState.CANNOT_BE_TESTED_HERE
    return Verdict(claim=claim, state=state, code=code, reason=reason, measured=measured)


def never(reason: str) -> Callable[[Claim, object], Verdict]:
    """The check of a claim that no measurement can settle."""
    return lambda claim, evidence: untested(claim, "not-testable", reason)


def close(claim: Claim, figure: Figure, what: str) -> Verdict:
    """Whether the interval of `figure` comes within 10 % of the claim's value."""
    value = claim.values[0]
    low, high = bounds(figure)
    holds = low <= value * (1 + CLOSE) and high >= value * (1 - CLOSE)
    state = ClaimState.HOLDS if holds else ClaimState.DOES_NOT_HOLD
    how = "within" if holds else "not within"
    reason = f"{what}: {how} {100 * CLOSE:.0f} % of {value:g}"
    code = "within-tolerance" if holds else "outside-tolerance"
    return Verdict(claim=claim, state=state, code=code, reason=reason, measured=figure)


def sided(claim: Claim, figure: Figure, limit: float, side: float, what: str) -> Verdict:
    """Whether the interval of `figure` is above `limit` (side 1) or below it (side -1)."""
    low, high = bounds(figure)
    if low <= limit <= high:
        shown = format_interval(figure.value, low, high)
        reason = f"{what}: the interval {shown} contains {limit:g}; inconclusive without more runs"
        return untested(claim, "inconclusive", reason, figure)
    holds = low > limit if side > 0 else high < limit
    state = ClaimState.HOLDS if holds else ClaimState.DOES_NOT_HOLD
    code = "above-limit" if low > limit else "below-limit"
    return Verdict(claim=claim, state=state, code=code, reason=what, measured=figure)


def every(claim: Claim, networks: Iterable[str], one: Callable[[str], Verdict]) -> Verdict:
    """A claim over several networks: the verdict of the first for which it does not hold, else of
    the first that is not settled."""
    verdicts = [one(network) for network in networks]
    for state in (ClaimState.DOES_NOT_HOLD, ClaimState.CANNOT_BE_TESTED_HERE, ClaimState.HOLDS):
        for verdict in verdicts:
            if verdict.state is state:
                return verdict
    return untested(claim, "not-measured", "its networks were not measured")


def with_runs(verdict: Verdict, *groups: Group[Any]) -> Verdict:
    """`verdict` with a run behind it, and the caveats of all its runs."""
    return replace(verdict, run_id=groups[0].run_id, caveats=caveats(*groups))


def scaled(figure: Figure, factor: float, unit: str) -> Figure:
    """`figure` times a factor, with its interval."""
    low, high = bounds(figure)
    return replace(
        figure, value=factor * figure.value, low=factor * low, high=factor * high, unit=unit
    )
