"""Why do N devices not come to N times one? What a step takes longer, part by part.

A step on N devices would take as long as on one, times the share of its minibatch that a device
still has (1 in weak scaling, 1/N in strong). What it takes beyond that is lost, and each part of
its attribution says how much of it: exposed communication and straggler wait, which one device has
not; computing that did not shrink with the minibatch, or slowed beside the others'; and the rest.
Parts are means over the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cubemesh.experiments.analysis.groups import Group
from cubemesh.measure.attribution.attribution import COMPUTE, PARTS
from cubemesh.measure.attribution.bottlenecks import remedy_of
from cubemesh.schema import Part, RunRecord

LEAST = 0.01
"""Of the step: what is less is not named as a loss."""
_SLOWER = (
    "devices that work at once share memory, power and clocks, and a smaller minibatch fills each "
    "of them less: see what they do each alone, all at once"
)


@dataclass(frozen=True, kw_only=True)
class StepOverhead:
    """What a step on several devices takes beyond its share of one device's."""

    step_s: float
    extra_s: float
    """In all; below 0 where the step is shorter than its share."""
    by_part: dict[str, float]
    """Seconds, the largest first."""

    @property
    def biggest(self) -> str:
        """The part in which most is lost; empty where none takes 1 % of the step."""
        name, seconds = next(iter(self.by_part.items()))
        return name if seconds >= LEAST * self.step_s else ""

    @property
    def remedy(self) -> str:
        """What to do about the biggest."""
        if not self.biggest:
            return ""
        return _SLOWER if self.biggest == COMPUTE else remedy_of(self.biggest)


def step_overhead(several: Group[Any], one: Group[Any]) -> StepOverhead | None:
    """What `several` devices lose against `one`; None where either was not taken apart."""
    apart, alone = profiled_record(several), profiled_record(one)
    if apart is None or alone is None:
        return None
    batches = [r.spec.batch_per_device or 1 for r in (apart, alone)]
    share = batches[0] / batches[1]
    parts, own = mean_parts(apart), mean_parts(alone)
    extra = {name: parts.get(name, 0.0) - share * own.get(name, 0.0) for name in {*parts, *own}}
    return StepOverhead(
        step_s=math.fsum(parts.values()),
        extra_s=math.fsum(extra.values()),
        by_part=dict(sorted(extra.items(), key=lambda pair: -pair[1])),
    )


def profiled_record(group: Group[Any]) -> RunRecord | None:
    """The first run of a point whose step was taken apart."""
    return next((r for r in group.ok if r.parts), None)


def parts_by_rank(record: RunRecord) -> dict[int, Sequence[Part]]:
    """The attribution of each rank."""
    return dict(enumerate(record.rank_parts or (record.parts,)))


def mean_parts(record: RunRecord) -> dict[str, float]:
    """Seconds of each part, the mean over the ranks, in the order of PARTS."""
    ranks = [{part.name: part.seconds for part in own} for own in parts_by_rank(record).values()]
    return {
        name: math.fsum(own.get(name, 0.0) for own in ranks) / len(ranks)
        for name in PARTS
        if any(name in own for own in ranks)
    }
