"""Published figures with their sources and conditions, and claims of papers.

A published figure describes another machine. It is shown next to measured figures and never enters
one.
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


Input = Literal["", "none", "synthetic", "host", "real", "limited"]
"""`none`: tokens or the like, which need no preparation; `synthetic`: on the device; `host`: copied
from its memory; `real`: read and decoded by the host; `limited`: the source says that this was the
limit; empty: not stated."""


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """One published value with its conditions."""

    source: str
    url: str
    """URL; a path inside a repository follows after a space."""
    system: str
    device: str
    devices: int | None
    """Number of devices; 0: a CPU run, None: not stated."""
    framework: str
    """Empty if not stated."""
    network: str
    """As spelled in the source."""
    canonical: str | None = None
    """The same network's name in cubemesh, or None."""
    precision: str = ""
    """As spelled in the source; empty if not stated."""
    precision_implied: bool = False
    """Whether the source does not state the precision, and its date and framework imply it."""
    batch_per_device: int | None = None
    metric: str
    """`throughput`, `forward time`, `all-reduce bus bandwidth`, …"""
    unit: str
    value: float
    """Of the whole system, all devices together."""
    note: str = ""
    machine: str = ""
    """Its system in the catalogue; empty if not given."""
    style: str = ""
    """How gradients were sent (forecast/styles.py); empty if not known."""
    input: Input = ""


ClaimKind = Literal["figure", "claim", "specification", "method", "wish"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A testable statement of a paper."""

    id: str
    """Paper and number: `001-3`."""
    document: str
    """`000` to `004`."""
    place: str
    """Where in the paper: a figure, a table, a section."""
    experiment: str
    """The experiment that tests it."""
    network: str
    system: str
    conditions: str
    quantity: str
    values: tuple[float, ...]
    """Empty if the claim has no numbers."""
    unit: str
    kind: ClaimKind


class ClaimState(StrEnum):
    """Result of testing a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_BE_TESTED_HERE = "cannot be tested here"


class Basis(StrEnum):
    """What settles a claim."""

    MEASURED = "measured"
    FORECAST = "forecast"
    SPECIFICATION = "specification"
    PUBLISHED = "published"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of testing one claim, and the reason."""

    claim: Claim
    state: ClaimState
    code: str = ""
    """Kind of reason, such as `not-measured`: for programs and tests."""
    reason: str
    measured: Figure | None = None
    """The same quantity as measured, also if it decides nothing."""
    forecast: Figure | None = None
    """The same quantity of the paper's machine by forecast, specification or published figures."""
    basis: Basis = Basis.MEASURED
    run_id: str = ""
    """A run behind the measured figure."""
    caveats: tuple[str, ...] = ()
    """Codes of warnings of the runs that make the comparison unreliable."""
