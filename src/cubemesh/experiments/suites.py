"""Suites: experiments that run together under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cubemesh.experiments.core.experiment import Scale
from cubemesh.experiments.frameworks import NETWORKS, QUICK_NETWORKS
from cubemesh.schema.published import PAPERS, cite


@dataclass(frozen=True, kw_only=True)
class SuiteEntry:
    """One experiment of a suite, with its settings."""

    experiment: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """As on the command line: key → value as text."""
    reproduces: str = ""
    """The figure or table of the paper that it reproduces."""
    quick: bool = True
    """Whether --quick includes it."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite."""

    summary: str
    entries: tuple[SuiteEntry, ...]
    scale: Scale = Scale.DEFAULT
    """The default scale."""
    paper: str = ""
    """The id of the paper it reproduces, whose claims are checked after the answers."""


SUITES: dict[str, Suite] = {
    "quick": Suite(
        summary="a first look at this machine, in under three minutes on two cores",
        scale=Scale.QUICK,
        entries=(
            SuiteEntry(experiment="minibatch", settings={"data": "digits"}),
            SuiteEntry(experiment="batch-accuracy"),
            SuiteEntry(experiment="cpu-modes", settings={"data": "digits", "batch_sizes": "16"}),
            SuiteEntry(experiment="time-breakdown", settings={"batch_sizes": "8"}),
            SuiteEntry(experiment="input-pipeline", settings={"parts": "read,decode,disk,device"}),
            SuiteEntry(experiment="collectives"),
        ),
    ),
    "full": Suite(
        summary="all experiments on one machine, in hours",
        scale=Scale.FULL,
        entries=(
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
        summary=f"{PAPERS['000']}: matrix of frameworks and networks, batch sizes, and its claims",
        paper="000",
        entries=(
            SuiteEntry(experiment="frameworks", reproduces=cite("000", "framework and network")),
            *(
                SuiteEntry(
                    experiment="minibatch",
                    settings={"networks": network, "min_batch_size": "4", "max_batch_size": "128"}
                    | (
                        {"min_largest_batch": "16"}
                        if network == "alexnet"
                        else {"ceiling": "false"}
                    ),
                    reproduces=cite("000", "minibatch efficiency"),
                    quick=network in QUICK_NETWORKS,
                )
                for network in NETWORKS
            ),
        ),
    ),
    "doc-001": Suite(
        summary=f"{PAPERS['001']}: figures 1 to 6, and its claims",
        paper="001",
        entries=(
            SuiteEntry(
                experiment="minibatch",
                settings={"data_location": "both"},
                reproduces=cite("001", "figure 1"),
            ),
            SuiteEntry(experiment="batch-accuracy", reproduces=cite("001", "figure 1")),
            SuiteEntry(
                experiment="image-size",
                settings={"data_location": "both"},
                reproduces=cite("001", "figure 2"),
            ),
            SuiteEntry(
                experiment="model-size",
                settings={"data_location": "both"},
                reproduces=cite("001", "figure 3"),
            ),
            SuiteEntry(
                experiment="weak-scaling",
                settings={"networks": "little-cnn,resnet-50,vgg16"},
                reproduces=cite("001", "figure 4"),
                quick=False,
            ),
            SuiteEntry(
                experiment="strategies",
                settings={"networks": "resnet-50"},
                reproduces=cite("001", "figure 4"),
                quick=False,
            ),
            SuiteEntry(experiment="lr-scaling", reproduces=cite("001", "figures 5 and 6")),
        ),
    ),
    "doc-002": Suite(
        summary=f"{PAPERS['002']}: links, collectives, translators, a cluster, and its claims",
        paper="002",
        entries=(
            SuiteEntry(experiment="cluster", reproduces=cite("002", "table 1")),
            SuiteEntry(experiment="collectives", reproduces=cite("002", "section 4.4")),
            SuiteEntry(
                experiment="interconnect", reproduces=cite("002", "figures 5 to 7"), quick=False
            ),
            SuiteEntry(experiment="seq2seq", reproduces=cite("002", "figure 15"), quick=False),
        ),
    ),
    "doc-003": Suite(
        summary=f"{PAPERS['003']}: scaling over devices, cost of the network, and its claims",
        paper="003",
        entries=(
            SuiteEntry(
                experiment="weak-scaling",
                settings={"networks": "googlenet,inception-v3,inception-bn"},
                reproduces=cite("003", "figures 2 to 6"),
                quick=False,
            ),
            SuiteEntry(
                experiment="interconnect",
                settings={"networks": "googlenet,inception-bn"},
                reproduces=cite("003", "testing methodology"),
                quick=False,
            ),
            SuiteEntry(
                experiment="time-to-accuracy", reproduces=cite("003", "time to train"), quick=False
            ),
        ),
    ),
    "doc-004": Suite(
        summary=f"{PAPERS['004']}: scaling, step time, power, equivalence, and its claims",
        paper="004",
        entries=(
            SuiteEntry(experiment="cpu-modes", reproduces=cite("004", "figure 5")),
            SuiteEntry(
                experiment="time-breakdown", reproduces=cite("004", "figures 7, 9, 11 and 13")
            ),
            SuiteEntry(experiment="power", reproduces=cite("004", "figures 16 to 19")),
            SuiteEntry(
                experiment="strong-scaling", reproduces=cite("004", "section 5.3"), quick=False
            ),
            SuiteEntry(experiment="collectives", reproduces=cite("004", "figure 14")),
            SuiteEntry(
                experiment="weak-scaling",
                settings={"networks": "resnet-50"},
                reproduces=cite("004", "section 5.4"),
                quick=False,
            ),
            SuiteEntry(
                experiment="interconnect",
                settings={"networks": "alexnet,googlenet"},
                reproduces=cite("004", "abstract"),
                quick=False,
            ),
            SuiteEntry(experiment="sequential-equivalence", reproduces=cite("004", "section 5.1")),
        ),
    ),
}
