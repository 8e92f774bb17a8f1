"""Experiments that are asked together under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.experiments.base import Scale


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One experiment of a suite, with the settings it has there."""

    experiment: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """As on the command line: key → value as text."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A line of the table of suites."""

    summary: str
    asks: tuple[Ask, ...]
    scale: Scale = Scale.DEFAULT
    """Used unless the command says --quick or --full."""
    document: str = ""
    """The document it replays: its claims are marked after the answers. Empty for none."""


SUITES: dict[str, Suite] = {
    "quick": Suite(
        summary="a first look at this machine, in under three minutes on two cores",
        scale=Scale.QUICK,
        asks=(
            Ask(experiment="minibatch", settings={"data": "digits"}),
            Ask(experiment="batch-accuracy"),
        ),
    ),
    "doc-000": Suite(
        summary="document 000, as far as this version goes: its minibatch study, and its claims",
        document="000",
        asks=(
            Ask(
                experiment="minibatch",
                settings={"network": "alexnet", "batches": "4,8,16,32,64"},
            ),
            Ask(experiment="minibatch", settings={"network": "vgg16"}),
        ),
    ),
    "doc-001": Suite(
        summary="document 001, as far as this version goes: figure 1, and its claims",
        document="001",
        asks=(
            Ask(experiment="minibatch"),
            Ask(experiment="batch-accuracy"),
        ),
    ),
}
