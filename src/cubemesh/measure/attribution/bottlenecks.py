"""What does a step lose most time to, and what can be done about it?

A loss is a part of the attribution in which nothing computes. Shares are of the mean step; what is
less than one part in a hundred is not worth a remedy.
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
    INPUT: "make batches ahead in more threads (input_threads), or stage the data nearer",
    GAPS: "raise the minibatch or capture the step (framework=pytorch-compiled launches less)",
    HOST: "hand over fewer bytes, or keep the data on the device (data_location=device)",
    COMMUNICATION: "raise the minibatch, or let more of the exchange overlap the backward pass",
    STRAGGLER: "give every rank the same work and the same machine, or look for the slow one",
    OTHER: "stop other programs and measure again; trace=true shows what has no name",
}


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The part in which most is lost."""

    name: str
    """A part's name, or empty where nothing worth a remedy is lost."""
    share: float
    """Of the mean step, 0 to 1."""
    text: str
    """`31 % launch gaps at minibatch 8`."""
    remedy: str
    """What to do about it; empty where there is nothing to do."""


def largest_bottleneck(parts: Sequence[Part], spec: RunSpec) -> Bottleneck | None:
    """The biggest loss of an attribution; None where there is no attribution."""
    step_s = math.fsum(part.seconds for part in parts)
    if not parts or step_s <= 0:
        return None
    lost = [part for part in parts if part.name in _REMEDIES]
    worst = max(lost, key=lambda part: part.seconds)
    share = worst.seconds / step_s
    at = f"at minibatch {spec.batch_per_device}"
    if share < LEAST:
        text = f"Nothing much is lost {at}: no loss takes 1 % of the step"
        return Bottleneck(name="", share=share, text=text, remedy="")
    text = f"{100 * share:.0f} % {worst.name.replace('_', ' ')} {at}"
    return Bottleneck(name=worst.name, share=share, text=text, remedy=_REMEDIES[worst.name])


def remedy_of(name: str) -> str:
    """What to do about a part in which nothing computes; empty for one that is no loss."""
    return _REMEDIES.get(name, "")
