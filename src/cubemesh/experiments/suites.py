"""Suites: experiments that run together under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from cubemesh.experiments.core.experiment import Scale
from cubemesh.experiments.frameworks import NETWORKS, QUICK_NETWORKS
from cubemesh.schema.published import PAPERS, cite

BOTH = {"data_location": "both"}


class SuiteEntry(NamedTuple):
    """One experiment of a suite."""

    experiment: str
    settings: Mapping[str, str] = MappingProxyType({})
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


def _replay(paper: str, contents: str, *entries: SuiteEntry) -> Suite:
    """The suite of a paper; each entry `reproduces` a figure, table or section of it."""
    return Suite(
        summary=f"{PAPERS[paper]}: {contents}, and its claims",
        entries=tuple(e._replace(reproduces=cite(paper, e.reproduces)) for e in entries),
        paper=paper,
    )


def _batch_sizes(network: str) -> SuiteEntry:
    """The figure of a network in Addfor 2016 [000]: its throughput by batch size."""
    more = {"min_largest_batch": "16"} if network == "alexnet" else {"ceiling": "false"}
    if network == "vgg16":  # the paper times its forward+backward pass at 64 and 128
        more["passes"] = "forward-backward,training"
    sizes = {"networks": network, "min_batch_size": "4", "max_batch_size": "128"}
    return SuiteEntry(
        "minibatch", sizes | more, "minibatch efficiency", quick=network in QUICK_NETWORKS
    )


SUITES: dict[str, Suite] = {
    "quick": Suite(
        summary="training speed of this machine, its largest loss and the remedy, in three minutes",
        scale=Scale.QUICK,
        entries=(SuiteEntry("performance-check"),),
    ),
    "full": Suite(
        summary="all experiments on one machine, in hours",
        scale=Scale.FULL,
        entries=(
            SuiteEntry("performance-check"),
            SuiteEntry("ceilings"),
            SuiteEntry("collectives"),
            SuiteEntry("minibatch", BOTH),
            SuiteEntry("model-size", BOTH),
            SuiteEntry("precision"),
            SuiteEntry("frameworks"),
            SuiteEntry("time-breakdown"),
            SuiteEntry("power"),
            SuiteEntry("cpu-modes"),
            SuiteEntry("input-pipeline"),
            SuiteEntry("batch-accuracy"),
            SuiteEntry("weak-scaling"),
            SuiteEntry("strong-scaling"),
            SuiteEntry("strategies"),
            SuiteEntry("interconnect"),
            SuiteEntry("sequential-equivalence"),
            SuiteEntry("lr-scaling"),
            SuiteEntry("time-to-accuracy"),
        ),
    ),
    "doc-000": _replay(
        "000",
        "matrix of frameworks and networks, batch sizes",
        SuiteEntry(
            "frameworks",
            {"passes": "inference,forward-backward,training"},
            "framework and network",
        ),
        *map(_batch_sizes, NETWORKS),
    ),
    "doc-001": _replay(
        "001",
        "figures 1 to 6",
        SuiteEntry("minibatch", BOTH, "figure 1"),
        SuiteEntry("batch-accuracy", {}, "figure 1"),
        SuiteEntry("image-size", BOTH, "figure 2"),
        SuiteEntry("model-size", BOTH, "figure 3"),
        SuiteEntry(
            "weak-scaling",
            {
                "networks": "little-cnn,resnet-50,vgg16",
                "strategies": "parameter-server-cpu,all-reduce",
            },
            "figure 4",
            quick=False,
        ),
        SuiteEntry("strategies", {"networks": "resnet-50"}, "figure 4", quick=False),
        SuiteEntry("lr-scaling", {}, "figures 5 and 6"),
        SuiteEntry(
            "time-to-accuracy",
            {"strategies": "all-reduce,asynchronous"},
            "figure 4",
            quick=False,
        ),
    ),
    "doc-002": _replay(
        "002",
        "links, collectives, translators, inference, a cluster",
        SuiteEntry("cluster", {}, "table 1"),
        SuiteEntry("collectives", {}, "section 4.4"),
        SuiteEntry("best-batch", {}, "figure 14", quick=False),
        SuiteEntry(
            "interconnect",
            {"networks": "inception-v3", "precision": "bf16", "scaling": "true"},
            "figure 5",
            quick=False,
        ),
        SuiteEntry(
            "interconnect",
            {"networks": "translator", "scaling": "true"},
            "figures 6 and 7",
            quick=False,
        ),
        SuiteEntry(
            "interconnect",
            {
                "networks": "translator-plain",
                "hidden_sizes": "512",
                "frameworks": "pytorch,jax",
                "scaling": "true",
            },
            "figure 15",
            quick=False,
        ),
        SuiteEntry("seq2seq", {}, "figure 15", quick=False),
        SuiteEntry("input-pipeline", {"networks": "alexnet"}, "section 5.3", quick=False),
        SuiteEntry("inference", {}, "section 5.10", quick=False),
        SuiteEntry("inference-precision", {}, "section 5.10", quick=False),
    ),
    "doc-003": _replay(
        "003",
        "scaling over devices, cost of the network",
        SuiteEntry(
            "weak-scaling",
            {"networks": "googlenet", "samples": "8192", "cpu": "true"},
            "figure 2",
            quick=False,
        ),
        SuiteEntry(
            "weak-scaling",
            {"networks": "googlenet,inception-v3,inception-bn"},
            "figures 2 to 6",
            quick=False,
        ),
        SuiteEntry(
            "interconnect",
            {"networks": "googlenet,inception-bn"},
            "testing methodology",
            quick=False,
        ),
        SuiteEntry("time-to-accuracy", {}, "time to train", quick=False),
        SuiteEntry(
            "batch-accuracy",
            {"batch_sizes": "16,64,256", "learning_rates": "1e-4,1e-3"},
            "future work",
        ),
    ),
    "doc-004": _replay(
        "004",
        "scaling, step time, power, equivalence",
        SuiteEntry("cpu-modes", {}, "figure 5"),
        SuiteEntry("time-breakdown", {}, "figures 7, 9, 11 and 13"),
        SuiteEntry("power", {}, "figures 16 to 19"),
        SuiteEntry("strong-scaling", {}, "section 5.3", quick=False),
        SuiteEntry("collectives", {}, "figure 14"),
        SuiteEntry("weak-scaling", {"networks": "resnet-50"}, "section 5.4", quick=False),
        SuiteEntry("interconnect", {"networks": "alexnet,googlenet"}, "abstract", quick=False),
        SuiteEntry("sequential-equivalence", {}, "section 5.1"),
    ),
}
