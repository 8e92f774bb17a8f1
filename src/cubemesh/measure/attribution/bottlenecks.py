"""Bottlenecks: the cause that costs a step most time, and its remedy.

Candidates are the parts in which nothing computes, and of `compute` what a throttled clock costs:
the fraction by which the clock was below its highest, an upper limit for kernels that wait for
memory.

Of several ranks every part is the mean over them, in every view: unlike medians, the means of the
parts add up to the mean step, and are fractions of the time of all devices. The mean straggler wait
is what equally fast ranks would save, since each would then take their mean time. Fractions are of
the mean step; below 1 % there is no remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from cubemesh.measure.attribution.attribution import (
    COMMUNICATION,
    COMPUTE,
    CPU_CONTENTION,
    GAPS,
    HOST,
    INPUT,
    INPUT_CONTENTION,
    PARTS,
    STRAGGLER,
    UNATTRIBUTED,
)
from cubemesh.measure.validity import CLOCK_LOSS
from cubemesh.schema.record import Part, RunRecord
from cubemesh.schema.work import OwnStep
from cubemesh.units import format_seconds

LEAST = 0.01
MAX_EXCESS = 0.05
"""By which fraction the measured parts may exceed the step; the profiled steps of a run above it
were not like the measured ones."""
CLOCK = "throttled_clock"
_REMEDIES = {
    INPUT: "prepare batches in more threads (input_threads), or cache the data locally",
    GAPS: "raise the batch size, or capture the step (framework=pytorch-compiled launches less)",
    HOST: "copy fewer bytes, or keep the data on the device (data_location=device)",
    COMMUNICATION: "raise the batch size, or overlap more communication with the backward pass",
    STRAGGLER: "give every rank the same work and machine, or find the slow rank",
    CPU_CONTENTION: "stop other programs, or give the run processors of its own (taskset, a Slurm "
    "allocation, a higher CPU limit of the container)",
    INPUT_CONTENTION: "leave processors to the step: decode less (cache_decoded=true, fewer "
    "input_threads), decode on the device, or use fewer compute threads",
    CLOCK: "improve cooling or raise the power limit; the warning throttled has the reason",
    UNATTRIBUTED: "stop other programs and measure again; trace=true shows the unattributed time",
}

_OWN_CODE = {
    INPUT: "prepare batches ahead in other processes (num_workers and prefetch_factor of a "
    "DataLoader), or cache the data",
    GAPS: "raise the batch size, or launch less: torch.compile, or a CUDA graph of the step",
    HOST: "copy fewer bytes, from pinned memory and without waiting (non_blocking=True)",
    INPUT_CONTENTION: "leave processors to the step: fewer workers of the DataLoader",
}
"""For a step of the user's own code, which has no settings."""


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The cause that costs most."""

    name: str
    """A part, or `throttled_clock`; empty below 1 %, and where the parts exceed the step by over
    5 %."""
    share: float
    """Fraction of the mean step, 0 to 1."""
    text: str
    """`31 % launch gaps at batch size 8`; of several ranks `…, mean over 4 ranks`."""
    remedy: str
    """How to reduce it; empty below 1 %."""


def excess_share(parts: Sequence[Part]) -> float | None:
    """By which fraction the measured parts exceed the step, if by more than 5 %; None otherwise."""
    step_s = math.fsum(part.seconds for part in parts)
    rest_s = math.fsum(part.seconds for part in parts if part.name == UNATTRIBUTED)
    return -rest_s / step_s if step_s > 0 and rest_s < -MAX_EXCESS * step_s else None


def excess_of(record: RunRecord) -> float | None:
    """By which fraction the parts of any rank exceed its step; None if by 5 % plus half of the 95 %
    interval of the throughput, or less."""
    found = [excess_share(parts) for parts in (record.parts, *record.rank_parts)]
    rate, half = record.figures.get("throughput_per_s"), 0.0
    if rate is not None and rate.value and rate.low is not None and rate.high is not None:
        half = (rate.high - rate.low) / 2 / rate.value
    least = MAX_EXCESS + half
    return max((share for share in found if share is not None and share > least), default=None)


def parts_by_rank(record: RunRecord) -> dict[int, Sequence[Part]]:
    """The attribution of each rank."""
    return dict(enumerate(record.rank_parts or (record.parts,)))


def step_parts(record: RunRecord) -> tuple[Part, ...]:
    """The attribution of a run: each part with its mean over the ranks, in the order of PARTS."""
    ranks = [{p.name: p for p in own} for own in parts_by_rank(record).values() if own]
    found = []
    for name in PARTS:
        own = [rank[name] for rank in ranks if name in rank]
        if own:
            seconds = math.fsum(part.seconds for part in own) / len(ranks)
            found.append(replace(own[0], seconds=seconds))
    return tuple(found)


def mean_parts(record: RunRecord) -> dict[str, float]:
    """Seconds of each part, the mean over the ranks, in the order of PARTS."""
    return {part.name: part.seconds for part in step_parts(record)}


def over_ranks(record: RunRecord) -> str:
    """`mean over 4 ranks` of a run of which several ranks were attributed; empty otherwise."""
    ranks = sum(bool(parts) for parts in record.rank_parts)
    return f"mean over {ranks} ranks" if ranks > 1 else ""


def largest_bottleneck(record: RunRecord) -> Bottleneck | None:
    """The largest bottleneck of an attributed run; None without an attribution."""
    found = losses(record)
    if not found:
        return None
    batch = record.spec.batch_per_device
    at = "" if batch is None else f" at batch size {batch}"
    if (excess := excess_of(record)) is not None:
        text = f"Unknown{at}: the measured parts exceed the step by {100 * excess:.0f} %"
        return Bottleneck(name="", share=0.0, text=text, remedy=_REMEDIES[UNATTRIBUTED])
    name, share = next(iter(found.items()))
    if share < LEAST:
        text = f"No bottleneck{at}: no overhead reaches 1 % of the step"
        return Bottleneck(name="", share=share, text=text, remedy="")
    text = f"{100 * share:.0f} % {name.replace('_', ' ')}{at}"
    if over := over_ranks(record):
        text += f", {over}"
    if found.get(STRAGGLER, 0.0) >= LEAST:
        text += _slowest_rank(record)
    remedies = _REMEDIES | _OWN_CODE if isinstance(record.spec.work, OwnStep) else _REMEDIES
    return Bottleneck(name=name, share=share, text=text, remedy=remedies[name])


def losses(record: RunRecord) -> dict[str, float]:
    """Causes of lost time and the fraction of the step that each costs, the mean over the ranks;
    the largest first. Empty without an attribution."""
    parts = mean_parts(record)
    step_s = math.fsum(parts.values())
    if step_s <= 0:
        return {}
    found = {name: parts[name] / step_s for name in _REMEDIES if name in parts}
    lost = record.figure(CLOCK_LOSS)
    if lost is not None:
        found[CLOCK] = lost / 100 * parts.get(COMPUTE, 0.0) / step_s
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _slowest_rank(record: RunRecord) -> str:
    """`; rank 1 is the slowest, by 4 ms of cpu contention`: the rank that waits least for others,
    and the part in which it exceeds their median most."""
    ranks = [{part.name: part.seconds for part in parts} for parts in record.rank_parts]
    if len(ranks) < 2:
        return ""
    slowest = min(range(len(ranks)), key=lambda rank: ranks[rank].get(STRAGGLER, math.inf))
    others = [own for rank, own in enumerate(ranks) if rank != slowest]
    more = {
        name: seconds - median([own.get(name, 0.0) for own in others])
        for name, seconds in ranks[slowest].items()
        if name not in (STRAGGLER, COMMUNICATION, UNATTRIBUTED)
    }
    name, seconds = _largest(more)
    by = f", by {format_seconds(seconds)} of {name.replace('_', ' ')}" if seconds > 0 else ""
    return f"; rank {slowest} is the slowest{by}"


def _largest(found: Mapping[str, float]) -> tuple[str, float]:
    return max(found.items(), key=lambda pair: pair[1], default=("", 0.0))


def remedy_of(name: str) -> str:
    """Remedy for a part in which nothing computes; empty for other parts."""
    return _REMEDIES.get(name, "")
