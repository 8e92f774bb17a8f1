"""Evidence and verdicts of papers' claims: the records of a replay, and the rules that settle a
claim.

- A *value* holds if the 95 % interval of the measurement comes within 10 % of the paper's value.
- A *bound*, *direction* or *sign* holds, or does not, if the whole interval is on one side of the
  limit; an interval that contains the limit is inconclusive.
- A claim over *several networks* holds if it holds for each one that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cubemesh.experiments.analysis.groups import Group, caveats, group_by
from cubemesh.experiments.analysis.ratios import bounds, ratio
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
    reduced: bool = False
    """Whether they are of a run with --quick, which settles no claim."""

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

    def at(
        self, network: str, batches: Sequence[int | None], side: int | None = None
    ) -> tuple[Group[int], ...]:
        """The timed steps at each of `batches`; `Untested` if one was not measured."""
        groups = self.steps(network, side)
        for batch in batches:
            if batch not in groups:
                where = "" if side is None else f" on images of {side} pixels"
                others = ", ".join(str(s) for s in self.sides(network) if side not in (None, s))
                rest = f"; images of {others} pixels were" if others else ""
                size = "any batch size" if batch is None else f"batch size {batch}"
                reason = f"{network} at {size}{where} was not measured{rest}"
                raise Untested("not-measured", reason)
        return tuple(groups[batch] for batch in batches if batch is not None)

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
"""Tests a claim against evidence; raises `Untested` if that does not settle it."""


class Untested(Exception):
    """Why evidence does not settle a claim, with the same quantity as `measured`, if it was."""

    def __init__(
        self,
        code: str,
        reason: str,
        measured: Figure | None = None,
        groups: Sequence[Group[Any]] = (),
    ) -> None:
        super().__init__(reason)
        self.code, self.measured, self.groups = code, measured, groups

    def verdict(self, claim: Claim) -> Verdict:
        """The verdict of the claim that was tested."""
        return Verdict(
            claim=claim,
            state=ClaimState.CANNOT_BE_TESTED_HERE,
            code=self.code,
            reason=str(self),
            measured=self.measured,
            **_runs(self.groups),
        )


def _side(work: NetworkWork) -> int:
    return work.image_size or entry(work.network).image_size


CLOSE = 0.1
"""Largest relative difference between a measured and a paper's value that agree."""


def elsewhere(claim: Claim, evidence: Evidence, needs: str) -> Verdict:
    """A claim about other machines, which no measurement here settles."""
    raise Untested("other-device", f"it needs {needs}")


def settled(
    claim: Claim, holds: bool, code: str, reason: str, figure: Figure, *groups: Group[Any]
) -> Verdict:
    """A verdict with a run of `groups` and the caveats of all their runs."""
    state = ClaimState.HOLDS if holds else ClaimState.DOES_NOT_HOLD
    return Verdict(
        claim=claim, state=state, code=code, reason=reason, measured=figure, **_runs(groups)
    )


def _runs(groups: Sequence[Group[Any]]) -> dict[str, Any]:
    return {"run_id": groups[0].run_id, "caveats": caveats(*groups)} if groups else {}


def close(claim: Claim, figure: Figure, what: str, *groups: Group[Any]) -> Verdict:
    """Whether the interval of `figure` comes within 10 % of the claim's value."""
    value = claim.values[0]
    low, high = bounds(figure)
    holds = low <= value * (1 + CLOSE) and high >= value * (1 - CLOSE)
    reason = f"{what}: {'within' if holds else 'not within'} {100 * CLOSE:.0f} % of {value:g}"
    code = "within-tolerance" if holds else "outside-tolerance"
    return settled(claim, holds, code, reason, figure, *groups)


def absolute(
    claim: Claim, evidence: Evidence, figure: Figure, what: str, *groups: Group[Any]
) -> Verdict:
    """As `close`, on the device of the paper only."""
    device = claim.system.rpartition(" and ")[2]  # 8 P100 of "1 and 8 P100"
    if not evidence.ran_on(device):
        reason = f"an absolute figure of another device; measured here {what}"
        raise Untested("other-device", reason, figure, groups)
    return close(claim, figure, what, *groups)


def sided(
    claim: Claim, figure: Figure, limit: float, side: float, what: str, *groups: Group[Any]
) -> Verdict:
    """Whether the interval of `figure` is above `limit` (side 1) or below it (side -1)."""
    low, high = bounds(figure)
    if low <= limit <= high:
        shown = format_interval(figure.value, low, high)
        reason = f"{what}: the interval {shown} contains {limit:g}; inconclusive without more runs"
        raise Untested("inconclusive", reason, figure, groups)
    above = low > limit
    code = "above-limit" if above else "below-limit"
    return settled(claim, above == (side > 0), code, what, figure, *groups)


def every(claim: Claim, networks: Iterable[str], one: Callable[[str], Verdict]) -> Verdict:
    """A claim over several networks: the verdict of the first for which it does not hold, else of
    the first that is not settled."""
    verdicts = []
    for network in networks:
        try:
            verdicts.append(one(network))
        except Untested as why:
            verdicts.append(why.verdict(claim))
    for state in (ClaimState.DOES_NOT_HOLD, ClaimState.CANNOT_BE_TESTED_HERE, ClaimState.HOLDS):
        for verdict in verdicts:
            if verdict.state is state:
                return verdict
    raise Untested("not-measured", "its networks were not measured")


def rate(group: Group[Any]) -> Figure:
    """Throughput of a group that has one, as those of `Evidence.steps`."""
    assert group.throughput is not None
    return group.throughput


def rate_ratio(group: Group[Any], over: Group[Any]) -> Figure:
    """Throughput over throughput."""
    return replace(ratio(rate(group), rate(over)), unit="x")


def scaled(figure: Figure, factor: float, unit: str) -> Figure:
    """`figure` times a factor, with its interval."""
    low, high = bounds(figure)
    return replace(
        figure, value=factor * figure.value, low=factor * low, high=factor * high, unit=unit
    )
