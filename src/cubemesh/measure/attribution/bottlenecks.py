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
    GAPS,
    HOST,
    INPUT,
    OTHER,
    STRAGGLER,
)
from cubemesh.schema.record import Part
from cubemesh.schema.spec import RunSpec

LEAST = 0.01
_REMEDIES = {
    INPUT: "prepare batches in more threads (input_threads), or cache the data locally",
    GAPS: "raise the batch size, or capture the step (framework=pytorch-compiled launches less)",
    HOST: "copy fewer bytes, or keep the data on the device (data_location=device)",
    COMMUNICATION: "raise the batch size, or overlap more communication with the backward pass",
    STRAGGLER: "give every rank the same work and machine, or find the slow rank",
    OTHER: "stop other programs and measure again; trace=true shows the unattributed time",
}


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The part that costs most."""

    name: str
    """The part's name; empty below 1 %."""
    share: float
    """Fraction of the mean step, 0 to 1."""
    text: str
    """`31 % launch gaps at batch size 8`."""
    remedy: str
    """How to reduce it; empty below 1 %."""


def largest_bottleneck(parts: Sequence[Part], spec: RunSpec) -> Bottleneck | None:
    """The largest bottleneck of an attribution; None without one."""
    step_s = math.fsum(part.seconds for part in parts)
    if not parts or step_s <= 0:
        return None
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
