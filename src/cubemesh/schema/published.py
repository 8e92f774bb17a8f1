"""What others published: figures with their source and conditions, and what documents claim.

A published figure is a fact about somebody else's machine. It stands beside what was measured and
never enters a figure of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from cubemesh.schema.record import Figure


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


class State(StrEnum):
    """What came of holding a claim against measurements."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_BE_TESTED_HERE = "cannot be tested here"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one claim, and why."""

    claim: Claim
    state: State
    reason: str
    measured: Figure | None = None
    """What was measured of the same quantity, also where it settles nothing."""
    run_id: str = ""
    """A run behind the figure."""
    caveats: tuple[str, ...] = ()
    """Codes of the warnings of the runs behind it that forbid to compare them closely."""
