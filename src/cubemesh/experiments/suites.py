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


SUITES: dict[str, Suite] = {
    "quick": Suite(
        summary="a first look at this machine, in under three minutes on two cores",
        scale=Scale.QUICK,
        asks=(
            Ask(experiment="minibatch", settings={"data": "digits"}),
            Ask(experiment="batch-accuracy"),
        ),
    ),
}
