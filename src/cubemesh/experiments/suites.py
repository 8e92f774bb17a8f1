"""Experiments that are asked together under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.experiments.core.experiment import Scale
from cubemesh.experiments.frameworks import NETWORKS, QUICK_NETWORKS


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One experiment of a suite, with the settings it has there."""

    experiment: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """As on the command line: key → value as text."""
    place: str = ""
    """The figure or table that it re-runs, by the document's own number or heading."""
    quick: bool = True
    """Whether --quick asks it too."""


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
            Ask(experiment="cpu-modes", settings={"data": "digits", "batch_sizes": "16"}),
            Ask(experiment="time-breakdown", settings={"batch_sizes": "8"}),
            Ask(experiment="input-pipeline", settings={"parts": "read,decode,disk,device"}),
            Ask(experiment="collectives"),
        ),
    ),
    "full": Suite(
        summary="everything this version can find out about one machine, in hours",
        scale=Scale.FULL,
        asks=(
            Ask(experiment="ceilings"),
            Ask(experiment="collectives"),
            Ask(experiment="minibatch", settings={"data_location": "both"}),
            Ask(experiment="model-size", settings={"data_location": "both"}),
            Ask(experiment="precision"),
            Ask(experiment="frameworks"),
            Ask(experiment="time-breakdown"),
            Ask(experiment="power"),
            Ask(experiment="cpu-modes"),
            Ask(experiment="input-pipeline"),
            Ask(experiment="batch-accuracy"),
            Ask(experiment="weak-scaling"),
            Ask(experiment="strong-scaling"),
            Ask(experiment="strategies"),
            Ask(experiment="interconnect"),
            Ask(experiment="sequential-equivalence"),
            Ask(experiment="lr-scaling"),
            Ask(experiment="time-to-accuracy"),
        ),
    ),
    "doc-000": Suite(
        summary="document 000: its matrix of frameworks and networks, its minibatch study, and its "
        "claims",
        document="000",
        asks=(
            Ask(experiment="frameworks", place="000, framework and network"),
            *(
                Ask(
                    experiment="minibatch",
                    settings={"network": network, "smallest": "4", "largest": "128"}
                    | ({"always": "16"} if network == "alexnet" else {"ceiling": "false"}),
                    place="000, minibatch efficiency",
                    quick=network in QUICK_NETWORKS,
                )
                for network in NETWORKS
            ),
        ),
    ),
    "doc-001": Suite(
        summary="document 001: figures 1 to 6, of one device and of several, and its claims",
        document="001",
        asks=(
            Ask(experiment="minibatch", settings={"data_location": "both"}, place="001 figure 1"),
            Ask(experiment="batch-accuracy", place="001 figure 1"),
            Ask(experiment="image-size", settings={"data_location": "both"}, place="001 figure 2"),
            Ask(experiment="model-size", settings={"data_location": "both"}, place="001 figure 3"),
            Ask(
                experiment="weak-scaling",
                settings={"networks": "little-cnn,resnet-50,vgg16"},
                place="001 figure 4",
                quick=False,
            ),
            Ask(
                experiment="strategies",
                settings={"networks": "resnet-50"},
                place="001 figure 4",
                quick=False,
            ),
            Ask(experiment="lr-scaling", place="001 figures 5 and 6"),
        ),
    ),
    "doc-002": Suite(
        summary="document 002: links, collectives, translators and its cluster, and its claims",
        document="002",
        asks=(
            Ask(experiment="cluster", place="002 table 1"),
            Ask(experiment="collectives", place="002 section 4.4"),
            Ask(experiment="interconnect", place="002 figures 5 to 7", quick=False),
            Ask(experiment="seq2seq", place="002 figure 15", quick=False),
        ),
    ),
    "doc-003": Suite(
        summary="document 003: scaling over devices and what the network costs it, and its claims",
        document="003",
        asks=(
            Ask(
                experiment="weak-scaling",
                settings={"networks": "googlenet,inception-v3,inception-bn"},
                place="003 figures 2 to 6",
                quick=False,
            ),
            Ask(
                experiment="interconnect",
                settings={"networks": "googlenet,inception-bn"},
                place="003, testing methodology",
                quick=False,
            ),
            Ask(experiment="time-to-accuracy", place="003, time to train", quick=False),
        ),
    ),
    "doc-004": Suite(
        summary="document 004: scaling, where time goes, power against performance, several "
        "devices against one, and its claims",
        document="004",
        asks=(
            Ask(experiment="cpu-modes", place="004 figure 5"),
            Ask(experiment="time-breakdown", place="004 figures 7, 9, 11 and 13"),
            Ask(experiment="power", place="004 figures 16 to 19"),
            Ask(experiment="strong-scaling", place="004 section 5.3", quick=False),
            Ask(experiment="collectives", place="004 figure 14"),
            Ask(
                experiment="weak-scaling",
                settings={"networks": "resnet-50"},
                place="004 section 5.4",
                quick=False,
            ),
            Ask(
                experiment="interconnect",
                settings={"networks": "alexnet,googlenet"},
                place="004 abstract",
                quick=False,
            ),
            Ask(experiment="sequential-equivalence", place="004 section 5.1"),
        ),
    ),
}
