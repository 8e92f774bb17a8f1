"""Bottlenecks: the part of the attribution that costs most step time, and its remedy.

Only parts in which nothing computes count. Fractions are of the mean step; below 1 % there is no
remedy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.measure.attribution.attribution import (
    COMMUNICATION,
    CPU_CONTENTION,
    GAPS,
    HOST,
    INPUT,
    INPUT_CONTENTION,
    STRAGGLER,
    UNATTRIBUTED,
)
from cubemesh.schema.record import Part
from cubemesh.schema.spec import RunSpec

LEAST = 0.01
MAX_EXCESS = 0.05
"""By which fraction the measured parts may exceed the step; the profiled steps of a run above it
were not like the measured ones."""
_REMEDIES = {
    INPUT: "prepare batches in more threads (input_threads), or cache the data locally",
    GAPS: "raise the batch size, or capture the step (framework=pytorch-compiled launches less)",
    HOST: "copy fewer bytes, or keep the data on the device (data_location=device)",
    COMMUNICATION: "raise the batch size, or overlap more communication with the backward pass",
    STRAGGLER: "give every rank the same work and machine, or find the slow rank",
    CPU_CONTENTION: "stop other programs, or give the run processors of its own (taskset, a Slurm "
    "allocation)",
    INPUT_CONTENTION: "leave processors to the step: decode less (cache_decoded=true, fewer "
    "input_threads), decode on the device, or use fewer compute threads",
    UNATTRIBUTED: "stop other programs and measure again; trace=true shows the unattributed time",
}


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The part that costs most."""

    name: str
    """The part's name; empty below 1 %, and where the parts exceed the step by over 5 %."""
    share: float
    """Fraction of the mean step, 0 to 1."""
    text: str
    """`31 % launch gaps at batch size 8`."""
    remedy: str
    """How to reduce it; empty below 1 %."""


def excess_share(parts: Sequence[Part]) -> float | None:
    """By which fraction the measured parts exceed the step, if by more than 5 %; None otherwise."""
    step_s = math.fsum(part.seconds for part in parts)
    rest_s = math.fsum(part.seconds for part in parts if part.name == UNATTRIBUTED)
    return -rest_s / step_s if step_s > 0 and rest_s < -MAX_EXCESS * step_s else None


def largest_bottleneck(parts: Sequence[Part], spec: RunSpec) -> Bottleneck | None:
    """The largest bottleneck of an attribution; None without one."""
    step_s = math.fsum(part.seconds for part in parts)
    if not parts or step_s <= 0:
        return None
    if (excess := excess_share(parts)) is not None:
        text = f"Unknown at batch size {spec.batch_per_device}: the measured parts exceed the step "
        text += f"by {100 * excess:.0f} %"
        return Bottleneck(name="", share=0.0, text=text, remedy=_REMEDIES[UNATTRIBUTED])
    overheads = [part for part in parts if part.name in _REMEDIES]
    worst = max(overheads, key=lambda part: part.seconds)
    share = worst.seconds / step_s
    at = f"at batch size {spec.batch_per_device}"
    if share < LEAST:
        text = f"No bottleneck {at}: no overhead reaches 1 % of the step"
        return Bottleneck(name="", share=share, text=text, remedy="")
    text = f"{100 * share:.0f} % {worst.name.replace('_', ' ')} {at}"
    return Bottleneck(name=worst.name, share=share, text=text, remedy=_REMEDIES[worst.name])


def remedy_of(name: str) -> str:
    """Remedy for a part in which nothing computes; empty for other parts."""
    return _REMEDIES.get(name, "")
