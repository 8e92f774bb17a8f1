"""Passes through a network that experiments time: which work measures each, and its titles.

    inference          forward pass in evaluation mode, without the loss: batch normalization by
                       running statistics, no dropout; batches are queued one after another
    forward            forward pass in training mode, with the loss
    forward-backward   forward and backward pass in training mode, without an update
    training           a training step: forward and backward pass, and the update

Addfor 2016 [000] times the forward pass and forward+backward, the mean of 100 runs each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cubemesh.schema import Forward, ForwardBackward, Infer, RunRecord, TrainSteps

Pass = Literal["inference", "forward", "forward-backward", "training"]
TimedWork = Infer | Forward | ForwardBackward | TrainSteps


@dataclass(frozen=True, kw_only=True)
class PassKind:
    """A line of `PASSES`."""

    work: type[TimedWork]
    title: str
    """Of its table and chart."""
    short: str
    """In the head of a column, and in a sentence with an article before it."""


PASSES: dict[Pass, PassKind] = {
    "inference": PassKind(
        work=Infer, title="Forward in evaluation mode, without the loss", short="inference pass"
    ),
    "forward": PassKind(work=Forward, title="Forward", short="forward pass"),
    "forward-backward": PassKind(
        work=ForwardBackward, title="Forward + backward", short="forward and backward pass"
    ),
    "training": PassKind(
        work=TrainSteps, title="Forward + backward + update", short="training step"
    ),
}
"""In the order of their parts: each has more than the one before."""
WORKS = tuple(kind.work for kind in PASSES.values())
"""The kinds of work of an experiment with passes."""
VARIES = {"scenario": "passes"}
"""Spec fields that such an experiment sets → the setting to use instead."""


def work_of(name: Pass, **fields: Any) -> TimedWork:
    """The work that measures a pass."""
    kind = PASSES[name].work
    return Infer(scenario="offline", **fields) if kind is Infer else kind(**fields)


def of_pass(record: RunRecord, name: Pass) -> bool:
    """Whether a record measured this pass."""
    return isinstance(record.spec.work, PASSES[name].work)
