"""Published figures with their sources and conditions, and claims of papers.

A published figure is a fact about somebody else's machine. It stands beside what was measured and
never enters a figure of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from cubemesh.schema.record import Figure

PAPERS: dict[str, str] = {
    "000": "Addfor DGX-1 benchmark (2016)",
    "001": "NVIDIA DGX-1 best practices (white paper)",
    "002": "NVIDIA DGX-1 with Tesla V100 system architecture (white paper)",
    "003": "Deep learning performance with P100 GPUs (Dell EMC, 2016)",
    "004": "Scaling deep learning workloads on DGX-1/Pascal and Knights Landing "
    "(Gawande et al., 2018)",
}
"""Paper id → title, with its source and year. The suite of a paper is `doc-<id>`."""

SHORT_PAPERS: dict[str, str] = {
    "000": "Addfor 2016",
    "001": "DGX-1 best practices",
    "002": "DGX-1 V100 white paper",
    "003": "Dell EMC 2016",
    "004": "Gawande et al. 2018",
}
"""Paper id → the name used within a sentence or a heading."""


def cite(paper: str, place: str = "") -> str:
    """`Gawande et al. 2018 [004], figure 14`: a paper's short name with its id, and the place."""
    return f"{SHORT_PAPERS[paper]} [{paper}]{f', {place}' if place else ''}"


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """One value somebody published, with everything they said about how it came about."""

    source: str
    url: str
    """Where it stands: an address, with the path inside a repository after a space."""
    system: str
    device: str
    devices: int | None
    """Devices that worked together; 0 is a run on a CPU, None where it is not stated."""
    framework: str
    """Empty where it is not stated."""
    network: str
    """As the source spells it."""
    canonical: str | None = None
    """The same network's name in cubemesh; None where there is no such network."""
    precision: str = ""
    """As the source spells it; empty where it is not stated."""
    precision_implied: bool = False
    """Whether the source leaves the precision unsaid and its date and framework imply it."""
    batch_per_device: int | None = None
    metric: str
    """`throughput`, `forward time`, `all-reduce bus bandwidth`, …"""
    unit: str
    value: float
    """Of the whole system, all its devices together."""
    note: str = ""


ClaimKind = Literal["figure", "claim", "specification", "method", "wish"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing a document says that could be found to be so or not so."""

    id: str
    """Document and number: `001-3`."""
    document: str
    """`000` to `004`."""
    place: str
    """Where in the document: a figure, a table, a section."""
    experiment: str
    """The experiment that would settle it."""
    network: str
    system: str
    conditions: str
    quantity: str
    values: tuple[float, ...]
    """Empty where the claim is in words alone."""
    unit: str
    kind: ClaimKind


class ClaimState(StrEnum):
    """What came of holding a claim against measurements."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_BE_TESTED_HERE = "cannot be tested here"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one claim, and why."""

    claim: Claim
    state: ClaimState
    reason: str
    measured: Figure | None = None
    """What was measured of the same quantity, also where it settles nothing."""
    run_id: str = ""
    """A run behind the figure."""
    caveats: tuple[str, ...] = ()
    """Codes of the warnings of the runs behind it that forbid to compare them closely."""
