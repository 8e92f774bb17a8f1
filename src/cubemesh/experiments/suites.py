"""Experiments that are asked together under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.experiments.core.experiment import Scale
from cubemesh.experiments.frameworks import NETWORKS, QUICK_NETWORKS


@dataclass(frozen=True, kw_only=True)
class SuiteEntry:
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
    asks: tuple[SuiteEntry, ...]
    scale: Scale = Scale.DEFAULT
    """Used unless the command says --quick or --full."""
    document: str = ""
    """The document it replays: its claims are marked after the answers. Empty for none."""


SUITES: dict[str, Suite] = {
    "quick": Suite(
        summary="a first look at this machine, in under three minutes on two cores",
        scale=Scale.QUICK,
        asks=(
            SuiteEntry(experiment="minibatch", settings={"data": "digits"}),
            SuiteEntry(experiment="batch-accuracy"),
            SuiteEntry(experiment="cpu-modes", settings={"data": "digits", "batch_sizes": "16"}),
            SuiteEntry(experiment="time-breakdown", settings={"batch_sizes": "8"}),
            SuiteEntry(experiment="input-pipeline", settings={"parts": "read,decode,disk,device"}),
            SuiteEntry(experiment="collectives"),
        ),
    ),
    "full": Suite(
        summary="everything this version can find out about one machine, in hours",
        scale=Scale.FULL,
        asks=(
            SuiteEntry(experiment="ceilings"),
            SuiteEntry(experiment="collectives"),
            SuiteEntry(experiment="minibatch", settings={"data_location": "both"}),
            SuiteEntry(experiment="model-size", settings={"data_location": "both"}),
            SuiteEntry(experiment="precision"),
            SuiteEntry(experiment="frameworks"),
            SuiteEntry(experiment="time-breakdown"),
            SuiteEntry(experiment="power"),
            SuiteEntry(experiment="cpu-modes"),
            SuiteEntry(experiment="input-pipeline"),
            SuiteEntry(experiment="batch-accuracy"),
            SuiteEntry(experiment="weak-scaling"),
            SuiteEntry(experiment="strong-scaling"),
            SuiteEntry(experiment="strategies"),
            SuiteEntry(experiment="interconnect"),
            SuiteEntry(experiment="sequential-equivalence"),
            SuiteEntry(experiment="lr-scaling"),
            SuiteEntry(experiment="time-to-accuracy"),
        ),
    ),
    "doc-000": Suite(
        summary="document 000: its matrix of frameworks and networks, its minibatch study, and its "
        "claims",
        document="000",
        asks=(
            SuiteEntry(experiment="frameworks", place="000, framework and network"),
            *(
                SuiteEntry(
                    experiment="minibatch",
                    settings={"networks": network, "min_batch_size": "4", "max_batch_size": "128"}
                    | (
                        {"min_largest_batch": "16"}
                        if network == "alexnet"
                        else {"ceiling": "false"}
                    ),
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
            SuiteEntry(
                experiment="minibatch", settings={"data_location": "both"}, place="001 figure 1"
            ),
            SuiteEntry(experiment="batch-accuracy", place="001 figure 1"),
            SuiteEntry(
                experiment="image-size", settings={"data_location": "both"}, place="001 figure 2"
            ),
            SuiteEntry(
                experiment="model-size", settings={"data_location": "both"}, place="001 figure 3"
            ),
            SuiteEntry(
                experiment="weak-scaling",
                settings={"networks": "little-cnn,resnet-50,vgg16"},
                place="001 figure 4",
                quick=False,
            ),
            SuiteEntry(
                experiment="strategies",
                settings={"networks": "resnet-50"},
                place="001 figure 4",
                quick=False,
            ),
            SuiteEntry(experiment="lr-scaling", place="001 figures 5 and 6"),
        ),
    ),
    "doc-002": Suite(
        summary="document 002: links, collectives, translators and its cluster, and its claims",
        document="002",
        asks=(
            SuiteEntry(experiment="cluster", place="002 table 1"),
            SuiteEntry(experiment="collectives", place="002 section 4.4"),
            SuiteEntry(experiment="interconnect", place="002 figures 5 to 7", quick=False),
            SuiteEntry(experiment="seq2seq", place="002 figure 15", quick=False),
        ),
    ),
    "doc-003": Suite(
        summary="document 003: scaling over devices and what the network costs it, and its claims",
        document="003",
        asks=(
            SuiteEntry(
                experiment="weak-scaling",
                settings={"networks": "googlenet,inception-v3,inception-bn"},
                place="003 figures 2 to 6",
                quick=False,
            ),
            SuiteEntry(
                experiment="interconnect",
                settings={"networks": "googlenet,inception-bn"},
                place="003, testing methodology",
                quick=False,
            ),
            SuiteEntry(experiment="time-to-accuracy", place="003, time to train", quick=False),
        ),
    ),
    "doc-004": Suite(
        summary="document 004: scaling, where time goes, power against performance, several "
        "devices against one, and its claims",
        document="004",
        asks=(
            SuiteEntry(experiment="cpu-modes", place="004 figure 5"),
            SuiteEntry(experiment="time-breakdown", place="004 figures 7, 9, 11 and 13"),
            SuiteEntry(experiment="power", place="004 figures 16 to 19"),
            SuiteEntry(experiment="strong-scaling", place="004 section 5.3", quick=False),
            SuiteEntry(experiment="collectives", place="004 figure 14"),
            SuiteEntry(
                experiment="weak-scaling",
                settings={"networks": "resnet-50"},
                place="004 section 5.4",
                quick=False,
            ),
            SuiteEntry(
                experiment="interconnect",
                settings={"networks": "alexnet,googlenet"},
                place="004 abstract",
                quick=False,
            ),
            SuiteEntry(experiment="sequential-equivalence", place="004 section 5.1"),
        ),
    ),
}
